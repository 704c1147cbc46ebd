"""FedPC: clients grouped by prototypes, groups mixed by their cosines (Liu et al., 2025)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared import grouping, groups, mixing, prototypes
from flbench.algorithms.shared.prefixes import prefixed, stripped
from flbench.algorithms.shared.simplex import simplex, softmax_among
from flbench.client.program import LocalProgram, Statistic
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.tree import only, repeat
from flbench.core.types import Dispatch, Message, Results, Stage, State, Tree, Update
from flbench.losses import ClassPull, CrossEntropy, class_pull

Gm = Literal["init_head", "mean_head", "nearest_proto", "none"]


class FedPcConfig(UniformConfig):
    """Keys of FedPC. J, q, the mixture's options and the head of GM are open in the paper."""

    groups: Literal["auto"] | PositiveInt = Field(5, description="J; auto: by silhouette, 2 to 10")
    components: int | None = Field(None, ge=1, description="q (default: 90 % of variance, <= 32)")
    fill: grouping.Fill = Field("zero", description="vector of a class not held")
    cluster_after: int = Field(0, ge=0, description="rounds of FedPer before clients are grouped")
    alpha: float = Field(0.5, ge=0, description="weight of cross entropy")
    gamma: float = Field(0.5, ge=0, description="weight of the pull to the group's prototypes")
    pull: class_pull.Form = Field("class_mean", description="class_mean: eq. 3; repel: the text")
    center: bool = Field(False, description="cosines of prototypes less their mean over groups")
    temperature: float | None = Field(None, gt=0, description="rho = softmax(cosine / temperature)")
    size_weighted: bool = Field(False, description="rho in proportion to a group's samples too")
    single_global: bool = Field(False, description="one mixture for all groups (Algorithm 1)")
    gm: Gm = Field("init_head", description="what classifies where GM is evaluated")
    group_heads: bool = Field(False, description="charge traffic between the heads of groups")


