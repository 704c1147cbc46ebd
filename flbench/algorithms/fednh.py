"""FedNH: a head of normalised class prototypes that no client trains (Dai et al., AAAI 2023)."""

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared import prototypes
from flbench.losses.cross_entropy import ScoresCrossEntropy
from flbench.losses.similarity import cosines, unit

W, SCALE = "head.weight", "scale"
SMALLEST_SCALE = 0.01  # a negative s would reverse the order of the classes

REPEL_STEPS, REPEL_RATE = 1000, 0.3  # of the gradient descent that separates prototypes


@fl.ALGORITHMS.register("fednh")
class FedNH(fl.Algorithm):
    """The head consists of class prototypes of length one, which the server updates.

    Clients train the body and s on the cross entropy of the logits s <z, W>, where the features z
    and the rows of W have length one. Then they compute, with unit features, the unit mean c_i^k of
    each class k among their n_i^k training samples of it. Server (Algorithm 1): the body is
    averaged, and
    W[k] <- unit(rho W[k] + (1 - rho) unit(sum_i n_i^k c_i^k / sum_i n_i^k)).
    W starts with directions that are far apart. It replaces the weight of the net's head; the
    head's bias is not used.

    The server sends body, s and W; a client sends body, s, and c and n of the classes that it has.
    A class of which no client of the cohort has samples keeps its prototype, and so does a class
    whose mixture is zero. The paper's personal models are those right after local training, with
    the old W: `personal@local`.

    Deviations: c and n are sent apart, where the paper sends their product; s stays at or above
    0.01.
    """

    class Config(fl.UniformConfig):
        """Keys of FedNH."""

        rho: float = Field(
            0.9, ge=0, le=1, description="weight of a class's old prototype in its new one"
        )
        scale: float = Field(
            1.0,
            ge=SMALLEST_SCALE,
            description="initial factor s of the cosines (authors' code: 1 for the CNN; for"
            " ResNet-18 20, or 30 with learn_scale=false)",
        )
        learn_scale: bool = Field(
            True, description="true: clients train the factor s; false: it is constant"
        )

    config: Config
    paper = fl.Paper(
        "Tackling Data Heterogeneity in Federated Learning with Class Prototypes",
        "Dai, Chen, Li, Heinecke, Sun, Xu",
        "AAAI 2023",
        "10.1609/aaai.v37i6.25891",
    )
    communication = fl.Communication(
        down="body, s, C D prototypes",
        up="body, s, (D + 2) of each held class",
        keeps="nothing",
    )
    needs = (fl.LINEAR_HEAD, fl.BODY)

    def learnt(self) -> frozenset[str]:
        """Return the name of s if it is trained, else the empty set."""
        return frozenset({SCALE} if self.config.learn_scale else ())

    def split(self) -> tuple[frozenset[str], frozenset[str]]:
        keeps, sends = super().split()
        return keeps, sends - self.setting.net.names("head")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        table = far_apart(self.setting.classes, self.setting.net.features, self.setting.seed)
        dtype = start[self.setting.net.parameters[0]].dtype
        begin = start | {W: table.to(dtype), SCALE: torch.tensor(self.config.scale, dtype=dtype)}
        keeps, sends = self.split()
        # Every client has the initial W and s, which a dispatch overwrites.
        clients = fl.repeat(fl.only(begin, keeps | {W, SCALE}), self.setting.clients)
        return fl.only(begin, sends | {W, SCALE}), clients

    def program(self, state: fl.State) -> fl.LocalProgram:
        learnt = self.learnt()
        phase = self.phase(
            *self.terms(),
            train=self.setting.net.names("backbone") | learnt,
            project=keep_positive if learnt else None,
        )
        collect = prototypes.collect(self.setting, of=unit, write=write_directions)
        keeps, sends = self.split()
        sends = sends | learnt | prototypes.LEAVES
        return fl.LocalProgram((phase, *collect), keeps, sends, prototypes.MASKS)

    def terms(self) -> tuple[fl.LossTerm, ...]:
        return (ScoresCrossEntropy(scores=by_cosine),)

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        if state.is_initial:
            return fl.Dispatch()
        sends = self.split()[1] | self.learnt() | {W}
        return fl.Dispatch(fl.Message(fl.only(state.server, sends)))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        body = self.mean(results)
        if not body:
            return fl.Update()
        sent, old = results.sent.values, state.server[W]

        # W[k] <- unit(rho W[k] + (1 - rho) unit(sum_i n_i^k c_i^k)); a client without a step has
        # no weight.
        moved = results.steps > 0
        counts = sent["counts"].double() * moved[:, None]  # [K, C]
        total = torch.einsum("kc,kcd->cd", counts, sent["prototypes"].double())  # [C, D]
        mixed = self.config.rho * old.double() + (1 - self.config.rho) * unit(total)
        # If both parts cancel, the direction of the rest is rounding.
        changes = (counts.sum(dim=0) > 0) & (mixed.norm(dim=1) > 1e-6)  # [C]

        server = body | fl.weighted_mean(fl.only(sent, {SCALE}), self.weights(results))
        server[W] = torch.where(changes[:, None], unit(mixed).to(old.dtype), old)
        return fl.Update(server, metrics={"scale": float(server.get(SCALE, state.server[SCALE]))})

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the cosines of the class prototypes, the rows of W."""
        rows = unit(state.server[W].double())  # [C, D]
        table = fl.LearnedTable(
            "class similarity",
            "Cosine of the prototypes W of every two classes. They start far apart, and the server"
            " moves each one towards the mean direction of the class's features.",
            (rows @ rows.T).clamp(-1.0, 1.0),
            rows="class",
            columns="class",
        )
        return (table,)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        models = super().deploy(state, ids)
        return {name: replace(model, predict=by_cosine) for name, model in models.items()}


def keep_positive(context: fl.Context) -> fl.Tree:
    """Return s, at least 0.01."""
    return {SCALE: context.trained[SCALE].clamp_min(SMALLEST_SCALE)}


def write_directions(context: fl.Context) -> fl.Tree:
    """Write the unit mean of unit features of each class into the leaves that are sent."""
    directions = unit(context.ctx["classes.sums"]).to(context.leaves[W].dtype)
    return prototypes.upload(directions, context.ctx["classes.counts"])


def by_cosine(context: fl.Context) -> Tensor:
    """Return the scores [B, C] that training uses: s <z, W>."""
    return context.leaves[SCALE] * cosines(context.out.features, context.leaves[W])


def far_apart(count: int, width: int, seed: int) -> Tensor:
    """Return rows [count, width] float64 of length one that are far apart; they depend on the seed.

    If count <= width the rows are orthonormal: Q of a Gaussian matrix. Otherwise Gaussian rows
    repel each other, the nearest ones most, by gradient descent on the sphere. Source: the initial
    prototypes of FedNH (Dai et al., AAAI 2023); the paper names neither the force nor its steps.
    """
    drawn = torch.from_numpy(fl.generator(seed, "method").standard_normal((width, count)))
    if count <= width:
        orthonormal: Tensor = torch.linalg.qr(drawn)[0]
        return orthonormal.T.contiguous()

    rows = unit(drawn.T)
    diagonal = torch.eye(count, dtype=torch.bool)
    for step in range(REPEL_STEPS):
        sharpness = 10.0 + 90.0 * step / REPEL_STEPS
        near = (sharpness * rows @ rows.T).masked_fill(diagonal, -torch.inf).softmax(dim=1)
        rows = unit(rows - REPEL_RATE * (1 - step / REPEL_STEPS) * near @ rows)
    return rows
