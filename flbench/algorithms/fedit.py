"""FedIT: FedAvg on low-rank adapters (Zhang et al., 2024)."""

from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.shared.adapters import AdapterMethod


@fl.ALGORITHMS.register("fedit")
class FedIt(AdapterMethod):
    """Clients train the adapters and the head; the server averages both.

    The weight W of an adapted layer becomes W + s B A with s = alpha / rank (`model.lora`). All
    clients start from the same random A and from B = 0. Server, with the clients' shares p_i of the
    samples:

        A = sum_i p_i A_i,  B = sum_i p_i B_i

    A client is evaluated with the averaged adapters and head, which are also the global model.

    The mean of products is another matrix than the product of means:

        sum_i p_i B_i A_i - B A = sum_i p_i (B_i - B) (A_i - A)

    The metric `product_error` is the norm of this difference over all adapted layers, divided by
    that of B A. It is 0 for one client, or for clients that agree.

    Readings and deviations. This is `fedavg` on a net with `model.lora`, to the bit, unless `head`
    is changed. The paper instructs a language model that has no head of its own. Here the head is
    the classifier; it is trained and averaged as in later comparisons of federated adapters. The
    authors' code adapts the query projections alone (`model.lora.targets`), with rank 16, alpha 16
    and dropout 0.05, and trains with AdamW, gradients clipped at norm 1, and a learning rate that
    decreases to 0 within each local training. Here the optimizer is that of `train.*`, the same for
    all methods, and its rate is constant within a round. The gradient of A is 0 while B is 0, so
    the first optimizer step changes B and the head alone, unless there is weight decay.
    """

    paper = fl.Paper(
        "Towards Building the Federated GPT: Federated Instruction Tuning",
        "Zhang, Vahidian, Kuo, Li, Zhang, Yu, Wang, Chen",
        "ICASSP 2024",
        "10.1109/ICASSP48485.2024.10447454",
    )
    communication = fl.Communication(
        down="A and B of each adapter, head", up="A and B of each adapter, head", keeps="nothing"
    )

    def aggregate(self, state: fl.State, results: fl.Results) -> fl.Update:
        mean = self.mean(results)
        if not mean:
            return fl.Update()
        sent, weights = results.sent.values, self.weights(results)
        error = product_error(sent, mean, weights / weights.sum(), self.setting.net)
        return fl.Update(mean, metrics={"product_error": error})


def product_error(sent: fl.Tree, mean: fl.Tree, shares: Tensor, net: fl.NetSpec) -> float:
    """Return || sum_i p_i B_i A_i - B A || / || B A ||, both norms over all adapters; 0 for 0 / 0.

    No matrix of the size of a layer is computed: with the columns of all B_i - B side by side in U,
    and the rows of all p_i (A_i - A) below one another in V, the first norm is that of U V, whose
    square is the sum of the entries of (U^T U) * (V V^T).

    Args:
        sent: A_i [K, rank, ...] and B_i [K, outputs, rank, ...] of each adapter.
        mean: A [rank, ...] and B [outputs, rank, ...] of each adapter.
        shares: p_i [K], which add up to 1.
        net: Description of the net, with the names of A and B of each adapter.
    """
    error, whole = 0.0, 0.0
    for one in net.adapters:
        a, b = mean[one.a].double().flatten(1), mean[one.b].double().flatten(1)
        from_a = sent[one.a].double().flatten(2) - a  # [K, rank, inputs]
        from_b = sent[one.b].double().flatten(2) - b  # [K, outputs, rank]
        u = from_b.transpose(0, 1).flatten(1)  # [outputs, K rank]
        v = (shares[:, None, None] * from_a).flatten(0, 1)  # [K rank, inputs]
        error += float(((u.T @ u) * (v @ v.T)).sum())
        whole += float(((b.T @ b) * (a @ a.T)).sum())
    return (max(error, 0.0) / whole) ** 0.5 if whole > 0 else 0.0