@ALGORITHMS.register("fedpc")
class FedPc(Algorithm):
    """Each group has a backbone theta and prototypes P; heads stay with the clients.

    A model per group (eq. 7-8), not Algorithm 1's one. Published are gm, pm_v@local, pm_l@local.
    """

    Config: ClassVar[type[AlgorithmConfig]] = FedPcConfig
    config: FedPcConfig
    paper = Paper(
        "Personalized federated learning method based on prototype clustering mechanism",
        "Liu Haijun, Wang Haolong, Liu Yahui, Ma Hongliang",
        "Journal on Communications, 2025",
        "10.11959/j.issn.1000-436x.2025235",
    )
    communication = Communication(
        "body, C D prototypes, C flags", "body, (D + 1) per held class", "head"
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("head")

    def requires(self) -> list[str]:
        after, rounds = self.config.cluster_after, self.setting.rounds
        late = f"algorithm.cluster_after={after} must be below train.rounds={rounds}: lower it."
        return [late] if after >= rounds else []

    def notes(self) -> list[str]:
        plain = (self.config.groups, self.config.alpha, self.config.gamma) == (1, 1.0, 0.0)
        return ["this is fedper with means by algorithm.agg_weights."] * plain

    def stages(self) -> tuple[Stage, ...]:
        after = self.config.cluster_after
        train = Stage("cluster", 1, setup=True), Stage("train", self.setting.rounds - after)
        return (Stage("warmup", after), *train) if after else train

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        (heads, shared), n, wanted = self.split(), self.setting.clients, self.config.groups
        count = min(n, grouping.MOST if wanted == "auto" else wanted)
        group = only(start, shared) | groups.empty_table(self.setting, start)
        server = groups.spread(group | prefixed("inner.", group), count)
        server |= prefixed("gm.", groups.spread(start | group, 1))
        server |= {"seen": torch.zeros(count).bool(), "groups": torch.zeros(n).long()}
        return server, repeat(only(start, heads) | {"prototypes": group["group.prototypes"]}, n)

    def program(self, state: State) -> LocalProgram:
        (heads, shared), c = self.split(), self.config
        stage = self.stages()[state.stage].name
        if stage == "warmup":
            return super().program(state)
        collect, masks = prototypes.collect(self.setting), (("prototypes", "held"), ("ids", "held"))
        keeps, sends = heads | {"prototypes"}, frozenset({"prototypes", "ids"})
        if stage == "cluster":  # eq. 2 with the net that all have
            return LocalProgram(collect, keeps, sends, masks)
        train = self.phase(CrossEntropy(c.alpha), ClassPull(c.gamma, c.pull, *groups.TABLE))
        return LocalProgram((train, *collect), keeps, shared | sends, masks)

    def diagnostics(self) -> tuple[Statistic, ...]:
        return (groups.pull_share(self.setting),) if self.config.pull == "class_mean" else ()

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        names = groups.TABLE if state.is_initial else {*self.split()[1], *groups.TABLE}
        rows = {k: v[state.server["groups"][ids]] for k, v in only(state.server, names).items()}
        known = state.server["seen"].any().expand(len(ids))
        return Dispatch(rows=Message(rows, dict.fromkeys(groups.TABLE, known)))

    def aggregate(self, state: State, results: Results) -> Update:
        stage, c, server = self.stages()[state.stage].name, self.config, state.server
        if stage == "cluster":
            labels, q = grouping.assign(results, c.fill, c.components, c.groups, self.setting.seed)
            found = server["groups"].index_copy(0, results.ids, labels)
            return Update({"groups": found}, metrics={"groups": int(found.max()) + 1, "q": q})
        if stage == "warmup":
            net, gm = (groups.spread(self.mean(results), n) for n in (len(server["seen"]), 1))
            return Update(net | prefixed("gm.", gm))
        members = server["groups"] == torch.arange(len(server["seen"]))[:, None]  # [J, N]
        weights = members[:, results.ids] * self.weights(results)
        if not bool(weights.any()):
            return Update()
        inner = groups.within(stripped("inner.", server), results.sent, weights)  # lines 13-14
        seen, sizes = server["seen"] | weights.any(dim=1), members.long() @ self.setting.sizes
        rho = self.rho(inner, seen, sizes)
        outer = groups.mixed(inner, rho)  # eq. 7-8
        gm = groups.mixed(outer, sizes.double()[None] / sizes.sum())  # [1, ...]
        update = outer | prefixed("inner.", inner) | prefixed("gm.", gm) | {"seen": seen}
        heads = int((sizes > 0).sum()) * groups.payload(inner) * c.group_heads
        return Update(update, metrics={"rho_self": float(rho.diag()[seen].mean())}, between=heads)

    def rho(self, inner: Tree, seen: Tensor, sizes: Tensor) -> Tensor:
        """Return rho [J, J]: row j is what group j takes of each group (eq. 5-6)."""
        c, (table, present) = self.config, (inner[name] for name in groups.TABLE)
        if c.center:
            table = table - table.sum(dim=0) / present.sum(dim=0).clamp_min(1)[:, None]
        scores = prototypes.table_cosines(table, present)
        if c.temperature is not None:
            scores = softmax_among(scores / c.temperature, seen, dim=1)
        # A group that never took part gives nothing, and takes all others alike.
        scores = torch.where(seen[:, None], scores, 1.0) * seen * (sizes if c.size_weighted else 1)
        rho = simplex(scores, torch.eye(len(seen)), dim=1)
        return rho[seen].mean(dim=0).expand_as(rho) if c.single_global else rho

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        (heads, _), gm, sizes = self.split(), self.config.gm, self.setting.sizes.double()
        found = {"personal": Deployment(self.dispatch(state, ids))}
        if gm == "none" or heads - self.personal():  # clients keep statistics: no model for all
            return found
        net = stripped("gm.", state.server)
        if gm == "mean_head":
            net |= mixing.mix(only(state.clients, heads), sizes[None] / sizes.sum())
        values = Message({name: value[0] for name, value in net.items()})
        rule = prototypes.NearestPrototype(False, *groups.TABLE) if gm == "nearest_proto" else None
        return found | {"gm": Deployment(Dispatch(values), predict=rule)}
