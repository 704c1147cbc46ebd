"""CFL: clusters of clients split in two where updates differ (Sattler, Mueller, Samek, 2021)."""

from math import sqrt
from typing import Literal

import torch
from pydantic import Field
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn.functional import one_hot

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import pairwise_cosines
from flbench.algorithms.shared.prefixes import prefixed, stripped

THRESHOLDS = {"absolute": (0.4, 1.6), "relative": (0.1, 0.5)}  # defaults of eps1 and eps2

DELTA = "delta."  # prefix of each client's latest update on the server, [N, ...]
SEEN = "seen"  # [N] int64, the round of that update; -1 for none
TRIED = "tried."  # prefix of a new client's updates from the models before the splits
SAME_COSINE = 1e-9  # cosines that differ by less are taken as equal


@fl.ALGORITHMS.register("cfl")
class Cfl(fl.Algorithm):
    """Each cluster of clients runs FedAvg; a cluster that stalls is split in two.

    Server: w_c <- w_c + mean over P_c of dW_i, with dW_i = w_i - w_c for the participants P_c of
    cluster c. A cluster stalls if ||mean dW_i|| < eps1 and max ||dW_i|| > eps2. It is then split by
    complete-linkage clustering of the cosines cos(dW_i, dW_j), before the mean: in the round of the
    split, each part adds the mean update of its own participants to the common w_c. All clients
    begin in one cluster. A client receives the model of its cluster and sends w_i. Source: the
    paper's two criteria; the clustering, the order of split and mean, the defaults and the guards
    (`min_size`, `start_round`) are those of the authors' code.

    A client that joins later goes down the tree of splits, as in the paper's algorithm for new
    clients: at each split of its cluster it trains from the model before the split, and goes with
    the part whose updates were more similar to its own by the cosine.

    Deviations: w_i is sent, not dW_i, which has the same size, so that a run without a split equals
    FedAvg to the bit. The authors train all clients in every round. Here the latest update of an
    absent client is used for `max_age` rounds, and clients without one join the larger part. A part
    without a participant in the round of the split keeps w_c. The server refers to clients by id;
    the authors' code refers to them by their position in the cluster, which names wrong clients
    from the second split on. For new clients the paper keeps the updates of all clients at each
    split and compares with the most similar one. Here mean cosines with both parts are compared,
    because updates of all clients at all splits would need many times the memory. A new client
    trains from the models of all splits at once.
    """

    class Config(fl.UniformConfig):
        """Keys of CFL.

        Thresholds depend on net, learning rate and epochs: look at the logged norms.
        """

        thresholds: Literal["absolute", "relative"] = Field(
            "absolute",
            description="unit of eps1 and eps2: norms, or shares of the largest norm that the mean"
            " update of the cluster has had",
        )
        eps1: float | None = Field(
            None,
            ge=0,
            description="a cluster splits only if the norm of its mean update is below this"
            " (default 0.4; relative: 0.1)",
        )
        eps2: float | None = Field(
            None,
            ge=0,
            description="a cluster splits only if the largest norm of an update in it is above this"
            " (default 1.6; relative: 0.5)",
        )
        min_size: int = Field(
            2, ge=1, description="a cluster splits only if it has more clients than this"
        )
        start_round: int = Field(
            20, ge=0, description="clusters split only from this round on; the first round is 0"
        )
        max_age: int = Field(
            10,
            ge=0,
            description="age in rounds up to which an absent client's latest update is used",
        )
        coverage: float = Field(
            0.8,
            gt=0,
            le=1,
            description="a cluster splits only if this share of its clients has an update in use",
        )

    config: Config
    by_client = (("cluster", (0,)), (SEEN, (0,)), (DELTA, (0,)))
    paper = fl.Paper(
        "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under"
        " Privacy Constraints",
        "Sattler, Mueller, Samek",
        "IEEE TNNLS 2021",
        "10.1109/TNNLS.2020.3015958",
    )
    communication = fl.Communication(down="w of the client's cluster", up="w", keeps="nothing")
    settles = 0.5  # start_round: before it there is one cluster

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        """Return the server's tree with one cluster of all clients, and the clients' tree.

        Leaves of the net get a leading axis [clusters]. Further entries are `cluster` [N] int64,
        the cluster of each client; `peak` [clusters] float64, the largest norm of the mean update
        so far; the clients' latest updates with their rounds; and the tree of splits.
        """
        shared, clients = super().init(start)
        n = self.setting.clients
        parameters = fl.only(start, self.setting.net.parameters)
        # Views of one zero: the first round makes tensors of them.
        zeros = {k: one.new_zeros(()).expand(n, *one.shape) for k, one in parameters.items()}
        server = {name: value[None] for name, value in shared.items()}
        server["cluster"] = torch.zeros(n, dtype=torch.int64)
        server["peak"] = torch.zeros(1, dtype=torch.float64)
        server |= prefixed(DELTA, zeros) | {SEEN: torch.full((n,), -1)}
        return server | ParameterTree.empty(shared, parameters), clients

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        if state.is_initial:
            return fl.Dispatch()
        models = fl.only(state.server, self.setting.net.names("all"))
        return fl.Dispatch(rows=fl.Message(fl.take(models, state.server["cluster"][ids])))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        # A client without a step has no update: it received what it sent.
        moved = results.steps > 0
        if not moved.any():
            return fl.Update()
        ids, weights = results.ids[moved], self.weights(results)[moved]
        sent = fl.take(results.sent.values, moved)

        # dW_i = w_i - w_c, remembered for rounds in which the client is absent
        server = dict(state.server)
        cluster = server["cluster"][ids]  # [K]
        updates = {name: sent[name] - server[name][cluster] for name in self.setting.net.parameters}
        for name, value in prefixed(DELTA, updates).items():
            server[name] = server[name].index_copy(0, ids, value)
        server[SEEN] = server[SEEN].index_fill(0, ids, state.round)

        found = []
        for c in sorted(set(cluster.tolist())):
            mean_norm, largest = norms(fl.take(updates, cluster == c))
            found.append((mean_norm, largest))
            peak = max(float(server["peak"][c]), mean_norm)
            server["peak"] = server["peak"].index_fill(0, torch.tensor(c), peak)
            if self.stalls(mean_norm, largest, peak, state.round):
                server |= self.split_in_two(server, c, state.round)

        # w_c <- w_c + mean dW_i, computed as the mean of w_i, for the clusters after the splits
        server |= {name: server[name].clone() for name in sent}
        cluster = server["cluster"][ids]
        for c in sorted(set(cluster.tolist())):
            mean = fl.weighted_mean(sent, torch.where(cluster == c, weights, 0.0))
            for name, value in mean.items():
                server[name][c] = value

        mean_norm, largest = min(found)  # of the cluster that is nearest to a split
        count = float(len(server["peak"]))
        metrics = {"clusters": count, "mean_norm": mean_norm, "max_norm": largest}
        return fl.Update(server, metrics=metrics)

    def stalls(self, mean_norm: float, largest: float, peak: float, t: int) -> bool:
        """Return whether a cluster with these norms is split in round t, counted from 0.

        `peak` is the largest norm that its mean update has had so far.
        """
        eps1, eps2 = THRESHOLDS[self.config.thresholds]
        eps1 = eps1 if self.config.eps1 is None else self.config.eps1
        eps2 = eps2 if self.config.eps2 is None else self.config.eps2
        scale = peak if self.config.thresholds == "relative" else 1.0
        return t >= self.config.start_round and mean_norm < scale * eps1 and largest > scale * eps2

    def split_in_two(self, server: fl.Tree, c: int, t: int) -> fl.Tree:
        """Return the server's entries after cluster c was split in round t; none if it stays whole.

        `server` has this round's updates, and the models before it.
        """
        members = torch.nonzero(server["cluster"] == c)[:, 0]
        seen = server[SEEN][members]
        is_recent = (seen >= 0) & (t - seen <= self.config.max_age)
        known = members[is_recent]
        too_few = len(known) < self.config.coverage * len(members) - 1e-9
        if len(members) <= self.config.min_size or too_few:
            return {}
        updates = fl.take(stripped(DELTA, server), known)
        goes = bipartition(updates)  # [K] bool
        if not goes.any():
            return {}

        leaving = known[goes]
        if 2 * len(leaving) > len(known):  # clients without an update join the larger part
            leaving = torch.cat([leaving, members[~is_recent]])
        model = {name: server[name][c] for name in self.split()[1]}
        entries = ParameterTree(server).grown(c, model, updates, goes)
        # The leaving part becomes a new cluster, which begins with w_c too.
        for name in ("peak", *model):
            entries[name] = torch.cat([server[name], server[name][c][None]])
        return entries | {"cluster": server["cluster"].index_fill(0, leaving, len(server["peak"]))}

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        return {"personal": fl.Deployment(self.dispatch(state, ids))}

    # Clients that join later

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining | None:
        """Return how a new client finds its cluster, if there is more than one."""
        tree, parameters = ParameterTree(state.server), self.setting.net.parameters
        if not tree.parents:
            return None
        steps, models = list[fl.Step](), tree.models()
        for s in range(len(tree.parents)):
            load = fl.Transform(fl.bind(model_before, s, tuple(stripped(BEFORE, models))))
            steps += [load, self.phase(*self.terms())]
            steps += [fl.Transform(fl.bind(tried_update, s, parameters))]
        sends = {f"{TRIED}{s}.{name}" for s in range(len(tree.parents)) for name in parameters}
        program = fl.LocalProgram(tuple(steps), sends=frozenset(sends))
        return fl.Joining(fl.Dispatch(fl.Message(models)), program, aggregate=self.place)

    def place(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Return the clusters, in which new clients have those of their updates."""
        found = ParameterTree(state.server).clusters(results.sent.values, len(results.ids))
        return fl.Update({"cluster": state.server["cluster"].index_copy(0, results.ids, found)})

    # Messages and reports

    def notes(self) -> list[str]:
        c, share, notes = self.config, self.setting.train.participation, []
        if self.setting.rounds <= c.start_round:
            notes.append(
                f"CFL splits no cluster before round {c.start_round} (algorithm.start_round), after"
                f" the last one of train.rounds={self.setting.rounds}."
            )
        known = 1 - (1 - share) ** (c.max_age + 1)
        if known < c.coverage:
            notes.append(
                f"CFL splits a cluster if {c.coverage:.0%} of its clients have a recent update;"
                f" with train.participation={share} about {known:.0%} have one: raise"
                f" algorithm.max_age."
            )
        return notes

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return the clusters of the clients."""
        about = "Cluster of each client after the last round. All clients begin in cluster 0."
        members = one_hot(state.server["cluster"], len(state.server["peak"])).T
        return (fl.LearnedTable("clusters", about, members.double(), rows="group"),)


PARENTS, BEFORE, DIRECTION = "tree", "tree.w.", "tree.direction."  # in the server's tree


class ParameterTree:
    """The S splits so far, down which a client goes that joins after the training.

    Split s took the new cluster s + 1 from the cluster `tree` [S] int64. `tree.w.NAME` [S, ...] are
    models of the clusters before the splits, and `tree.direction.NAME` [S, ...] float64 the mean of
    the normalized updates of the part that left, minus that of the other. An update that is more
    similar to those of the part that left, by the mean cosine, has a positive product with it.

    Args:
        server: The server's tree with these entries.
    """

    def __init__(self, server: fl.Tree) -> None:
        self.server = server
        self.parents: list[int] = server[PARENTS].tolist()

    @staticmethod
    def empty(model: fl.Tree, parameters: fl.Tree) -> fl.Tree:
        """Return the entries without a split."""
        trees = prefixed(BEFORE, model) | prefixed(DIRECTION, parameters)
        none = {name: value.new_zeros(0, *value.shape) for name, value in trees.items()}
        none |= {name: none[name].double() for name in prefixed(DIRECTION, parameters)}
        return none | {PARENTS: torch.zeros(0, dtype=torch.int64)}

    def grown(self, c: int, model: fl.Tree, updates: fl.Tree, goes: Tensor) -> fl.Tree:
        """Return the entries with one more split.

        Args:
            c: The cluster.
            model: Its model before the split.
            updates: Updates of its clients, [K, ...] per parameter.
            goes: [K] bool, which of them leave the cluster.
        """
        stay, leave = (~goes).double(), goes.double()  # [K]
        share = leave / leave.sum() - stay / stay.sum()
        share /= client_norms(updates).clamp_min(torch.finfo(torch.float64).tiny)
        direction = {k: torch.tensordot(share, rows.double(), 1) for k, rows in updates.items()}
        entry = prefixed(BEFORE, model) | prefixed(DIRECTION, direction)
        entry[PARENTS] = torch.tensor(c)
        return {name: torch.cat([self.server[name], one[None]]) for name, one in entry.items()}

    def models(self) -> fl.Tree:
        """Return the entries that a new client trains from."""
        return {name: one for name, one in self.server.items() if name.startswith(BEFORE)}

    def clusters(self, tried: fl.Tree, clients: int) -> Tensor:
        """Return the clusters [K] of K new clients, which begin in the first one.

        `tried` are their updates, `tried.S.NAME` [K, ...] for each split S and parameter.
        """
        found, directions = (
            torch.zeros(clients, dtype=torch.int64),
            stripped(DIRECTION, self.server),
        )
        for s, c in enumerate(self.parents):
            product = torch.zeros(clients, dtype=torch.float64)
            for name, rows in stripped(f"{TRIED}{s}.", tried).items():
                product += rows.double().flatten(1) @ directions[name][s].flatten()
            found[(found == c) & (product > 0)] = s + 1
        return found


def model_before(context: fl.Context, s: int, names: tuple[str, ...]) -> fl.Tree:
    """Return the model before split s as the client's leaves."""
    return {name: context.ctx[BEFORE + name][s] for name in names}


def tried_update(context: fl.Context, s: int, names: tuple[str, ...]) -> fl.Tree:
    """Return the update from the model before split s, to be sent."""
    before, leaves = model_before(context, s, names), context.leaves
    return {f"{TRIED}{s}.{name}": leaves[name] - before[name] for name in names}


def client_norms(updates: fl.Tree) -> Tensor:
    """Return the norms [K] float64 of clients' updates, [K, ...] per leaf, over all leaves."""
    squares = torch.zeros((), dtype=torch.float64)
    for value in updates.values():
        norm = torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float64)
        squares = squares + norm.square()
    return squares.sqrt()


