"""FFA-LoRA: low-rank adapters whose first factor is frozen (Sun et al., 2024)."""

import flbench.algorithms as fl
from flbench.algorithms.shared.adapters import AdapterMethod


@fl.ALGORITHMS.register("ffalora")
class FfaLora(AdapterMethod):
    """Of each adapter, A keeps its random start; clients train B and the head, which are averaged.

    The weight W of an adapted layer becomes W + s B A_0 with s = alpha / rank (`model.lora`). A_0
    is drawn from the run's seed, equal for all clients, and is neither trained nor sent. Server,
    with the clients' shares p_i of the samples:

        B = sum_i p_i B_i,  so that  W + s B A_0 = sum_i p_i (W + s B_i A_0)

    The mean of the factors is therefore the mean of the weights, which does not hold if A is
    trained too (`fedit`). A message has half of the bytes of the adapters if a layer has as many
    inputs as outputs. A client is evaluated with the averaged B and head, which are also the global
    model.

    Readings and deviations. The paper trains with differential privacy too, which is not a part of
    the method here. It does not say clearly whether the classifier is trained: it is, unless
    `head=frozen`. With plain SGD without weight decay and clipping, and with a frozen head, an
    adapter with s and the learning rate lr gives the weights of one with c s and lr / c^2; a head
    that is trained would need the rate lr in both. The same rate moves the weights less than in
    `fedit`, and the ranges in which ports of the method search it lie ten times higher;
    `model.lora.alpha` raises it for the adapters alone.
    """

    paper = fl.Paper(
        "Improving LoRA in Privacy-preserving Federated Learning",
        "Sun, Li, Li, Ding",
        "ICLR 2024 (arXiv 2403.12313)",
    )
    communication = fl.Communication(
        down="B of each adapter, head", up="B of each adapter, head", keeps="nothing"
    )

    def frozen(self) -> frozenset[str]:
        return super().frozen() | self.setting.net.names("lora_A")

    def requires(self) -> list[str]:
        """Return a sentence if the net has no adapters, or adapters of embeddings."""
        zero = [one.layer for one in self.setting.net.adapters if one.begins_with_zero_a]
        if not zero:
            return super().requires()
        return [
            f"the factor A of the adapter of `{zero[0]}`, which is an embedding, begins with zeros,"
            " and ffalora does not train A: the adapter would stay without effect. Leave embeddings"
            " out of `model.lora.targets`."
        ]
