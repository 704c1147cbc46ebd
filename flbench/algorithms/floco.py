"""Floco: heads are points of a simplex of shared endpoints (Grinwald, Wiesner, Nakajima, 2024)."""

from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.linear_head import LinearHead
from flbench.algorithms.shared.memory import PARTICIPATED
from flbench.algorithms.shared.personal_model import PersonalModel, V, personal_model
from flbench.algorithms.shared.prefixes import prefixed, prefixed_names
from flbench.losses import CrossEntropy, Proximal

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

        rounds < tau T   alpha ~ Dirichlet(1, ..., 1)
        later            alpha = alpha_i + r u / ||u||_1,  u_m ~ U(-1, 1),  r ~ U(0, rho)

    Gradients reach body, bias and all endpoints; the server averages them by sample counts. Between
    the two, in a set-up round, all clients train the current model once and send their endpoints
    alone. The server takes the first M principal components kappa_i of these, projects each kappa_i
    to {x >= 0, sum x = z} and divides by z, and takes the z out of 1000 in [1e-4, 1] whose points
    have the least Riesz energy log(mean over pairs of 1 / max(distance, 1e-4)^2); the projections
    are alpha_i. `personal` is the centre of the simplex before, and alpha_i after the set-up; `gm`
    is the centre.

    With `plus` (Floco+) each client keeps a second model v_i (body, endpoints, bias), which starts
    as the initial one. In each round, after the shared model, it is trained on cross entropy +
    (lam / 2) ||v_i - w||^2 with the received w and points of the same law, and `personal` is v_i at
    alpha_i; `shared` is the model of above. A client that never took part is evaluated with the
    shared model at the centre.

    Readings. The components are those of the trained endpoints as in the authors' code (their
    Flower baseline takes the change, with the other sign), and the sign of each makes its largest
    loading positive; they are computed by a full decomposition in float64, where the code's is
    random. Components that do not exist, because there are too few clients, are zero; the code
    refuses that. Of equal energies the smallest z counts. As in the code, alpha_i + r u may leave
    the simplex. Endpoints are drawn from Xavier's normal distribution. The code also averages a
    weight of the head that nothing reads; here it is not sent. tau is a share of the rounds. The
    set-up has an optimizer and batches of its own, and the Flower baseline uses the last round
    instead. A client whose training diverges in the set-up stays at the centre. Floco+ adds lam (v
    - w) to the gradient; the code adds lam v - w, trains v_i with points of the whole simplex in
    all rounds, and evaluates it at the centre, which the Flower baseline of the same authors
    mended. Both passes see the same
    batches, with points of their own; the code draws the batches of the second pass anew. W_m has
    alpha_m times the gradient of the head, so that a step moves the head at alpha by sum_m
    alpha_m^2 of a plain head's step, 2 / (M + 1) on average before the set-up: many endpoints need
    more rounds or a larger learning rate.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of Floco."""

        endpoints: int = Field(
            10, ge=2, description="number of endpoints M of the simplex of heads"
        )
        rho: float = Field(0.1, ge=0, description="radius of a client's region around its point")
        plus: bool = Field(
            False,
            description="Floco+: each client trains a second, personal model, which is evaluated",
        )
        lam: float = Field(
            1.0,
            ge=0,
            description="plus: factor of the pull of the personal model to the received one",
        )
        personal_epochs: int | None = fl.epochs(
            None, "plus: training of the personal model in a round (default: train.local_epochs)"
        )
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
        keeps="nothing (plus: a model)",
    )
    needs = (fl.LINEAR_HEAD,)

    @property
    def head(self) -> LinearHead:
        """The head of the net."""
        return LinearHead.of(self.setting.net)

    @property
    def shared(self) -> frozenset[str]:
        """Names of what is averaged: all but the weight of the net's own head."""
        return (self.split()[1] - {self.head.weight}) | {ENDPOINTS}

    def notes(self) -> list[str]:
        clients, m = self.setting.clients, self.config.endpoints
        if m < clients or len(self.stages()) == 1:
            return []
        return [
            f"floco: {clients} clients have at most {clients - 1} principal components; the others"
            f" of algorithm.endpoints={m} are zero."
        ]

    def stages(self) -> tuple[fl.Stage, ...]:
        rounds = self.setting.rounds
        before = int(self.config.tau * rounds + 1e-9)
        first = (fl.Stage("simplex", before),) if before else ()
        if before == rounds:
            return first
        return (*first, fl.Stage("project", 1, setup=True), fl.Stage("regions", rounds - before))

    def stage(self, state: fl.State) -> str:
        """Return the name of the stage of the next round."""
        return self.stages()[state.stage].name

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        server, clients = super().init(start)
        m, c, d = self.config.endpoints, self.setting.classes, self.setting.net.features
        drawn = fl.generator(self.setting.seed, "method").normal(size=(m, c, d))
        endpoints = torch.from_numpy(drawn * (2 / (c + d)) ** 0.5)
        server = fl.only(server, self.shared) | {
            ENDPOINTS: endpoints.to(start[self.head.weight].dtype),
            "points": torch.full((self.setting.clients, m), 1 / m, dtype=torch.float64),
        }
        if not self.config.plus:
            return server, clients
        own = fl.only(start, self.own_model.own) | fl.only(server, {ENDPOINTS})
        v = prefixed(V, own) | {PARTICIPATED: torch.tensor(False)}
        return server, clients | fl.repeat(v, self.setting.clients)

    # Client

    @property
    def own_model(self) -> PersonalModel:
        """The model v_i of Floco+, without its endpoints."""
        model = personal_model(self.setting)
        return replace(model, own=model.own - {self.head.weight})

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()[0], self.shared
        rho = self.config.rho if self.stage(state) == "regions" else None
        trained = self.trained | {ENDPOINTS}
        shared = self.phase(PointCrossEntropy(head=self.head, rho=rho), train=trained)
        steps: tuple[fl.Step, ...] = (fl.Transform(write_endpoints), shared)
        if self.config.plus:
            keeps |= prefixed_names(V, self.own_model.own | {ENDPOINTS}) | {PARTICIPATED}
        if self.stage(state) == "project":
            return fl.LocalProgram(steps, keeps, frozenset({ENDPOINTS}))
        if self.config.plus:
            steps = (*steps, self.personal_phase(rho), fl.Transform(take_part))
        return fl.LocalProgram(steps, keeps, sends)

    @property
    def trained(self) -> frozenset[str]:
        """Names of the parameters of the net that are trained: all but the head's weight."""
        return frozenset(self.setting.net.parameters) - {self.head.weight}

    def personal_phase(self, rho: float | None) -> fl.Phase:
        """Return the training of v_i; rho is as in `PointCrossEntropy`."""
        lam = self.config.lam
        names = tuple(name for name in self.setting.net.parameters if name in self.trained)
        phase = self.phase(
            PointCrossEntropy(head=self.head, rho=rho, prefix=V),
            Proximal(names, lam, prefix=V),
            PullEndpoints(lam),
            train=prefixed_names(V, self.trained | {ENDPOINTS}),
            epochs=self.config.personal_epochs,
        )
        return replace(phase, weights=self.own_model)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        names = {ENDPOINTS} if state.is_initial else self.shared  # clients have the seeded net
        shared = fl.Message(fl.only(state.server, names))
        if self.stage(state) != "regions":
            return fl.Dispatch(shared)
        points = state.server["points"][ids].to(state.server[ENDPOINTS].dtype)
        return fl.Dispatch(shared, fl.Message({POINT: points}))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        if self.stage(state) == "project":
            endpoints = results.sent.values[ENDPOINTS].double().flatten(1)  # [K, M C D]
            found, energy = placed(principal_components(endpoints, self.config.endpoints))
            points = state.server["points"].index_copy(0, results.ids, found)
            return fl.Update({"points": points}, metrics={"energy": energy})
        mean = fl.weighted_mean(fl.only(results.sent.values, self.shared), self.weights(results))
        return fl.Update(mean)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        dispatch = self.dispatch(state, ids)
        at_point = HeadAtPoint(self.head, self.setting.net.leaves)
        models = {"personal": fl.Deployment(dispatch, weights=at_point)}
        if self.config.plus:
            personal = fl.Deployment(dispatch, weights=PersonalAtPoint(at_point, self.own_model))
            models = {"personal": personal, "shared": models["personal"]}
        if not self.split()[0]:
            models["gm"] = fl.Deployment(fl.Dispatch(dispatch.shared), weights=at_point)
        return models


