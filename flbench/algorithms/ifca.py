"""IFCA: each client trains the one of several models that fits it best (Ghosh et al., 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms.base import Algorithm, Communication, Deployment, Paper
from flbench.algorithms.registry import ALGORITHMS
from flbench.algorithms.shared.moments import estimated
from flbench.client.program import LocalProgram, Statistic, Step, Transform
from flbench.config.schema import AlgorithmConfig, UniformConfig
from flbench.core.rng import generator
from flbench.core.tree import only, weighted_mean
from flbench.core.types import Dispatch, Info, Message, Results, State, StepContext, Tree, Update
from flbench.losses.cross_entropy import sum_cross_entropy


class IfcaConfig(UniformConfig):
    """Keys of IFCA."""

    clusters: int = Field(3, ge=1, description="number of models (the paper: 2 to 4); 1 is FedAvg")
    share_body: bool = Field(
        False, description="all clusters share the backbone and differ in their heads alone"
    )


@ALGORITHMS.register("ifca")
class Ifca(Algorithm):
    """Client: j = argmin_j mean CE(theta_j) on its training part, then SGD from theta_j.

    Server: theta_j <- mean over the clients of the round that chose j; a model that nobody chose
    stays as it was. Source: Algorithm 1, model averaging, and its variant with shared weights.
    Models are compared in eval mode, ties go to the lowest index. A client is evaluated with the
    model that it would choose now. How many chose each is logged as `cluster_J`: where all choose
    one, this is FedAvg.

    Deviations: the authors restart from several draws of the models and keep the best; here run
    other seeds. Model 0 starts as the seeded net, and each other one has its parameters' entries
    in another order, which is another draw of them. So models are paid for from the first round.
    """

    Config: ClassVar[type[AlgorithmConfig]] = IfcaConfig
    config: IfcaConfig
    paper = Paper(
        "An Efficient Framework for Clustered Federated Learning",
        "Ghosh, Chung, Yin, Ramchandran",
        "NeurIPS 2020",
    )
    communication = Communication(down="all cluster models", up="w and 1 number", keeps="nothing")

    def several(self) -> tuple[str, ...]:
        """Return the leaves of which every cluster has its own, in the net's order."""
        names, net = self.split()[1], self.setting.net
        if self.config.share_body:
            names = names & net.names("head")
        return tuple(leaf for leaf in net.leaves if leaf in names)

    def init(self, start: Tree) -> tuple[Tree, Tree]:
        server, clients = super().init(start)
        for k, name in enumerate(self.several()):
            rows = [start[name]]
            for j in range(1, self.config.clusters):
                order = generator(self.setting.seed, "method", j, k).permutation(rows[0].numel())
                shuffled = rows[0].flatten()[torch.from_numpy(order)].reshape(rows[0].shape)
                rows.append(shuffled if name in self.setting.net.parameters else rows[0])
            server[name] = torch.stack(rows)  # [clusters, ...]
        return server, clients

    def program(self, state: State) -> LocalProgram:
        keeps, sends = self.split()
        steps = (*self.choosing(), self.phase(*self.terms()))
        return LocalProgram(steps, keeps, sends | {"choice"})

    def choosing(self) -> tuple[Step, ...]:
        """Return the steps that evaluate all models and load the best one."""
        names, clusters = self.several(), self.config.clusters
        steps: list[Step] = []
        for j in range(clusters):
            look = Statistic(f"model{j}", sum_loss)
            steps += [Transform(Load(names, j)), *estimated(self.setting), look]
        return (*steps, Transform(Choose(names, clusters)))

    def dispatch(self, state: State, ids: Tensor) -> Dispatch:
        several = self.several()
        models = {f"model.{name}": state.server[name] for name in several}
        shared = {} if state.is_initial else only(state.server, self.split()[1] - set(several))
        return Dispatch(Message(shared | models))

    def aggregate(self, state: State, results: Results) -> Update:
        weights, choice = self.weights(results), results.sent.values["choice"]
        if not weights.any():
            return Update()
        mean, sizes = self.mean(results), {}  # the mean over all is the shared body's
        rows = {name: list(state.server[name]) for name in self.several()}
        for j in range(self.config.clusters):
            members = choice == j
            sizes[f"cluster_{j}"] = int(members.sum())
            sent = only(results.sent.values, rows)
            for name, value in weighted_mean(sent, weights * members).items():
                rows[name][j] = value
        models = {name: torch.stack(value) for name, value in rows.items()}
        return Update(mean | models, metrics=sizes)

    def deploy(self, state: State, ids: Tensor) -> dict[str, Deployment]:
        program = LocalProgram((*self.choosing(), *estimated(self.setting)))
        return {"personal": Deployment(self.dispatch(state, ids), program)}

    def notes(self) -> list[str]:
        return ["algorithm.clusters=1: IFCA is FedAvg."] if self.config.clusters == 1 else []


def sum_loss(context: StepContext) -> Tree:
    """Return the sum of the losses of one batch, float64."""
    logits = context.out.logits.double()
    return {"loss": sum_cross_entropy(logits, context.batch.y, context.batch.mask)}


@dataclass(frozen=True)
class Load:
    """Write one of the models that were sent into the leaves."""

    names: tuple[str, ...]
    index: int

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return its leaves."""
        return {name: ctx[f"model.{name}"][self.index] for name in self.names}


@dataclass(frozen=True)
class Choose:
    """Write the model with the smallest loss into the leaves, and its index into `choice`."""

    names: tuple[str, ...]
    clusters: int

    def __call__(self, leaves: Tree, start: Tree, ctx: Tree, info: Info) -> Tree:
        """Return its leaves and its index."""
        losses = torch.stack([ctx[f"model{j}.loss"] for j in range(self.clusters)])
        # A model whose loss overflows is nobody's choice.
        best = torch.where(losses.isfinite(), losses, torch.inf).argmin()
        chosen = {name: ctx[f"model.{name}"][best] for name in self.names}
        return chosen | {"choice": best.to(torch.int32)}
