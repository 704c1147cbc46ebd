"""Floco: heads are points of a simplex of shared endpoints (Grinwald, Wiesner, Nakajima, 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Batch,
    Communication,
    Deployment,
    Dispatch,
    Info,
    LocalProgram,
    Message,
    Outputs,
    Paper,
    Results,
    Stage,
    State,
    StepContext,
    Transform,
    Tree,
    Update,
    generator,
    only,
    weighted_mean,
)
from flbench.algorithms.shared.linear_head import LinearHead, unmet
from flbench.core.rng import uniform
from flbench.losses import CrossEntropy

ENDPOINTS = "simplex.weight"  # W_1, ..., W_M [M, C, D]
POINT = "point"  # alpha_i [M], a ctx entry once there are regions
RADII = 1000  # sizes z of the simplex that are tried when clients are placed in it
LEAST_DISTANCE = 1e-4  # smaller distances between clients count as this one


class FlocoConfig(AlgorithmConfig):
    """Keys of Floco."""

    endpoints: int = Field(10, ge=2, description="number of endpoints M of the simplex of heads")
    rho: float = Field(0.1, ge=0, description="radius of a client's region around its point")
    tau: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the rounds before clients are placed in the simplex; 1: never",
    )


@ALGORITHMS.register("floco")
class Floco(Algorithm):
    """The head's weight is a point in a simplex of M endpoints; each client has a region of it.

    Shared are the body, the endpoints W_1, ..., W_M [C, D] and one bias b. For a point alpha of the
    simplex and features z, the logits are (sum_m alpha_m W_m) z + b. Every batch of local training
    draws a point:

        rounds < tau T   alpha ~ Dirichlet(1, ..., 1)
        later            alpha = alpha_i + r u / ||u||_1,  u_m ~ U(-1, 1),  r ~ U(0, rho)

    Gradients reach body, bias and all endpoints; the server averages them by sample counts. Between
    the two, in a set-up round, all clients train the current model once and send their endpoints
    alone. The server takes the first M principal components kappa_i of these, projects each kappa_i
    to {x >= 0, sum x = z} and divides by z, and takes the z out of 1000 in [1e-4, 1] whose points
    have the least Riesz energy log(mean over pairs of 1 / max(distance, 1e-4)^2); the projections
    are alpha_i. `personal` is the centre of the simplex before, and alpha_i after the set-up; `gm`
    is the centre.

    Readings. The components are those of the trained endpoints as in the authors' code (their
    Flower baseline takes the change, with the other sign), and the sign of each makes its largest
    loading positive; they are computed by a full decomposition in float64, where the code's is
    random. Components that do not exist, because there are too few clients, are zero; the code
    refuses that. Of equal energies the smallest z counts. As in the code, alpha_i + r u may leave
    the simplex. Endpoints are drawn from Xavier's normal distribution. The code also averages a
    weight of the head that nothing reads; here it is not sent. tau is a share of the rounds. The
    set-up has an optimizer and batches of its own, and the Flower baseline uses the last round
    instead. A client whose training diverges in the set-up stays at the centre. The personal models
    of Floco+ are not part of this method.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FlocoConfig
    config: FlocoConfig
    paper = Paper(
        "Federated Learning over Connected Modes",
        "Grinwald, Wiesner, Nakajima",
        "NeurIPS 2024 (arXiv 2403.03333)",
    )
    communication = Communication(
        down="body, M heads, a bias; later M numbers",
        up="body, M heads, a bias; once M heads",
        keeps="nothing",
    )

    @property
    def head(self) -> LinearHead:
        """The head of the net."""
        return LinearHead.of(self.setting.net)

    @property
    def shared(self) -> frozenset[str]:
        """Names of what is averaged: all but the weight of the net's own head."""
        return (self.split()[1] - {self.head.weight}) | {ENDPOINTS}

    def requires(self) -> list[str]:
        return unmet(self.setting.net, "its weight is a point in a simplex")

    def notes(self) -> list[str]:
        clients, m = self.setting.clients, self.config.endpoints
        if m < clients or len(self.stages()) == 1:
            return []
        return [
            f"floco: {clients} clients have at most {clients - 1} principal components; the others"
            f" of algorithm.endpoints={m} are zero."
        ]

    def stages(self) -> tuple[Stage, ...]:
        rounds = self.setting.rounds
        before = int(self.config.tau * rounds + 1e-9)
        first = (Stage("simplex", before),) if before else ()
        if before == rounds:
            return first
        return (*first, Stage("project", 1, setup=True), Stage("regions", rounds - before))

    def stage(self, state: State) -> str:
        """Return the name of the stage of the next round."""
        return self.stages()[state.stage].name

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        m, c, d = self.config.endpoints, self.setting.classes, self.setting.net.features
        drawn = generator(self.setting.seed, "method").normal(size=(m, c, d))
        endpoints = torch.from_numpy(drawn * (2 / (c + d)) ** 0.5)
        server = only(server, self.shared) | {
            ENDPOINTS: endpoints.to(start[self.head.weight].dtype),
            "points": torch.full((self.setting.clients, m), 1 / m, dtype=torch.float64),
        }
        return server, clients

    # Client

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()[0], self.shared
        rho = self.config.rho if self.stage(state) == "regions" else None
        names = frozenset(self.setting.net.parameters) - {self.head.weight}
        train = self.phase(PointCrossEntropy(head=self.head, rho=rho), train=names | {ENDPOINTS})
        if self.stage(state) == "project":
            sends = frozenset({ENDPOINTS})
        return LocalProgram((Transform(write_endpoints), train), keeps, sends)

    # Server

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        names = {ENDPOINTS} if state.is_initial else self.shared  # clients have the seeded net
        shared = Message(only(state.server, names))
        if self.stage(state) != "regions":
            return Dispatch(shared)
        points = state.server["points"][ids].to(state.server[ENDPOINTS].dtype)
        return Dispatch(shared, Message({POINT: points}))

    def aggregate(self, state: State, results: Results) -> Update:
        if self.stage(state) == "project":
            endpoints = results.sent.values[ENDPOINTS].double().flatten(1)  # [K, M C D]
            found, energy = placed(principal_components(endpoints, self.config.endpoints))
            points = state.server["points"].index_copy(0, results.ids, found)
            return Update({"points": points}, metrics={"energy": energy})
        mean = weighted_mean(only(results.sent.values, self.shared), self.weights(results))
        return Update(mean)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        dispatch = self.dispatch(state, ids)
        models = {"personal": Deployment(dispatch, weights=HeadAtPoint(self.head))}
        if not self.split()[0]:
            centre = Dispatch(dispatch.shared)
            models["gm"] = Deployment(centre, weights=HeadAtPoint(self.head))
        return models


