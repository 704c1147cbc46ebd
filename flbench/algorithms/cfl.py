"""CFL: clusters of clients split in two where updates differ (Sattler, Mueller, Samek, 2021)."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from pydantic import Field
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.mixing import pairwise_cosines
from flbench.algorithms.shared.prefixes import prefixed, stripped

THRESHOLDS = {"absolute": (0.4, 1.6), "relative": (0.1, 0.5)}  # defaults of eps1 and eps2

DELTA = "delta."  # prefix of each client's latest update on the server, [N, ...]
SEEN = "seen"  # [N] int64, the round of that update; -1 for none

SPLITS = "tree"  # [S, 2] int64, the cluster of each split and the new one that left it
AT_SPLIT = "tree.w."  # prefix of the model of the cluster before the split, [S, ...]
SIDES = "tree.sides."  # prefix of the mean directions of both parts' updates, [S, 2, ...]
TRIED = "tried."  # prefix of a new client's updates from these models, [S, ...]

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
    split and compares with the most similar one. Here the server keeps the mean of the parts'
    normalized updates, and compares mean cosines, because updates of all clients at all splits
    would need many times the memory. A new client trains from the models of all splits at once.
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

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        """Return the server's tree with one cluster of all clients, and the clients' tree.

        Leaves of the net get a leading axis [clusters], which has length 1 before the first split.
        Further entries are `cluster` [N] int64, the cluster of each client; `peak` [clusters]
        float64, the largest norm of the mean update so far; `delta.NAME` [N, ...], the latest
        update of each client, for each parameter NAME; and `seen` [N] int64, the round of that
        update or -1 for none. `tree` [S, 2] int64, `tree.w.NAME` [S, ...] and `tree.sides.NAME`
        [S, 2, ...] have the splits so far, of which there are none.
        """
        shared, clients = super().init(start)
        n = self.setting.clients
        server = {name: value[None] for name, value in shared.items()}  # [clusters, ...] each
        server["cluster"] = torch.zeros(n, dtype=torch.int64)  # of each client
        server["peak"] = torch.zeros(1, dtype=torch.float64)  # largest mean norm of each cluster
        parameters = self.setting.net.parameters
        server |= no_splits(shared, fl.only(start, parameters))
        return server | no_updates(start, parameters, n), clients

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
        cluster, peaks = server["cluster"], server["peak"].tolist()
        cluster_of = cluster[ids]  # [K]
        parameters = self.setting.net.parameters
        updates = {name: sent[name] - server[name][cluster_of] for name in parameters}
        server |= with_updates(server, ids, updates, state.round)

        models = {name: list(server[name]) for name in sent}  # [...] for each cluster
        norms_found = []
        for c in sorted(set(cluster_of.tolist())):
            mean_norm, largest = norms(fl.take(updates, cluster_of == c))
            norms_found.append((mean_norm, largest))
            peaks[c] = max(peaks[c], mean_norm)
            if not self.stalls(mean_norm, largest, peaks[c], state.round):
                continue

            # The leaving part becomes a new cluster, which begins with w_c too.
            members = torch.nonzero(cluster == c)[:, 0]
            leaving = self.leaving(server, members, state.round)
            if len(leaving):
                server |= self.with_split(server, members, leaving, c, len(peaks), state.round)
                cluster = cluster.index_fill(0, leaving, len(peaks))
                peaks.append(peaks[c])
                for values in models.values():
                    values.append(values[c])

        # w_c <- w_c + mean dW_i, computed as the mean of w_i, for the clusters after the splits
        cluster_of = cluster[ids]  # [K]
        for c in sorted(set(cluster_of.tolist())):
            inside = torch.where(cluster_of == c, weights, 0.0)
            for name, value in fl.weighted_mean(sent, inside).items():
                models[name][c] = value

        server |= {name: torch.stack(values) for name, values in models.items()}
        server |= {"cluster": cluster, "peak": torch.tensor(peaks, dtype=torch.float64)}

        mean_norm, largest = min(norms_found)  # of the cluster that is nearest to a split
        metrics = {"clusters": float(len(peaks)), "mean_norm": mean_norm, "max_norm": largest}
        return fl.Update(server, metrics=metrics)

    def with_split(
        self, server: fl.Tree, members: Tensor, leaving: Tensor, c: int, new: int, t: int
    ) -> fl.Tree:
        """Return the server's entries on splits after cluster c was split in round t.

        Args:
            server: The server's tree, with this round's updates and the models before it.
            members: Ids of the clients of the cluster.
            leaving: Ids of those that leave it.
            c: The cluster.
            new: Number of the cluster that they form.
            t: The round.
        """
        known = members[has_recent_update(server, members, t, self.config.max_age)]
        leaves, units = torch.isin(known, leaving), normalized(latest_updates(server, known))
        sides = (fl.weighted_mean(units, side.double()) for side in (~leaves, leaves))
        stay, leave = (prefixed(SIDES, side) for side in sides)
        entry = {SPLITS: torch.tensor([c, new])}
        entry |= prefixed(AT_SPLIT, {name: server[name][c] for name in stripped(AT_SPLIT, server)})
        entry |= {name: torch.stack([stay[name], leave[name]]) for name in stay}
        return {
            name: torch.cat([server[name], value[None].to(server[name].dtype)])
            for name, value in entry.items()
        }

    def join(self, state: fl.State, ids: Tensor) -> fl.Joining | None:
        """Return how a new client finds its cluster, if there is more than one."""
        if not len(state.server[SPLITS]):
            return None
        count, parameters = len(state.server[SPLITS]), self.setting.net.parameters
        models = {name: value for name, value in state.server.items() if name.startswith(AT_SPLIT)}
        names, steps = tuple(stripped(AT_SPLIT, models)), list[fl.Step]()
        for s in range(count):
            difference = fl.Transform(WriteUpdate(tuple(parameters), s))
            steps += [fl.Transform(LoadSplit(names, s)), self.phase(*self.terms()), difference]
        sends = frozenset(f"{TRIED}{s}.{name}" for s in range(count) for name in parameters)
        program = fl.LocalProgram(tuple(steps), sends=sends)
        return fl.Joining(fl.Dispatch(fl.Message(models)), program, aggregate=self.place)

    def place(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Return the clusters with those of new clients, found from their updates."""
        sent, splits = results.sent.values, state.server[SPLITS].tolist()
        found = torch.zeros(len(results.ids), dtype=torch.int64)
        for s, (c, new) in enumerate(splits):
            mine = stripped(f"{TRIED}{s}.", sent)  # [K, ...] each
            sides = {name: rows[s] for name, rows in stripped(SIDES, state.server).items()}
            # [K, 2], mean cosines with both parts times the norm of the client's update
            products = torch.zeros(len(found), 2, dtype=torch.float64)
            for name, rows in mine.items():
                products += rows.double().flatten(1) @ sides[name].double().flatten(1).T
            goes = (found == c) & (products[:, 1] > products[:, 0])
            found[goes] = new
        return fl.Update({"cluster": state.server["cluster"].index_copy(0, results.ids, found)})

    def learned(self, state: fl.State) -> tuple[fl.Learned, ...]:
        """Return the clusters of the clients."""
        about = "Cluster of each client after the last round. All clients begin in cluster 0."
        count = len(state.server["peak"])
        return (fl.LearnedTable.of_groups("clusters", about, state.server["cluster"], count),)

    def stalls(self, mean_norm: float, largest: float, peak: float, t: int) -> bool:
        """Return whether a cluster should be split in round t, counted from 0.

        Args:
            mean_norm: Norm of the cluster's mean update in this round.
            largest: Largest norm of an update in it.
            peak: Largest norm that its mean update has had so far.
            t: The round.
        """
        eps1, eps2 = THRESHOLDS[self.config.thresholds]
        eps1 = eps1 if self.config.eps1 is None else self.config.eps1
        eps2 = eps2 if self.config.eps2 is None else self.config.eps2
        scale = peak if self.config.thresholds == "relative" else 1.0
        return t >= self.config.start_round and mean_norm < scale * eps1 and largest > scale * eps2

    def leaving(self, server: fl.Tree, members: Tensor, t: int) -> Tensor:
        """Return the ids of the clients that leave a cluster in round t, or none if it stays whole.

        Args:
            server: The server's tree, with this round's updates.
            members: Ids of the clients of the cluster.
            t: The round.
        """
        usable = has_recent_update(server, members, t, self.config.max_age)
        known = members[usable]
        too_few = len(known) < self.config.coverage * len(members) - 1e-9
        if len(members) <= self.config.min_size or too_few:
            return members[:0]

        leaves = bipartition(latest_updates(server, known))
        if 2 * int(leaves.sum()) > len(known):
            return torch.cat([known[leaves], members[~usable]])
        return known[leaves]

    def notes(self) -> list[str]:
        c, share, notes = self.config, self.setting.train.participation, []
        if c.eps1 == 0 or self.setting.rounds <= c.start_round:
            notes.append(
                "CFL cannot split before the end (algorithm.eps1, algorithm.start_round): it is"
                f" FedAvg with algorithm.agg_weights={c.agg_weights}."
            )
        known = 1 - (1 - share) ** (c.max_age + 1)
        if known < c.coverage:
            notes.append(
                f"CFL splits a cluster if {c.coverage:.0%} of its clients have a recent update;"
                f" with train.participation={share} about {known:.0%} have one: raise"
                f" algorithm.max_age."
            )
        return notes

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        return {"personal": fl.Deployment(self.dispatch(state, ids))}


