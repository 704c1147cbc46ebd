"""FedProto: clients exchange class prototypes only (Tan et al., AAAI 2022)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared import prototypes
from flbench.losses import CrossEntropy, PrototypeL2


@fl.ALGORITHMS.register("fedproto")
class FedProto(fl.Algorithm):
    """Clients exchange class prototypes, the mean features of classes; each has its own model.

    Local training adds the distance between a sample's feature and the global prototype of its
    class to cross entropy. After training, a client sends the prototypes of the classes that it
    holds. The server averages them class by class. A client predicts the class of the nearest
    global prototype.

    Deployments: `proto` chooses the nearest of all global prototypes, `proto_own` the nearest of
    those whose class the client holds, and `head` takes the client's classifier. `personal` is
    `proto`.

    Client i (z: features of D numbers, y: labels, P: global prototypes):

        L     = CE + lam (1 / D) ||z - P_y||^2                         (eq. 6, Algorithm 1)
        P_k^i = mean of z over the client's samples of class k, after training

    Server (H_k: the clients of the round that hold class k):

        P_k   = mean of P_k^i over H_k

    Deviations. The authors' code collects prototypes in train mode during the last epoch; here
    they are collected in eval mode after training, so that they belong to one model. The mean over
    H_k is uniform, as in the authors' code; the paper's weights by sample counts are
    `agg_weights=samples`. The distance is averaged over the samples whose class has a prototype. In
    the authors' code a sample without a prototype counts as zero in the mean squared error: the
    mean is over all samples of the batch, so the term is smaller while prototypes are missing. All
    classes with a prototype compete in the prediction; in the authors' test only those of the
    client do (`proto_own`). A client that took no optimizer step does not enter the mean.
    """

    class Config(fl.UniformConfig):
        """Keys of FedProto."""

        lam: float = Field(
            1.0,
            ge=0,
            description="weight of the distance to the prototypes (paper: 1 for MNIST, 0.1 for"
            " CIFAR-10)",
        )

    config: Config
    paper = fl.Paper(
        "FedProto: Federated Prototype Learning across Heterogeneous Clients",
        "Tan, Long, Liu, Zhou, Lu, Jiang, Zhang",
        "AAAI 2022",
        "10.1609/aaai.v36i8.20819",
    )
    communication = fl.Communication(
        down="C prototypes of D features, C flags",
        up="D features, a count and an id per held class",
        keeps="all weights w, prototypes, counts",
    )

    def personal(self) -> frozenset[str]:
        return self.setting.net.names("all")

    def init(self, start: fl.Tree) -> tuple[fl.Tree, fl.Tree]:
        keeps, _ = self.split()
        table, bank = prototypes.empty(self.setting, start)
        return table, fl.repeat(fl.only(start, keeps) | bank, self.setting.clients)

    # Client

    def program(self, state: fl.State) -> fl.LocalProgram:
        train = self.phase(CrossEntropy(), PrototypeL2(weight=self.config.lam))  # (6)
        steps = (train, *prototypes.collect(self.setting))
        keeps = self.split()[0] | {"prototypes", "counts"}
        return fl.LocalProgram(steps, keeps, prototypes.LEAVES, prototypes.MASKS)

    # Server

    def dispatch(self, state: fl.State, ids: Tensor) -> fl.Dispatch:
        return fl.Dispatch(prototypes.table(state.server))

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        """Average the prototypes of each class over the clients that hold it (eq. 5)."""
        sent = results.sent.values
        bank, counts = sent["prototypes"].double(), sent["counts"]  # [K, C, D], [K, C]

        weights = counts > 0 if self.config.agg_weights == "uniform" else counts
        weights = weights.double() * (results.steps > 0)[:, None]  # [K, C]
        total = weights.sum(dim=0)  # [C]
        mean = torch.einsum("kc,kcd->cd", weights, bank) / total.clamp_min(1e-12)[:, None]

        # A class that no client sent keeps its prototype.
        old = state.server["global.prototypes"]
        table = torch.where((total > 0)[:, None], mean.to(old.dtype), old)
        present = state.server["global.present"] | (total > 0)
        return fl.Update(
            {"global.prototypes": table, "global.present": present},
            metrics={"prototype_distance_mean": mean_distance(table, present)},
        )

    # Deployment: the client's model with each rule; the first one is the method's result.

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        rules = prototypes.rules(self.setting, self.dispatch(state, ids))
        return {"personal": rules.pop("proto")} | rules


def mean_distance(table: Tensor, present: Tensor) -> float:
    """Return the mean distance between two prototypes [C, D] of present classes [C] bool.

    It is small when the prototypes collapse, and 0 for fewer than two of them.
    """
    if int(present.sum()) < 2:
        return 0.0
    return float(torch.pdist(table[present]).mean())
