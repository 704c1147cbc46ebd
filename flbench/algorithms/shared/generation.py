"""The hypernetwork for every decentralized method: clients mix (phi, z) instead of weights.

The weights that a method would mix are generated, except for a private part v that stays with the
client. A phase that would train these weights becomes three phases with an optimizer each, which
train v, phi and z. Everything else of the method stays as it is.

Source: Li et al. (DFedHP), IJCAI 2025, Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from flbench.algorithms.shared.hypernetwork import LEAVES, PHI, Hypernetwork, Write, Z
from flbench.client.program import Phase, Step, Transform
from flbench.config.schema import OptimizerConfig, Strict, TrainConfig
from flbench.core.types import Tree
from flbench.models.base import NetSpec


class HypernetworkConfig(Strict):
    """Keys of the hypernetwork, for methods that are built on it.

    Other methods use the hypernetwork with these defaults.
    """

    private: Literal["head", "linear", "none"] = Field(
        "head",
        description="what stays with the client instead of being generated, in addition to what the"
        " method itself keeps: the head, all linear layers (as in DFedHP's paper), or nothing",
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
        None, ge=0, description="learning rate of v (default: that of the method for v)"
    )
    lr_phi: float | None = Field(
        None, ge=0, description="learning rate of phi (default: that of the method for weights)"
    )
    lr_z: float | None = Field(
        None, ge=0, description="learning rate of z (default: that of the method for weights)"
    )
    weight_decay_z: float = Field(
        0.0, ge=0, description="weight decay of z, which shrinks embeddings"
    )


@dataclass(frozen=True)
class Generation:
    """What a method keeps, mixes and trains if its shared weights are generated.

    Attributes:
        net: Description of the net.
        keys: Keys of the hypernetwork.
        kept: Leaves of the net that the method keeps at the clients.
        shared: Leaves of the net that the method would mix.
    """

    net: NetSpec
    keys: HypernetworkConfig
    kept: frozenset[str]
    shared: frozenset[str]

    @cached_property
    def generated(self) -> frozenset[str]:
        """Parameters of the net that the hypernetwork generates."""
        private: frozenset[str] = frozenset()
        if self.keys.private != "none":
            private |= self.net.names("head")
        if self.keys.private == "linear":
            private |= self.net.names("linear")
        if self.keys.norm_personal:
            norms = [layer for layer in self.net.layers if layer.kind in ("norm", "batchnorm")]
            private |= {leaf for layer in norms for leaf in layer.leaves}
        return (self.shared & frozenset(self.net.parameters)) - private

    @property
    def own(self) -> frozenset[str]:
        """Parameters of the net that the client keeps and trains: the private part v."""
        return (frozenset(self.net.parameters) & (self.kept | self.shared)) - self.generated

    @cached_property
    def hypernetwork(self) -> Hypernetwork:
        """The function h that generates the weights."""
        keys = self.keys
        return Hypernetwork.of(
            self.net,
            self.generated,
            chunk=keys.chunk,
            embedding=keys.embedding,
            hidden=keys.hidden,
        )

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the leaves that clients keep, and those that they mix: phi and z.

        BatchNorm statistics stay with the client, because averaged statistics would belong to
        averaged weights, and averaged phi and z do not generate these.
        """
        return (self.kept | self.shared) - self.generated, LEAVES

    def leaves(self, start: Tree, rng: np.random.Generator) -> Tree:
        """Return the leaves of the seeded net with phi and z, which all clients have in common."""
        return start | self.hypernetwork.initial(start, rng)

    def steps(
        self, steps: tuple[Step, ...], weights: Callable[[Tree, Tree], Tree]
    ) -> tuple[Step, ...]:
        """Return a method's steps with training of v, phi and z instead of its weights.

        Before v is trained, the generated weights are written into the leaves of the net once; the
        training of v then sees an ordinary net. Training of phi and z generates the weights in
        every step, with the gradient through h. Steps that do not train stay as they are.

        Args:
            steps: Steps of the method.
            weights: Function (leaves, ctx) -> leaves that the net is called with.
        """
        write = Transform(Write(weights, tuple(name for name, _ in self.hypernetwork.tensors)))
        result: list[Step] = []
        stale = True  # whether the leaves of the net differ from what phi and z generate now
        for step in steps:
            ordinary, generating = self._apart(step)
            if stale and any(isinstance(part, Phase) for part in ordinary):
                result.append(write)
                stale = False
            result += [*ordinary, *generating]
            if generating:
                stale = True
        return tuple(result)

    def requires(self) -> list[str]:
        """Return a sentence if there is nothing to generate; empty otherwise."""
        if self.generated:
            return []
        private, norm_personal = self.keys.private, str(self.keys.norm_personal).lower()
        cure = "Choose a deeper net, such as model.name=lenet5"
        if private == "linear":
            cure += ", or set algorithm.private=head"
        return [
            f"The hypernetwork has nothing to generate: with algorithm.private={private} and"
            f" algorithm.norm_personal={norm_personal}, all {self.net.size:,} parameters of the net"
            f" (`model.name`) stay with the client. {cure}."
        ]

    def notes(self, steps: tuple[Step, ...], train: TrainConfig) -> list[str]:
        """Return sentences on large messages, on many epochs and on BatchNorm statistics.

        Args:
            steps: Steps of a client's program.
            train: Configuration of the local training.
        """
        notes = []
        message, size = self.hypernetwork.size(self.net.size), self.net.size
        if message >= size:
            notes.append(
                f"A message (phi, z) has about {message:,} numbers, {message / size:.3g} times the"
                f" {size:,} parameters of the net: the hypernetwork saves traffic for large nets"
                " only. A smaller algorithm.hidden (a key of dfedhp and dispfl-hp) reduces it."
            )
        epochs = sum(step.epochs or 0 for step in steps if isinstance(step, Phase))
        if epochs > train.local_epochs:
            notes.append(
                f"v, phi and z are trained for {epochs} epochs in all, more than"
                f" train.local_epochs={train.local_epochs}. Raise train.local_epochs to compare"
                " methods at equal epochs."
            )
        if self.net.statistics and train.batchnorm == "average":
            notes.append(
                "train.batchnorm=average has no effect on generated layers: their statistics stay"
                " with the client."
            )
        return notes

    def _apart(self, step: Step) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """Return a step's part on an ordinary net (v), and its phases on phi and z."""
        if not isinstance(step, Phase):
            return (step,), ()
        ordinary = replace(step, weights=None)
        if not any(step.trains(name) for name in self.generated):
            return (ordinary,), ()

        keys = self.keys
        own = frozenset(name for name in self.own if step.trains(name))
        k_v = keys.k_v if own else 0
        k_phi = keys.k_phi or max(1, (step.epochs or 0) - k_v - keys.k_z)

        # Algorithm 1: v with theta fixed, then phi and z with the gradient through h.
        train_v = self.phase(ordinary, own, k_v, keys.lr_v)
        train_phi = self.phase(step, PHI, k_phi, keys.lr_phi)
        train_z = self.phase(step, Z, keys.k_z, keys.lr_z, keys.weight_decay_z)
        return train_v, (*train_phi, *train_z)

    def phase(
        self,
        step: Phase,
        train: frozenset[str],
        length: int,
        lr: float | None,
        weight_decay: float | None = None,
    ) -> tuple[Phase, ...]:
        """Return a phase that trains other leaves; none if it trains nothing or has length 0.

        Args:
            step: The phase.
            train: Names of the leaves to train.
            length: Number of epochs or steps, by the key `unit`, >= 0.
            lr: Learning rate; None for that of the phase.
            weight_decay: Weight decay; None for that of the phase.
        """
        if not train or not length:
            return ()
        changed: dict[str, float] = {}
        if lr is not None:
            changed["lr"] = lr
        if weight_decay is not None:
            changed["weight_decay"] = weight_decay
        optimizer: OptimizerConfig = step.optimizer.model_copy(update=changed)
        epochs, steps = (length, None) if self.keys.unit == "epochs" else (None, length)
        return (replace(step, train=train, optimizer=optimizer, epochs=epochs, steps=steps),)
