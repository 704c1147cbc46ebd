"""FedPC: clients grouped by prototypes, groups mixed by their cosines (Liu et al., 2025)."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

import flbench.algorithms as fl
from flbench.algorithms.shared import prototypes
from flbench.algorithms.shared.mixing import mix
from flbench.algorithms.shared.prefixes import prefixed, stripped
from flbench.algorithms.shared.prototypes import NearestPrototype
from flbench.algorithms.shared.simplex import simplex
from flbench.losses import CrossEntropy, PrototypeL2
from flbench.losses.similarity import EPSILON, class_sums, full_precision, wide

PROTOTYPES, PRESENT = "group.prototypes", "group.present"
TABLE = (PROTOTYPES, PRESENT)
"""Names of the groups' prototypes [J, C, D] and of the flags [J, C] of classes that have one."""
INTRA = "intra."  # prefix of theta^_j and P^_j, the means within groups

VARIANCE, MOST_COMPONENTS = 0.9, 32  # of the principal components

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


@fl.ALGORITHMS.register("fedpc")
class FedPc(fl.Algorithm):
    """Clients with similar prototypes form groups; groups share backbones, heads stay local.

    A prototype is the mean feature of a class. Before training, every client sends the prototypes
    of the seeded net, by which the server groups the clients once and for all. A client trains the
    backbone of its group together with its own head; a second loss term pulls the features of each
    class to the group's prototype of that class. The server averages backbones and prototypes
    within each group. It then mixes the groups: a group takes more from groups with similar
    prototypes. A client is evaluated with the backbone of its group and its own head.

    Set-up, once, for all clients (theta_0: seeded backbone f, C classes):

        P_i^k = mean of f(theta_0, x) over the samples x of class k at client i    (eq. 2)
        c(i)  = k-means of q principal components of (P_i^1, ..., P_i^C), J groups

    Client i of group j = c(i), E epochs on backbone theta and head:

        L     = alpha CE + gamma L_p
        L_p   = mean over the batch of ||f(theta, x) - P^(j)_y||^2 / D

    and then P_i by eq. 2 with the trained theta_i. Server:

        theta^_j, P^_j = means of theta_i and P_i over the clients of group j    (lines 13-14)
        M_jl      = cos(P^_j, P^_l), M_jj = 1                                   (eq. 5-6)
        rho_jl    = max(0, M_jl) / sum_l max(0, M_jl)                           (eq. 5-6)
        theta^(j) = sum_l rho_jl theta^_l,  P^(j) = sum_l rho_jl P^_l           (eq. 7-8)

    Eq. 3 prints a sum of distances that are not squared, L_p = sum over the classes k of ||mean of
    f(theta, x) - P^(j)_k||; written for a batch it is `pull=class_mean`. The default is the mean
    square of FedProto in FedNH's repository, whose settings the paper shares; samples of a class
    without a prototype do not count. Eq. 7-8 give every group a model, Algorithm 1 has one for all;
    the equations are followed. Cosines run over the classes that both groups have; that a negative
    one counts as 0 is ours. The text also speaks of a push from other classes, and eq. 3 only
    pulls. Means within a group are plain, as in lines 13-14; eq. 1 weights by samples
    (`agg_weights`). A group without a client in the round keeps its last means; a group that never
    had one gives nothing and takes equal parts of the groups that had one. When clients are
    grouped, the prototype of a class that a client does not hold is zero, and the q principal
    components are as many as reach 90 % of the variance, at most 32. The first round of training
    has no L_p: P^(j) is computed only from clients that have trained. The paper reports a global
    model without defining its head (`gm`). docs/papers/fedpc.md has accuracies of these readings.
    """

    class Config(fl.UniformConfig):
        """Keys of FedPC."""

        groups: int = Field(5, ge=1, description="number of groups J")
        alpha: float = Field(0.5, ge=0, description="weight of cross entropy")
        gamma: float = Field(
            0.5, ge=0, description="weight of the distance to the group's prototypes"
        )
        pull: Literal["per_sample_mse", "class_mean", "mse"] = Field(
            "per_sample_mse",
            description="distance L_p to the group's prototypes: mean square over samples and"
            " features (per_sample_mse); Euclidean distance of class means, summed over the classes"
            " of the batch (class_mean, eq. 3 to the letter), or their mean square (mse)",
        )
        gm: Literal["init_head", "mean_head", "nearest_proto"] = Field(
            "init_head",
            description="head of the global model: the seeded one, the mean of the clients' heads,"
            " or the nearest prototype",
        )

    config: Config
    by_client = (("groups", (0,)),)
    paper = fl.Paper(
        "Personalized federated learning method based on prototype clustering mechanism",
        "Liu Haijun, Wang Haolong, Liu Yahui, Ma Hongliang",
        "Journal on Communications, 2025",
        "10.11959/j.issn.1000-436x.2025235",
    )
    communication = fl.Communication(
        down="backbone and C prototypes of D features of the client's group, C flags",
        up="backbone, D features and an id per held class",
        keeps="head, prototypes",
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def stages(self) -> tuple[fl.Stage, ...]:
        return (fl.Stage("cluster", 1, setup=True), fl.Stage("train", self.setting.rounds))

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        heads, shared = self.split()
        clients = self.setting.clients
        count = min(clients, self.config.groups)

        net, classes = self.setting.net, self.setting.classes
        zeros = torch.zeros(classes, net.features, dtype=start[net.parameters[0]].dtype)
        group = fl.only(start, shared) | {PROTOTYPES: zeros, PRESENT: torch.zeros(classes).bool()}
        group |= prefixed(INTRA, group)
        server = {name: torch.stack([value] * count) for name, value in group.items()}
        server |= fl.only(start, heads)  # of the global model; never sent
        server["groups"] = torch.zeros(clients, dtype=torch.int64)  # [N] c(i)
        return server, fl.repeat(fl.only(start, heads) | {"prototypes": zeros}, clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        heads, shared = self.split()
        collect = prototypes.collect(self.setting)  # eq. 2
        keeps = heads | {"prototypes"}
        sends = frozenset({"prototypes", "ids"})
        masks = (("prototypes", "held"), ("ids", "held"))
        if self.stage(state).setup:
            return fl.LocalProgram(collect, keeps, sends, masks)

        train = self.phase(CrossEntropy(self.config.alpha), self.pull())
        return fl.LocalProgram((train, *collect), keeps, shared | sends, masks)

    def pull(self) -> fl.LossTerm:
        """Return L_p, weighted with gamma."""
        config = self.config
        if config.pull == "per_sample_mse":
            return PrototypeL2(config.gamma, PROTOTYPES, PRESENT)
        return fl.Term(config.gamma, fl.bind(class_pull, config.pull == "mse"))

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        """Send theta^(j) and P^(j) of the clients' groups; the seeded backbone is sent for free."""
        names = {*TABLE} if state.is_initial else {*TABLE} | self.split()[1]
        group = state.server["groups"][ids]  # [K]
        rows = {name: value[group] for name, value in fl.only(state.server, names).items()}
        # Before the first round of the stage `train` no group has prototypes.
        has_prototypes = state.server[PRESENT].any().expand(len(ids))
        return fl.Dispatch(rows=fl.Message(rows, dict.fromkeys(TABLE, has_prototypes)))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        server = state.server
        if self.stage(state).setup:  # the clients' groups c(i)
            # Classes that a client does not hold are zeros.
            vectors = results.sent.values["prototypes"].double().flatten(1)  # [K, C D]
            labels, q = group_clients(vectors, self.config.groups, self.setting.seed)
            groups = server["groups"].index_copy(0, results.ids, labels)
            return fl.Update({"groups": groups}, metrics={"groups": int(groups.max()) + 1, "q": q})

        numbers = torch.arange(len(server[PRESENT]))[:, None]  # [J, 1]
        weights = (server["groups"][results.ids] == numbers) * self.weights(results)  # [J, K]
        if not bool(weights.any()):
            return fl.Update()
        intra = intra_group_means(stripped(INTRA, server), results.sent, weights)  # lines 13-14
        rho = group_weights(intra)  # eq. 5-6
        inter = mix_groups(intra, rho)  # eq. 7-8
        seen = intra[PRESENT].any(dim=1)
        metrics = {"rho_self": float(rho.diag()[seen].mean())}
        return fl.Update(inter | prefixed(INTRA, intra), metrics=metrics)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the groups of the clients."""
        about = "Group of each client, by the prototypes of the seeded net."
        members = one_hot(state.server["groups"], len(state.server[PRESENT])).T
        return (fl.LearnedTable("groups", about, members.double(), rows="group"),)

    # Deployment: theta^(c(i)) with the client's head, and the global model.

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        heads, shared = self.split()
        models = {"personal": fl.Deployment(self.dispatch(state, ids))}
        if heads - self.personal():  # clients keep BatchNorm statistics
            return models

        # Each group counts by the samples of its clients.
        server, samples = state.server, self.setting.sizes.double()
        sizes = server["groups"].bincount(samples, minlength=len(server[PRESENT]))  # [J]
        net = mix_groups(fl.only(server, shared | {*TABLE}), sizes[None] / sizes.sum())
        net |= fl.repeat(fl.only(server, heads), 1)
        nearest = None
        if self.config.gm == "mean_head":
            net |= mix(fl.only(state.clients, heads), samples[None] / samples.sum())
        if self.config.gm == "nearest_proto":
            nearest = NearestPrototype(own=False, prototypes=PROTOTYPES, present=PRESENT)
        gm = fl.Message({name: value[0] for name, value in net.items()})
        return models | {"gm": fl.Deployment(fl.Dispatch(gm), predict=nearest)}


# Set-up: the clients' groups, by principal components and k-means (scikit-learn).


def group_clients(vectors: Tensor, groups: int, seed: int) -> tuple[Tensor, int]:
    """Return the group c(i) of each client and the number of principal components q.

    Args:
        vectors: [K, C D] float64, the prototypes of each client.
        groups: Number of groups J. There are fewer groups if fewer clients differ.
        seed: Seed of the run.

    Returns:
        [K] int64 labels, numbered from 0, and q.
    """
    points = principal_components(vectors)
    kmeans_seed = int(fl.generator(seed, "method").integers(2**32))
    labels = kmeans(points, groups, kmeans_seed)
    return torch.from_numpy(labels), points.shape[1]


def principal_components(vectors: Tensor) -> Points:
    """Return the coordinates of vectors [K, M] along their first principal components, [K, q].

    q is the fewest components that reach 90 % of the variance, and at most 32.
    """
    from sklearn.decomposition import PCA

    points: Points = PCA(VARIANCE, svd_solver="full").fit_transform(vectors.numpy())
    return points[:, :MOST_COMPONENTS]


def kmeans(points: Points, groups: int, seed: int) -> Labels:
    """Return the group [K] of each point [K, q] by k-means, the best of ten starts.

    Groups are numbered in the order of their first members. scikit-learn gives a group that becomes
    empty the point that is farthest from its own centre.
    """
    from sklearn.cluster import KMeans

    found = KMeans(min(groups, len(points)), n_init=10, random_state=seed).fit_predict(points)
    _, first, inverse = np.unique(found, return_index=True, return_inverse=True)
    labels: Labels = first.argsort().argsort()[inverse]
    return labels


# Each round


def class_pull(context: fl.Context, squared: bool) -> Tensor:
    """Return L_p of eq. 3 for a batch; 0 if no class of the batch has a prototype.

    The distance is sqrt(||.||^2 + 1e-12), which has a gradient at 0, or, if `squared`, the mean
    square over the D features.
    """
    batch, features, ctx = context.batch, context.out.features, context.ctx
    with full_precision(features):
        table = ctx[PROTOTYPES].to(wide(features, ctx[PROTOTYPES]))  # [C, D]
        sums, counts = class_sums(features.to(table.dtype), batch.y, len(table), batch.mask)
        squares = (sums / counts.clamp_min(1)[:, None] - table).square()  # [C, D]
        of_class = squares.mean(dim=1) if squared else (squares.sum(dim=1) + EPSILON).sqrt()
        return torch.where((counts > 0) & ctx[PRESENT], of_class, 0.0).sum()


# A group is a backbone and a table of prototypes, with a leading axis J.


def intra_group_means(old: fl.Tree, sent: fl.Message, weights: Tensor) -> fl.Tree:
    """Return theta^_j and P^_j: the weighted means over the clients of each group, [J, ...] each.

    Args:
        old: Backbones and tables of the groups, [J, ...] each. A group without a client keeps its
            own, and so does a class that no client of the group holds.
        sent: Leaves of the net [K, ...] and `prototypes` [K, C, D] from the clients. The mask
            [K, C] of the latter says which classes a client holds.
        weights: [J, K] >= 0, with 0 for clients of other groups.
    """
    rows = {name: value for name, value in sent.values.items() if name in old}
    means = [fl.weighted_mean(rows, row) for row in weights]  # empty for a group without a client
    groups = {
        name: torch.stack([mean.get(name, old[name][j]) for j, mean in enumerate(means)])
        for name in rows
    }

    table, held = mean_tables(sent.values["prototypes"], sent.mask["prototypes"], weights)
    groups[PROTOTYPES] = torch.where(held[:, :, None], table, old[PROTOTYPES])
    groups[PRESENT] = held | old[PRESENT]
    return groups


def mean_tables(tables: Tensor, present: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted means of prototypes, class by class, over the tables that have the class.

    Args:
        tables: [K, C, D] prototypes.
        present: [K, C] bool: the classes that each table has.
        weights: [R, K] >= 0, one row per receiver.

    Returns:
        Prototypes [R, C, D] in the dtype of `tables`, and flags [R, C] bool of classes with a
        positive weight.
    """
    weights, held = weights.double(), present.double()
    total = weights @ held  # [R, C]
    own = tables.double() * held[:, :, None]
    sums = torch.einsum("rk,kcd->rcd", weights, own)
    mean = sums / total.clamp_min(EPSILON)[:, :, None]
    return mean.to(tables.dtype), total > 0


def table_cosines(tables: Tensor, present: Tensor) -> Tensor:
    """Return M of eq. 5-6: cosines [J, J] float64 of tables, over the classes that both have.

    The diagonal is 1. Two tables without a common class have cosine 0.
    """
    held = present.double()
    own = tables.double() * held[:, :, None]
    # squares[j, l]: squared norm of table j over the classes of table l
    squares = own.square().sum(dim=2) @ held.T  # [J, J]
    norms = (squares * squares.T).sqrt().clamp_min(EPSILON)
    return (torch.einsum("jcd,lcd->jl", own, own) / norms).fill_diagonal_(1.0)


def group_weights(groups: fl.Tree) -> Tensor:
    """Return rho of eq. 5-6: row j is what group j takes from each group.

    Args:
        groups: P^_j [J, C, D] and flags [J, C] under the names of `TABLE`. A group without any
            class has not had a participant.

    Returns:
        [J, J] float64 in [0, 1]; every row sums to 1. A group without a participant gives nothing,
        and takes equal parts of the others.
    """
    seen = groups[PRESENT].any(dim=1)  # [J]
    scores = table_cosines(groups[PROTOTYPES], groups[PRESENT])  # M, [J, J]
    scores = torch.where(seen[:, None], scores, 1.0) * seen
    return simplex(scores, torch.eye(len(seen)), dim=1)


def mix_groups(groups: fl.Tree, weights: Tensor) -> fl.Tree:
    """Return backbones and tables [R, ...] mixed from those of the groups [J, ...] (eq. 7-8).

    The weights [R, J] have a row for each receiver. The prototype of a class is the mean over the
    groups that have one.
    """
    net = {name: value for name, value in groups.items() if name not in TABLE}
    table, present = mean_tables(groups[PROTOTYPES], groups[PRESENT], weights)
    return mix(net, weights) | {PROTOTYPES: table, PRESENT: present}