def norms(updates: fl.Tree) -> tuple[float, float]:
    """Return the norm of the mean update and the largest norm of an update, [K, ...] per leaf."""
    each = client_norms(updates)
    mean = fl.weighted_mean(updates, torch.ones(len(each)))
    of_mean = sum(float(value.double().square().sum()) for value in mean.values())
    return sqrt(of_mean), float(each.max())


def bipartition(updates: fl.Tree) -> Tensor:
    """Return [K] bool: False for the part that contains the first client, True for the other part.

    The parts are the two clusters of complete linkage on 1 - cosine of the clients' updates. All
    entries are False, so that nothing is split, if K = 1, if all cosines between different clients
    are equal (K > 2), or if the cosine of the only pair is 1 (K = 2).

    Args:
        updates: Updates of the clients, [K, ...] per leaf.

    >>> bipartition({"w": torch.tensor([[1.0, 0.0], [0.0, 1.0]])})  # one pair, cosine 0
    tensor([False,  True])
    """
    cosines = pairwise_cosines(updates, updates)  # [K, K]
    clients = len(cosines)
    others = cosines[~torch.eye(clients, dtype=torch.bool)]
    if clients < 2:
        return torch.zeros(clients, dtype=torch.bool)
    # Two clients have one cosine; it is compared with 1, the cosine of equal updates.
    largest = others.max() if clients > 2 else 1.0
    if float(largest - others.min()) < SAME_COSINE:
        return torch.zeros(clients, dtype=torch.bool)

    # A cosine may exceed 1 by rounding, and scipy accepts no distance below 0.
    distance = (1.0 - cosines).clamp_min(0.0).fill_diagonal_(0.0)
    condensed = squareform(distance.numpy(), checks=False)
    label = torch.from_numpy(cut_tree(linkage(condensed, "complete"), 2)[:, 0].copy())  # [K]
    return label != label[0]
