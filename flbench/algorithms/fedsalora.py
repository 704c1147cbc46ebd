"""FedSA-LoRA: low-rank adapters whose first factor is shared (Guo et al., 2025)."""

import torch
from pydantic import Field
from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.adapters import HEAD, AdapterConfig, AdapterMethod, Head


@fl.ALGORITHMS.register("fedsalora")
class FedSaLora(AdapterMethod):
    """Clients train both factors of the adapters; A is averaged, B and the head stay with them.

    The weight W of an adapted layer becomes W + s B_i A with s = alpha / rank (`model.lora`). The
    idea is that A learns what the clients have in common and B what is a client's own. All clients
    start from the same random A and from B = 0. Server, with the clients' shares p_i of the
    samples:

        A = sum_i p_i A_i

    A client is evaluated with the newest A and its own B_i and head. There is no global model: A
    without a B is the frozen net. A client that joins later has B = 0 and the seeded head, so A is
    of use to it only after it has trained B. The metric `cosine` is the mean over the cohort of the
    cosine between A_i and their mean, over all adapted layers together.

    Readings and deviations. The clients' weights are their numbers of samples; the authors' code
    counts samples processed, which is the same for them because all clients make equally many
    steps. Their code also keeps the classifier with the client for classification (`head`). In its
    published settings all clients share one model object, so that B and the classifier pass from
    one client to the next; here each client has its own. A client keeps its B while it is absent,
    although A moves on. An adapter of an embedding begins with A = 0 and a random B.
    """

    class Config(AdapterConfig):
        """Keys of FedSA-LoRA."""

        head: Head = Field("personal", description=HEAD)

    config: Config
    paper = fl.Paper(
        "Selective Aggregation for Low-Rank Adaptation in Federated Learning",
        "Guo, Zeng, Wang, Fan, Wang, Qu",
        "ICLR 2025 (arXiv 2410.01463)",
    )
    communication = fl.Communication(
        down="A of each adapter", up="A of each adapter", keeps="B of each adapter, head"
    )

    def personal(self) -> frozenset[str]:
        return super().personal() | self.setting.net.names("lora_B")

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        mean = self.mean(results)
        if not mean:
            return fl.Update()
        shared = self.setting.net.names("lora_A")
        return fl.Update(mean, metrics={"cosine": mean_cosine(results.sent.values, mean, shared)})


def mean_cosine(sent: fl.Tree, mean: fl.Tree, names: frozenset[str]) -> float:
    """Return the mean over K clients of the cosine between their leaves and a mean, as vectors."""
    order = [name for name in mean if name in names]
    rows = torch.cat([sent[name].double().flatten(1) for name in order], dim=1)  # [K, n]
    one: Tensor = torch.cat([mean[name].double().flatten() for name in order])  # [n]
    return float(torch.nn.functional.cosine_similarity(rows, one[None], dim=1).mean())
