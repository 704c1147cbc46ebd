"""IFCA: each client trains the cluster model with the lowest loss (Ghosh et al., 2020)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm
from flbench.losses.cross_entropy import sum_cross_entropy


@fl.ALGORITHMS.register("ifca")
class Ifca(fl.Algorithm):
    """The server has several models; a client trains the one that fits its samples best.

    A client receives all models and chooses j = argmin_j mean CE(theta_j) over its training
    samples, in eval mode; ties go to the lowest index. It trains theta_j and sends it with j.
    Server (Algorithm 1, model averaging, and its variant with shared weights): theta_j <- mean over
    the clients of the cohort that chose j; a model that no client chose does not change. A client
    is evaluated with the model that it would choose now. The metrics `cluster_J` say how many
    clients chose each model; if all choose the same one, this is FedAvg.

    Deviations: the authors restart from several draws of the models and keep the best run; here
    several seeds take the place of restarts. Model 0 starts as the seeded net, and each other model
    has the entries of each parameter in another order, which is another draw of the parameters.
    Clients do not know these models, so they are charged from the first round on.
    """

    class Config(fl.UniformConfig):
        """Keys of IFCA."""

        clusters: int = Field(
            3, ge=1, description="number of cluster models (the paper: 2 to 4); 1 is FedAvg"
        )
        share_body: bool = Field(
            False, description="true: all clusters share one backbone, and only heads differ"
        )

    config: Config
    by_client = (("choices", (1,)),)
    paper = fl.Paper(
        "An Efficient Framework for Clustered Federated Learning",
        "Ghosh, Chung, Yin, Ramchandran",
        "NeurIPS 2020",
    )
    communication = fl.Communication(
        down="all cluster models", up="w and 1 number", keeps="nothing"
    )

    def several(self) -> tuple[str, ...]:
        """Return the names of the leaves that differ between clusters, in the net's order."""
        names, net = self.split()[1], self.setting.net
        if self.config.share_body:
            names = names & net.names("head")
        return tuple(leaf for leaf in net.leaves if leaf in names)

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        """Return the server's tree with all cluster models, and the clients' tree.

        The leaves of `several()` get a leading axis [clusters]. Model 0 is the seeded net. In each
        other model the entries of each of these leaves are permuted if it is a parameter; a buffer
        is that of the seeded net. With `share_body` the backbone has one set of leaves, without
        this axis. A further entry is `choices` [clusters, N] int64, the number of rounds in which
        each client chose each model.
        """
        server, clients = super().init(start)
        for k, name in enumerate(self.several()):
            first = start[name]
            rows = [first]
            for j in range(1, self.config.clusters):
                order = fl.generator(self.setting.seed, "method", j, k).permutation(first.numel())
                shuffled = first.flatten()[torch.from_numpy(order)].reshape(first.shape)
                rows.append(shuffled if name in self.setting.net.parameters else first)
            server[name] = torch.stack(rows)  # [clusters, ...]
        shape = (self.config.clusters, self.setting.clients)
        server["choices"] = torch.zeros(shape, dtype=torch.int64)
        return server, clients

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        steps = (*self.choosing(), self.phase(*self.terms()))
        return fl.LocalProgram(steps, keeps, sends | {"choice"})

    def choosing(self) -> tuple[fl.Step, ...]:
        """Return the steps that find the loss of each model and load the best one."""
        names, clusters = self.several(), self.config.clusters
        steps: list[fl.Step] = []
        for j in range(clusters):
            load, loss = fl.Transform(fl.bind(model, names, j)), fl.Statistic(f"model{j}", sum_loss)
            steps += [load, *reestimate_batchnorm(self.setting), loss]
        return (*steps, fl.Transform(fl.bind(best_model, names, clusters)))

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        several = self.several()
        models = {f"model.{name}": state.server[name] for name in several}
        shared = {} if state.is_initial else fl.only(state.server, self.split()[1] - set(several))
        return fl.Dispatch(fl.Message(shared | models))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        weights, choice = self.weights(results), results.sent.values["choice"]  # [K] each
        if not weights.any():
            return fl.Update()
        server, sizes = self.mean(results), {}  # the mean over all clients, for a shared body
        server |= {name: state.server[name].clone() for name in self.several()}
        sent = fl.only(results.sent.values, self.several())
        for j in range(self.config.clusters):
            members = choice == j
            sizes[f"cluster_{j}"] = int(members.sum())
            for name, value in fl.weighted_mean(sent, weights * members).items():
                server[name][j] = value
        chosen, once = (choice.long(), results.ids), torch.ones_like(results.ids)
        server["choices"] = state.server["choices"].index_put(chosen, once, accumulate=True)
        return fl.Update(server, metrics=sizes)

    def learned(self, state: fl.State) -> tuple[fl.LearnedTable, ...]:
        """Return how often each client chose each model."""
        table = fl.LearnedTable(
            "clusters",
            "Number of rounds in which each client chose each cluster model. A column with one"
            " bright cell is a client that stayed in its cluster.",
            state.server["choices"].double(),  # [clusters, N]
            rows="cluster",
        )
        return (table,)

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        program = fl.LocalProgram((*self.choosing(), *reestimate_batchnorm(self.setting)))
        return {"personal": fl.Deployment(self.dispatch(state, ids), program)}


def sum_loss(context: fl.Context) -> fl.Tree:
    """Return the sum of the cross entropy over one batch, float64."""
    logits = context.out.logits.double()
    return {"loss": sum_cross_entropy(logits, context.batch.y, context.batch.mask)}


def model(context: fl.Context, names: tuple[str, ...], j: int | Tensor) -> fl.Tree:
    """Return the leaves of model j that differ between clusters."""
    return {name: context.ctx[f"model.{name}"][j] for name in names}


def best_model(context: fl.Context, names: tuple[str, ...], clusters: int) -> fl.Tree:
    """Return the leaves of the model with the smallest loss, and its index `choice` [] int32."""
    losses = torch.stack([context.ctx[f"model{j}.loss"] for j in range(clusters)])
    # A model whose loss overflows is chosen by no client.
    finite = torch.where(losses.isfinite(), losses, torch.inf)
    best = fl.smallest_index(finite, context.info.lr.dtype)
    return model(context, names, best) | {"choice": best.to(torch.int32)}
