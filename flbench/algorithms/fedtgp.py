"""FedTGP: prototypes that the server trains, with a margin (Zhang, Liu, Hua, Cao, AAAI 2024)."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear

import flbench.algorithms as fl
from flbench.algorithms.fedproto import FedProto
from flbench.losses.cross_entropy import cross_entropies

PSI = ("tgp.embedding", "tgp.in.weight", "tgp.in.bias", "tgp.out.weight", "tgp.out.bias")


@fl.ALGORITHMS.register("fedtgp")
class FedTGP(FedProto):
    """Clients upload class prototypes; the server trains prototypes that keep them apart.

    As in FedProto, every client has its own model. Client i (z: features of D numbers, y: labels,
    P: the server's prototypes):

        L   = CE + lam (1 / D) ||z - P_y||^2            CE alone while the server has no prototypes
        p_k = mean of z over the client's samples of class k, after training, in eval mode

    Server: P = Psi(1), ..., Psi(C), where Psi is an embedding of the class (D numbers), a linear
    layer, ReLU and a linear layer. In each round it has the pairs (p, y) of the uploads, one for
    each client and class, without weights. With q_c, the mean of the uploads of class c,

        delta = min( max_c min_{c' != c} ||q_c - q_c'||, tau )          tau if there is one class

    and Psi is trained for `server_epochs` epochs of batches of the pairs by SGD, on the cross
    entropy of logits_c = -( ||p - P_c|| + [c = y] delta ) over all C classes. Psi is kept from
    round to round, its optimizer is new in each. A client predicts the class of the nearest
    prototype, among all classes; `proto_own` lets those of the client compete, and `head` is the
    client's classifier.

    Readings. The authors' code collects prototypes from the model before local training, so that
    they are one training stale; here they are those of the paper. Their
    loaders drop the last batch. `lam`, `tau`, and the number of epochs are those of the authors'
    command, which also has the same learning rate and batch size at server and clients. The
    distance is sqrt(||p - P_c||^2 + 1e-12), whose gradient is finite at 0. The server trains in
    float64. A class that nobody uploads has a prototype too: it competes, and is pushed away. A
    client that took no optimizer step uploads nothing that counts.
    """

    class Config(FedProto.Config):
        """Keys of FedTGP."""

        lam: float = Field(
            10.0, ge=0, description="weight of the distance to the prototypes in local training"
        )
        tau: float = Field(
            100.0, ge=0, description="largest margin, in the units of the distance between features"
        )
        server_epochs: int = fl.epochs(
            100, "training of the server's prototypes in a round, on the uploaded ones", ge=0
        )
        server_lr: float | None = Field(
            None,
            ge=0,
            description="learning rate of the server's training (default: train.optimizer.lr,"
            " without its schedule)",
        )

    config: Config
    paper = fl.Paper(
        "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for"
        " Data and Model Heterogeneity in Federated Learning",
        "Zhang, Liu, Hua, Cao",
        "AAAI 2024 (arXiv 2401.03230)",
    )

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        c, d = self.setting.classes, self.setting.net.features
        rng, width = fl.generator(self.setting.seed, "method"), max(1, d) ** -0.5
        psi = [rng.normal(size=(c, d))]  # PyTorch's distributions of an Embedding and of a Linear
        psi += [rng.uniform(-width, width, shape) for shape in ((d, d), (d,), (d, d), (d,))]
        return server | dict(zip(PSI, map(torch.from_numpy, psi), strict=True)), clients

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        bank, counts = results.sent.values["prototypes"], results.sent.values["counts"]
        order = results.ids.argsort()  # so that the order of the cohort does not matter
        uploaded = ((counts > 0) & (results.steps > 0)[:, None])[order]  # [K, C]
        if not uploaded.any():
            return fl.Update()
        points, y = bank[order][uploaded].double(), uploaded.nonzero()[:, 1]  # [M, D], [M]

        margin = adaptive_margin(points, y, self.config.tau)
        psi, loss = self.trained(fl.only(state.server, PSI), points, y, margin, state.round)
        old = state.server["global.prototypes"]
        server = psi | {
            "global.prototypes": generated(psi).to(old.dtype),
            "global.present": torch.ones_like(state.server["global.present"]),
        }
        return fl.Update(server, metrics={"margin": float(margin), "server_loss": loss})

    def trained(
        self, psi: fl.Tree, points: Tensor, y: Tensor, margin: Tensor, completed: int
    ) -> tuple[fl.Tree, float]:
        """Return Psi after the server's training in a round, and the loss after it.

        Args:
            psi: Parameters of Psi, float64.
            points: [M, D] float64, uploaded prototypes.
            y: [M] int64, their classes.
            margin: [] float64, delta.
            completed: Number of rounds before this one.
        """
        c, train = self.config, self.setting.train
        rate = train.optimizer.lr if c.server_lr is None else c.server_lr
        draw = fl.Draw(self.setting.seed, (completed,), self.setting.clients)
        gradient = torch.func.grad(margin_loss)
        for epoch in range(c.server_epochs):
            order = torch.from_numpy(draw.sample_order(self.setting.clients, epoch, len(y)))
            for batch in torch.split(order, train.batch_size):
                slope = gradient(psi, points[batch], y[batch], margin)
                psi = {name: value - rate * slope[name] for name, value in psi.items()}
        return psi, float(margin_loss(psi, points, y, margin))


def generated(psi: fl.Tree) -> Tensor:
    """Return the prototypes P [C, D] that Psi makes."""
    embedding, first, first_bias, last, last_bias = (psi[name] for name in PSI)
    return linear(linear(embedding, first, first_bias).relu(), last, last_bias)


def margin_loss(psi: fl.Tree, points: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """Return the server's loss, 0-dim: the mean cross entropy of -(distance + margin).

    Args:
        psi: Parameters of Psi.
        points: [M, D], uploaded prototypes.
        y: [M] int64, their classes.
        margin: [], which is added to the distance to the own class.
    """
    table = generated(psi)
    distance = ((points[:, None] - table).square().sum(dim=2) + 1e-12).sqrt()  # [M, C]
    own = y[:, None] == torch.arange(len(table))
    return cross_entropies(-(distance + torch.where(own, margin, 0.0)), y).mean()


def adaptive_margin(points: Tensor, y: Tensor, tau: float) -> Tensor:
    """Return delta, 0-dim: the largest distance of a class's mean to the nearest other one.

    Args:
        points: [M, D] float64, uploaded prototypes.
        y: [M] int64, their classes.
        tau: Upper bound, and the result if there is one class.

    >>> points = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]]).double()
    >>> adaptive_margin(points, torch.tensor([0, 0, 4]), tau=100.0)  # (1, 0) and (1, 3)
    tensor(3., dtype=torch.float64)
    """
    means = torch.stack([points[y == k].mean(dim=0) for k in sorted({*y.tolist()})])
    apart = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = apart.fill_diagonal_(torch.inf).amin(dim=1)
    return nearest.amax().clamp_max(tau)