@dataclass(frozen=True)
class LoadSplit:
    """Function of a Transform: writes the model before a split into the leaves.

    Attributes:
        names: Names of the leaves.
        split: Number of the split.
    """

    names: tuple[str, ...]
    split: int

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the leaves of the model."""
        return {name: context.ctx[AT_SPLIT + name][self.split] for name in self.names}


@dataclass(frozen=True)
class WriteUpdate:
    """Function of a Transform: writes the update from the model before a split, to be sent.

    Attributes:
        names: Names of the parameters.
        split: Number of the split.
    """

    names: tuple[str, ...]
    split: int

    def __call__(self, context: fl.Context) -> fl.Tree:
        """Return the leaves minus those of the model."""
        return {
            f"{TRIED}{self.split}.{name}": context.leaves[name]
            - context.ctx[AT_SPLIT + name][self.split]
            for name in self.names
        }


def no_splits(shared: fl.Tree, parameters: fl.Tree) -> fl.Tree:
    """Return the server's entries on splits before the first one.

    Args:
        shared: Leaves of the seeded net that are sent.
        parameters: Its parameters.
    """
    entries = {SPLITS: torch.zeros(0, 2, dtype=torch.int64)}
    entries |= prefixed(
        AT_SPLIT, {name: one.new_zeros(0, *one.shape) for name, one in shared.items()}
    )
    sides = {name: one.new_zeros(0, 2, *one.shape) for name, one in parameters.items()}
    return entries | prefixed(SIDES, sides)


def normalized(updates: fl.Tree) -> fl.Tree:
    """Return updates [K, ...] of clients, each divided by its norm over all leaves, in float64."""
    rows = {name: value.double() for name, value in updates.items()}
    squares = [value.flatten(1).square().sum(dim=1) for value in rows.values()]  # [K] each
    norm = torch.stack(squares).sum(dim=0).sqrt()  # [K]
    scale = 1 / norm.clamp_min(torch.finfo(torch.float64).tiny)
    return {
        name: scale.reshape(-1, *(1,) * (value.ndim - 1)) * value for name, value in rows.items()
    }


def no_updates(start: fl.Tree, names: Iterable[str], clients: int) -> fl.Tree:
    """Return the server's entries before the first round, for updates of the leaves `names`."""
    # Views of one zero: the first round makes tensors of them.
    zeros = {name: start[name].new_zeros(()).expand(clients, *start[name].shape) for name in names}
    return prefixed(DELTA, zeros) | {SEEN: torch.full((clients,), -1)}


