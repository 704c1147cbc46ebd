"""Floco: heads are points of a simplex of shared endpoints (Grinwald, Wiesner, Nakajima, 2024)."""

from collections.abc import Callable
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.losses.cross_entropy import ScoresCrossEntropy

ENDPOINTS = "simplex.weight"  # W_1, ..., W_M [M, C, D]
POINT = "point"  # alpha_i [M], a ctx entry once there are regions
RADII = 1000  # sizes z of the simplex that are tried when clients are placed in it
LEAST_DISTANCE = 1e-4  # smaller distances between clients count as this one


@fl.ALGORITHMS.register("floco")
class Floco(fl.Algorithm):
    """The head's weight is a point in a simplex of M endpoints; each client has a region of it.

    Shared are the body, the endpoints W_1, ..., W_M [C, D] and one bias b. For a point alpha of the
    simplex and features z, the logits are (sum_m alpha_m W_m) z + b. Every batch of local training
    draws a point:

        first floor(tau T) rounds   alpha ~ Dirichlet(1, ..., 1)
        later                       alpha = alpha_i + r u / ||u||_1,  u_m ~ U(-1, 1),  r ~ U(0, rho)

    Gradients reach body, bias and all endpoints; the server averages them by sample counts. Between
    the two, in a set-up round, all clients train the current model once and send their endpoints
    alone. The server takes the first M principal components kappa_i of these, projects each kappa_i
    to {x >= 0, sum x = z} and divides by z, and takes the z out of 1000 in [1e-4, 1] whose points
    have the least Riesz energy log(mean over pairs of 1 / max(distance, 1e-4)^2); the projections
    are alpha_i. `personal` is the centre of the simplex before, and alpha_i after the set-up; `gm`
    is the centre. Floco+ is in `flocoplus.py`.

    Readings. The components are those of the trained endpoints as in the authors' code (their
    Flower baseline takes the change, with the other sign), and the sign of each makes its largest
    loading positive; they are computed by a full decomposition in float64, where the code's is
    random. Components that do not exist, because there are too few clients, are zero; the code
    refuses that. Of equal energies the smallest z counts. As in the code, alpha_i + r u may leave
    the simplex. Endpoints are drawn from Xavier's normal distribution. The code also averages a
    weight of the head that nothing reads; here it is not sent. tau is a share of the rounds. The
    set-up has an optimizer and batches of its own, and the Flower baseline uses the last round
    instead. A client whose training diverges in the set-up stays at the centre. W_m has alpha_m
    times the gradient of the head, so that a step moves the head at alpha by sum_m alpha_m^2 of a
    plain head's step, 2 / (M + 1) on average before the set-up: many endpoints need more rounds or
    a larger learning rate.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of Floco."""

        endpoints: int = Field(
            10,
            ge=2,
            description="number of endpoints M of the simplex of heads; with fewer clients some"
            " components are zero",
        )
        rho: float = Field(0.1, ge=0, description="radius of a client's region around its point")
        tau: float = Field(
            0.5,
            ge=0,
            le=1,
            description="share of the rounds before clients are placed in the simplex; 1: never",
        )

    config: Config
    by_client = (("points", (0,)),)
    paper = fl.Paper(
        "Federated Learning over Connected Modes",
        "Grinwald, Wiesner, Nakajima",
        "NeurIPS 2024 (arXiv 2403.03333)",
    )
    communication = fl.Communication(
        down="body, M heads, a bias; later M numbers",
        up="body, M heads, a bias; once M heads",
        keeps="nothing",
    )
    needs = (fl.LINEAR_HEAD,)
    settles = 0.5  # tau: clients are placed in the simplex

    @property
    def shared(self) -> frozenset[str]:
        """Names of what is averaged: all but the weight of the net's own head."""
        return (self.split()[1] - {self.linear_head.weight}) | {ENDPOINTS}

    def stages(self) -> tuple[fl.Stage, ...]:
        rounds = self.setting.rounds
        before = int(self.config.tau * rounds + 1e-9)
        first = (fl.Stage("simplex", before),) if before else ()
        if before == rounds:
            return first
        return (*first, fl.Stage("project", 1, setup=True), fl.Stage("regions", rounds - before))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        m, c, d = self.config.endpoints, self.setting.classes, self.setting.net.features
        drawn = fl.generator(self.setting.seed, "method").normal(size=(m, c, d))
        endpoints = torch.from_numpy(drawn * (2 / (c + d)) ** 0.5)
        return fl.only(server, self.shared) | {
            ENDPOINTS: endpoints.to(start[self.linear_head.weight].dtype),
            "points": torch.full((self.setting.clients, m), 1 / m, dtype=torch.float64),
        }, clients

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        cross_entropy = ScoresCrossEntropy(scores=self.random_scores(state))
        trained = frozenset(self.setting.net.parameters) & self.shared | {ENDPOINTS}
        is_set_up = self.stage(state).name == "project"
        sends = frozenset({ENDPOINTS}) if is_set_up else self.shared
        return fl.LocalProgram((self.phase(cross_entropy, train=trained),), self.split()[0], sends)

    def random_scores(self, state: fl.State, prefix: str = "") -> Callable[[fl.Context], Tensor]:
        """Return the logits of the next round's training; with a prefix, of a second model."""
        rho = self.config.rho if self.stage(state).name == "regions" else None
        return fl.bind(random_scores, self.linear_head, rho, prefix)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        names = {ENDPOINTS} if state.is_initial else self.shared  # clients have the seeded net
        shared, rows = fl.Message(fl.only(state.server, names)), fl.Message()
        if self.stage(state).name == "regions":
            rows = fl.Message({POINT: state.server["points"][ids].to(shared.values[ENDPOINTS])})
        return fl.Dispatch(shared, rows, leaves=frozenset({ENDPOINTS}))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.stage(state).name != "project":
            return super().aggregate(state, results)
        endpoints = results.sent.values[ENDPOINTS].double().flatten(1)  # [K, M C D]
        found, energy = placed(principal_components(endpoints, self.config.endpoints))
        points = state.server["points"].index_copy(0, results.ids, found)
        return fl.Update({"points": points}, metrics={"energy": energy})

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        dispatch = self.dispatch(state, ids)
        weights = fl.bind(at_point, self.linear_head)
        models = {"personal": fl.Deployment(dispatch, weights=weights)}
        if not self.split()[0]:
            models["gm"] = fl.Deployment(replace(dispatch, rows=fl.Message()), weights=weights)
        return models


