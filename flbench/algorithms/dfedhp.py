"""DFedHP: clients generate weights and mix the generator's parameters (Li et al., IJCAI 2025)."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Literal

from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.gossip import Gossip
from flbench.algorithms.shared.hypernetwork import LEAVES, PHI, Hypernetwork, Write, Z
from flbench.algorithms.shared.mixing import mix
from flbench.algorithms.shared.topology import GossipConfig


@fl.ALGORITHMS.register("dfedhp")
class DFedHP(Gossip):
    """Clients generate their weights with hypernetworks, whose parameters they mix with neighbours.

    There is no server. A client's model has a head v, which stays with the client, and weights
    theta, which its hypernetwork h generates from embeddings z, one per chunk of theta, and from
    the parameters phi of two linear layers, which are the same for all chunks. A client trains v,
    then phi, then z. It sends phi and z, which are smaller than theta for a large net, to its
    neighbours, and averages those that it receives with its own. A client is evaluated with the
    weights that its mixed phi and z generate, and its own head.

    Client i in each round (Algorithm 1), with cross entropy L and one optimizer per step:

        theta_i = h(phi_i, z_i)
        v_i    <- v_i - lr_v dL/dv_i            k_v epochs; theta_i is generated once
        phi_i  <- phi_i - lr_phi dL/dphi_i      k_phi epochs; theta_i is generated in every step
        z_i    <- z_i - lr_z dL/dz_i            k_z epochs; theta_i is generated in every step

    Clients i and l are neighbours if w_il > 0, w_ii included; all mix at once:

        phi_i  <- sum_l w_il phi_l
        z_i    <- sum_l w_il z_l

    `Hypernetwork` in `shared/hypernetwork.py` is h.

    Deviations. The available text of the paper gives no widths of h, no learning rates, no k_v,
    k_phi and k_z, and no weights w. The widths are chosen such that a message has the printed size
    for ResNet-18, where h generates the normalization layers too. The three steps share
    `train.local_epochs`, as 1, 2 and 1 of 4; w is that of the topology. All clients start with the
    same phi and z, because h is not linear: the mean of unrelated phi and z generates noise.
    BatchNorm statistics stay with the client (the paper's nets have GroupNorm), because averaged
    phi and z do not generate the averaged weights to which averaged statistics would belong.

    The paper generates the convolutions and keeps the linear layers with the client, which is
    `private=linear`. By default (`private=head`) the head alone stays with the client, and hidden
    linear layers are generated. In ResNet-18, the paper's net, the head is the only linear layer,
    so that both are the same. In a net with hidden linear layers, `private=linear` trains these
    layers with `lr_v`, for which the rate of a head alone is too small
    (see docs/papers/dfedhp.md).

    The models before mixing are reported as `personal@local`; `after_training` makes them the
    method's result.
    """

    class Config(GossipConfig):
        """Keys of DFedHP."""

        private: Literal["head", "linear", "none"] = Field(
            "head",
            description="what stays with the client instead of being generated: the head, all"
            " linear layers (as in the paper), or nothing",
        )
        norm_personal: bool = Field(
            False, description="normalization layers stay with the client too, instead of generated"
        )
        chunk: int = Field(
            9216, ge=1, description="number of weights that are generated from one embedding"
        )
        embedding: int = Field(128, ge=1, description="length of an embedding")
        hidden: int = Field(128, ge=1, description="number of units of the hidden layer")
        unit: Literal["epochs", "steps"] = Field(
            "epochs", description="unit of k_v, k_phi and k_z: epochs, or optimizer steps"
        )
        k_v: int = Field(1, ge=0, description="length of the training of the private part v")
        k_phi: int | None = Field(
            None,
            ge=1,
            description="length of the training of the hypernetwork phi (default: what k_v and k_z"
            " leave of the local epochs, 2 of 4, at least 1)",
        )
        k_z: int = Field(1, ge=0, description="length of the training of the embeddings z")
        lr_v: float | None = Field(
            None, ge=0, description="learning rate of v (default: train.optimizer.lr)"
        )
        lr_phi: float | None = Field(
            None, ge=0, description="learning rate of phi (default: train.optimizer.lr)"
        )
        lr_z: float | None = Field(
            None, ge=0, description="learning rate of z (default: train.optimizer.lr)"
        )
        weight_decay_z: float = Field(
            0.0, ge=0, description="weight decay of z, which shrinks embeddings"
        )

    config: Config
    paper = fl.Paper(
        "Hypernetwork Aggregation for Decentralized Personalized Federated Learning",
        "Li, Peng, Du, Sun, Wang, Shen",
        "IJCAI 2025",
        "10.24963/ijcai.2025/161",
    )
    communication = fl.Communication(
        down="phi and z of the hypernetwork of each neighbour",
        up="phi and z of its hypernetwork to each neighbour",
        keeps="phi, z and head",
    )

    # theta, v and h

    @cached_property
    def generated(self) -> frozenset[str]:
        """Names of the parameters theta that h generates; the other parameters are v."""
        net, private = self.setting.net, self.config.private
        v = frozenset[str]() if private == "none" else net.names("head")
        if private == "linear":
            v |= net.names("linear")
        if self.config.norm_personal:
            norms = [layer for layer in net.layers if layer.kind in ("norm", "batchnorm")]
            v |= {leaf for layer in norms for leaf in layer.leaves}
        return frozenset(net.parameters) - v

    @cached_property
    def hypernetwork(self) -> Hypernetwork:
        """The function h(phi, z), which returns theta and v under the names of the net."""
        c = self.config
        return Hypernetwork.of(
            self.setting.net, self.generated, chunk=c.chunk, embedding=c.embedding, hidden=c.hidden
        )

    def called(self) -> Callable[[fl.Context], fl.Tree]:
        return self.hypernetwork

    def leaves(self, start: fl.Tree) -> fl.Tree:
        """Return the leaves of the seeded net with phi and z, which all clients have in common."""
        return start | self.hypernetwork.initial(start, fl.generator(self.setting.seed, "model", 1))

    # Algorithm 1, local training. L(theta, v): cross entropy; z [chunks, embedding]; phi: two
    # linear layers, [hidden, embedding] and [chunk, hidden]; h(phi, z) [chunks, chunk] fills the
    # tensors of theta one after the other.

    def steps(self) -> tuple[fl.Step, ...]:
        c, v = self.config, frozenset(self.setting.net.parameters) - self.generated
        loss = self.phase(*self.terms())  # L(h(phi, z), v) with the optimizer of train.*
        k_v = c.k_v if v else 0
        k_phi = c.k_phi or max(1, self.setting.train.local_epochs - k_v - c.k_z)

        # Step 1: theta_i = h(phi_i, z_i) is written once, and v_i <- v_i - lr_v dL/dv_i.
        theta = tuple(name for name, _ in self.hypernetwork.tensors)
        write = fl.Transform(Write(self.called(), theta))
        train_v = self.training(replace(loss, weights=None), v, k_v, c.lr_v)
        step_1: tuple[fl.Step, ...] = (write, *train_v) if train_v else ()

        # Step 2: phi_i <- phi_i - lr_phi dL/dphi_i; theta_i is generated in every step.
        step_2 = self.training(loss, PHI, k_phi, c.lr_phi)

        # Step 3: z_i <- z_i - lr_z dL/dz_i; theta_i is generated in every step.
        step_3 = self.training(loss, Z, c.k_z, c.lr_z, c.weight_decay_z)

        return (*step_1, *step_2, *step_3)

    def training(
        self,
        phase: fl.Phase,
        train: frozenset[str],
        length: int,
        lr: float | None,
        weight_decay: float | None = None,
    ) -> tuple[fl.Phase, ...]:
        """Return a phase that trains the leaves `train`; none if its length is 0.

        Args:
            phase: Loss and optimizer.
            train: Names of the leaves to train.
            length: Number of epochs or steps, by the key `unit`.
            lr: Learning rate; None for that of the phase.
            weight_decay: Weight decay; None for that of the phase.
        """
        if not length:
            return ()
        given = {"lr": lr, "weight_decay": weight_decay}
        changed = {key: value for key, value in given.items() if value is not None}
        optimizer = phase.optimizer.model_copy(update=changed)
        epochs, steps = (length, None) if self.config.unit == "epochs" else (None, length)
        return (replace(phase, train=train, optimizer=optimizer, epochs=epochs, steps=steps),)

    # Algorithm 1, exchange: a client sends phi_i and z_i, and keeps v_i.

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return (keeps | sends) - self.generated, LEAVES

    def mixed(self, sent: fl.Message, links: Tensor) -> fl.Tree:
        """Return phi_i <- sum_l w_il phi_l and z_i <- sum_l w_il z_l, [K, ...] each.

        Args:
            sent: phi_l and z_l of the K clients, [K, ...] per leaf.
            links: [K, K] weights w, row i for client i; each row sums to one.
        """
        return mix(sent.values, links)

    def requires(self) -> list[str]:
        unmet = super().requires()
        if not self.generated:
            private, norm_personal = self.config.private, str(self.config.norm_personal).lower()
            unmet.append(
                f"The hypernetwork has nothing to generate: with algorithm.private={private} and"
                f" algorithm.norm_personal={norm_personal}, all parameters of the net"
                " (`model.name`) stay with the client. Choose a deeper net, such as"
                " model.name=lenet5, or set algorithm.private=head."
            )
        return unmet

    def notes(self) -> list[str]:
        notes, train, net = super().notes(), self.setting.train, self.setting.net
        message = self.hypernetwork.size(net.size)
        if message >= net.size:
            notes.append(
                f"A message (phi, z) has about {message:,} numbers, {message / net.size:.3g} times"
                f" the {net.size:,} parameters of the net: the hypernetwork saves traffic for large"
                " nets only. A smaller algorithm.hidden reduces it."
            )
        epochs = sum(step.epochs or 0 for step in self.steps() if isinstance(step, fl.Phase))
        if epochs > train.local_epochs:
            notes.append(
                f"v, phi and z are trained for {epochs} epochs in all, more than"
                f" train.local_epochs={train.local_epochs}. Raise train.local_epochs to compare"
                " methods at equal epochs."
            )
        if net.statistics and train.batchnorm == "average":
            notes.append(
                "train.batchnorm=average has no effect on generated layers: their statistics stay"
                " with the client."
            )
        return notes