def with_updates(server: fl.Tree, ids: Tensor, updates: fl.Tree, t: int) -> fl.Tree:
    """Return the server's entries after clients `ids` [K] sent updates [K, ...] in round t."""
    entries = {
        name: server[name].index_copy(0, ids, value)
        for name, value in prefixed(DELTA, updates).items()
    }
    return entries | {SEEN: server[SEEN].index_fill(0, ids, t)}


def latest_updates(server: fl.Tree, ids: Tensor) -> fl.Tree:
    """Return the latest updates of clients `ids` [K], [K, ...] each."""
    return fl.take(stripped(DELTA, server), ids)


def has_recent_update(server: fl.Tree, ids: Tensor, t: int, age: int) -> Tensor:
    """Return [K] bool: whether a client's latest update is at most `age` rounds old in round t."""
    seen = server[SEEN][ids]
    return (seen >= 0) & (t - seen <= age)


def norms(updates: fl.Tree) -> tuple[float, float]:
    """Return the norm of the mean update and the largest norm of an update.

    The leaves of a client count as one vector.

    Args:
        updates: [K, ...] per leaf, K >= 1.
    """
    clients = len(next(iter(updates.values())))
    mean = fl.weighted_mean(updates, torch.ones(clients))
    squares = torch.zeros(clients, dtype=torch.float64)
    for value in updates.values():
        norm = torch.linalg.vector_norm(value.reshape(clients, -1), dim=1, dtype=torch.float64)
        squares += norm.square()
    of_mean = sum(float(value.double().square().sum()) for value in mean.values())
    return sqrt(of_mean), sqrt(float(squares.max()))


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