def write_endpoints(context: fl.Context) -> fl.Tree:
    """Write the received endpoints, an entry of ctx, into a leaf that can be trained."""
    return fl.only(context.ctx, {ENDPOINTS})


def take_part(context: fl.Context) -> fl.Tree:
    """Write down that the client has trained a personal model."""
    return {PARTICIPATED: torch.ones_like(context.leaves[PARTICIPATED])}


@dataclass(frozen=True)
class HeadAtPoint:
    """The net with the head at the client's point, as context -> leaves of the net.

    Without a point among ctx it is the centre of the simplex.

    Attributes:
        head: The head of the net.
        names: Names of the leaves of the net.
    """

    head: LinearHead
    names: tuple[str, ...]

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the leaves with another weight of the head."""
        leaves, ctx = context.leaves, context.ctx
        endpoints = leaves[ENDPOINTS] if ENDPOINTS in leaves else ctx[ENDPOINTS]
        point = ctx.get(POINT, torch.full_like(endpoints[:, 0, 0], 1 / len(endpoints)))
        weight = torch.einsum("m,mcd->cd", point, endpoints)
        return {name: leaves[name] for name in self.names} | {self.head.weight: weight}


@dataclass(frozen=True)
class PersonalAtPoint:
    """The personal model of Floco+ at the client's point, as context -> leaves of the net.

    A client that never took part has the shared model at the centre of the simplex.

    Attributes:
        at_point: The shared model.
        own: The personal model, without its endpoints.
    """

    at_point: HeadAtPoint
    own: PersonalModel

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the leaves of the net."""
        leaves = context.leaves
        own = self.own(context) | {ENDPOINTS: leaves[V + ENDPOINTS]}
        here = self.at_point(context.with_leaves(own))
        no_point = {name: value for name, value in context.ctx.items() if name != POINT}
        others = self.at_point(context.with_leaves(leaves, no_point))
        took_part = leaves[PARTICIPATED]
        return {name: torch.where(took_part, here[name], value) for name, value in others.items()}