def head_weight(endpoints: Tensor, point: Tensor) -> Tensor:
    """Return the weight [C, D] of the head at a point [M] of endpoints [M, C, D]."""
    return torch.einsum("m,mcd->cd", point, endpoints)


def at_point(context: fl.Context, head: fl.LinearHead) -> fl.Tree:
    """Return the weight of the head at the client's point, or else at the centre."""
    endpoints = context.leaves[ENDPOINTS]
    centre = torch.full_like(endpoints[:, 0, 0], 1 / len(endpoints))
    return {head.weight: head_weight(endpoints, context.ctx.get(POINT, centre))}


def random_scores(
    context: fl.Context, head: fl.LinearHead, rho: float | None, prefix: str
) -> Tensor:
    """Return the logits [B, C] of the head at a random point, drawn for each batch.

    Args:
        context: A step of the training.
        head: The head of the net.
        rho: Radius around the client's point; None draws from the whole simplex.
        prefix: Prefix of the endpoints and of the bias of a second model.
    """
    endpoints = context.leaves[prefix + ENDPOINTS]
    count = len(endpoints)
    first = count + 1 if prefix else 0  # so that a second model has points of its own
    numbers = [fl.uniform(context.batch.key[:1], first + unit) for unit in range(count + 1)]
    if rho is None:
        point = anywhere(torch.cat(numbers[:-1])).to(endpoints.dtype)
    else:
        step = around(torch.cat(numbers[:-1]), rho * numbers[-1])
        point = context.ctx[POINT] + step.to(endpoints.dtype)
    weight = {prefix + head.weight: head_weight(endpoints, point)}
    return head(context.leaves | weight, context.out.features, prefix=prefix)


def anywhere(numbers: Tensor) -> Tensor:
    """Return a point [M] of Dirichlet(1, ..., 1) from numbers [M] in [0, 1).

    They are made exponential, and divided by their sum.
    """
    drawn = -(1 - numbers).log()
    return drawn / drawn.sum()


def around(numbers: Tensor, radius: Tensor) -> Tensor:
    """Return r u / ||u||_1 [M] for numbers [M] in [0, 1), with u = 2 numbers - 1."""
    drawn = 2 * numbers - 1
    return radius * drawn / drawn.abs().sum()


def principal_components(rows: Tensor, count: int) -> Tensor:
    """Return the first components [K, M] of rows [K, P], zero where there are fewer.

    Rows are centred and components not scaled; the loading of largest size is positive in each.
    """
    centred = rows - rows.mean(dim=0)
    left, sizes, loadings = torch.linalg.svd(centred, full_matrices=False)
    # A component whose size is rounding does not exist (the bound of `torch.linalg.matrix_rank`).
    least = max(rows.shape) * torch.finfo(rows.dtype).eps * sizes[0]
    sizes = torch.where(sizes > least, sizes, 0.0)
    largest = loadings.gather(1, fl.smallest_index(-loadings.abs(), torch.float32)[:, None])[:, 0]
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
    """Return the clients' points [K, M] in the simplex for kappa [K, M], and their Riesz energy."""
    best, least = components, torch.inf
    for size in torch.linspace(1e-4, 1, RADII, dtype=torch.float64).tolist():
        points = project(components, size)
        points = points / points.sum(dim=1, keepdim=True)
        distances = torch.pdist(points).clamp_min(LEAST_DISTANCE)
        energy = float(distances.pow(-2).mean().log()) if len(points) > 1 else 0.0
        if energy < least - 1e-12:
            best, least = points, energy
    return best, least