def write_endpoints(leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
    """Write the received endpoints, an entry of ctx, into a leaf that can be trained."""
    return only(ctx, {ENDPOINTS})


@dataclass(frozen=True)
class HeadAtPoint:
    """The net with the head at the client's point, as (leaves, ctx) -> leaves of the net.

    Without a point among ctx it is the centre of the simplex.

    Attributes:
        head: The head of the net.
    """

    head: LinearHead

    def __call__(self, leaves: Tree, ctx: Tree) -> Tree:
        """Return the leaves with another weight of the head."""
        endpoints = leaves[ENDPOINTS] if ENDPOINTS in leaves else ctx[ENDPOINTS]
        point = ctx.get(POINT, torch.full_like(endpoints[:, 0, 0], 1 / len(endpoints)))
        others = {name: value for name, value in leaves.items() if name != ENDPOINTS}
        return others | {self.head.weight: torch.einsum("m,mcd->cd", point, endpoints)}


@dataclass(frozen=True, kw_only=True)
class PointCrossEntropy(CrossEntropy):
    """Mean cross entropy with the head at a random point of the simplex, drawn for each batch.

    Attributes:
        head: The head of the net.
        rho: Radius around the client's point; None draws from the whole simplex.
    """

    head: LinearHead
    rho: float | None

    def outputs(self, context: StepContext) -> Outputs:
        """Return the features z [B, D] and the logits [B, C]."""
        endpoints, features = context.leaves[ENDPOINTS], context.out.features
        if self.rho is None:
            point = anywhere(context.batch, len(endpoints)).to(endpoints.dtype)
        else:
            step = around(context.batch, len(endpoints), self.rho)
            point = context.ctx[POINT] + step.to(endpoints.dtype)
        weight = torch.einsum("m,mcd->cd", point, endpoints)
        return Outputs(features, self.head(context.leaves | {self.head.weight: weight}, features))


def anywhere(batch: Batch, count: int) -> Tensor:
    """Return a point [M] float64 of Dirichlet(1, ..., 1): exponential numbers over their sum."""
    numbers = [-(1 - uniform(batch.key[:1], unit)).log() for unit in range(count)]
    drawn = torch.cat(numbers)
    return drawn / drawn.sum()


def around(batch: Batch, count: int, rho: float) -> Tensor:
    """Return r u / ||u||_1 [M] float64, with u_m ~ U(-1, 1) and r ~ U(0, rho)."""
    drawn = 2 * torch.cat([uniform(batch.key[:1], unit) for unit in range(count)]) - 1
    return rho * uniform(batch.key[:1], count) * drawn / drawn.abs().sum()


# Server


def principal_components(rows: Tensor, count: int) -> Tensor:
    """Return the first components [K, M] of rows [K, P], zero where there are fewer.

    Rows are centred and components not scaled; the loading of largest size is positive in each.
    """
    centred = rows - rows.mean(dim=0)
    left, sizes, loadings = torch.linalg.svd(centred, full_matrices=False)
    largest = loadings.gather(1, loadings.abs().argmax(dim=1, keepdim=True))[:, 0]
    found = left * sizes * torch.where(largest < 0, -1.0, 1.0)  # [K, min(K, P)]
    result = rows.new_zeros(len(rows), count)
    used = min(count, found.shape[1])
    result[:, :used] = found[:, :used]
    return result


def project(rows: Tensor, size: float) -> Tensor:
    """Return the Euclidean projection of rows [K, M] to {x >= 0, sum x = size}, size > 0.

    >>> project(torch.tensor([[0.5, 0.2, -3.0]]), 1.0)
    tensor([[0.6500, 0.3500, 0.0000]])
    """
    ordered = rows.sort(dim=1, descending=True).values
    count = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    shifts = (ordered.cumsum(dim=1) - size) / count
    last = (ordered > shifts).sum(dim=1, keepdim=True) - 1
    return (rows - shifts.gather(1, last)).clamp_min(0.0)


def placed(components: Tensor) -> tuple[Tensor, float]:
    """Return the clients' points [K, M] in the simplex, and their Riesz energy.

    Args:
        components: kappa [K, M] float64.
    """
    best, least = components, torch.inf
    for size in torch.linspace(1e-4, 1, RADII, dtype=torch.float64).tolist():
        points = project(components, size)
        points = points / points.sum(dim=1, keepdim=True)
        distances = torch.pdist(points).clamp_min(LEAST_DISTANCE)
        energy = float(distances.pow(-2).mean().log()) if len(points) > 1 else 0.0
        if energy < least - 1e-12:
            best, least = points, energy
    return best, least