@dataclass(frozen=True, kw_only=True)
class PointCrossEntropy(CrossEntropy):
    """Mean cross entropy with the head at a random point of the simplex, drawn for each batch.

    Attributes:
        head: The head of the net.
        rho: Radius around the client's point; None draws from the whole simplex.
        prefix: Prefix of the endpoints and of the bias.
    """

    head: LinearHead
    rho: float | None
    prefix: str = ""

    def outputs(self, context: fl.Context) -> fl.Outputs:
        """Return the features z [B, D] and the logits [B, C]."""
        endpoints, features = context.leaves[self.prefix + ENDPOINTS], context.out.features
        count = len(endpoints)
        first = count + 1 if self.prefix else 0  # so that a second model has points of its own
        numbers = [fl.uniform(context.batch.key[:1], first + unit) for unit in range(count + 1)]
        if self.rho is None:
            point = anywhere(torch.cat(numbers[:-1])).to(endpoints.dtype)
        else:
            step = around(torch.cat(numbers[:-1]), self.rho * numbers[-1])
            point = context.ctx[POINT] + step.to(endpoints.dtype)
        weight = torch.einsum("m,mcd->cd", point, endpoints)
        leaves = context.leaves | {self.prefix + self.head.weight: weight}
        return fl.Outputs(features, self.head(leaves, features, prefix=self.prefix))


@dataclass(frozen=True)
class PullEndpoints:
    """1/2 ||endpoints of the personal model - received endpoints||^2.

    Attributes:
        weight: Factor of the term.
    """

    weight: float | str

    def __call__(self, context: fl.Context) -> Tensor:
        """Return the term, 0-dim."""
        return 0.5 * (context.leaves[V + ENDPOINTS] - context.ctx[ENDPOINTS]).square().sum()


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


# Server


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
