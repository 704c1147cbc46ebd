"""FedAvg: the weighted mean of locally trained models (McMahan et al., AISTATS 2017)."""

from dataclasses import replace

from torch import Tensor

import flbench.algorithms as fl


@fl.ALGORITHMS.register("fedavg")
class FedAvg(fl.Algorithm):
    """The cohort trains the global model w, and the server takes the mean of the results.

    Server (Algorithm 1): w <- sum_{i in S_t} p_i w_i with p_i = n_i / sum_{j in S_t} n_j, for the
    cohort S_t and n_i training samples of client i. All hooks but one are the defaults of
    `Algorithm`. Every client is evaluated with w, and as `ft` with w after fine-tuning on its own
    training samples. Deviations: none.
    """

    class Config(fl.AlgorithmConfig):
        """Keys of FedAvg."""

        finetune_epochs: int = fl.epochs(
            0,
            "fine-tuning of the global model at each client before it is evaluated as `ft`,"
            " discarded afterwards (FedAvg-FT)",
            ge=0,
        )

    config: Config
    paper = fl.Paper(
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "McMahan, Moore, Ramage, Hampson, Aguera y Arcas",
        "AISTATS 2017",
    )
    communication = fl.Communication(down="w", up="w", keeps="nothing")

    def deploy(self, state: fl.State, ids: Tensor) -> dict[str, fl.Deployment]:
        deployments = super().deploy(state, ids)
        if self.config.finetune_epochs:
            tuning = self.phase(*self.terms(), epochs=self.config.finetune_epochs)
            model = replace(deployments["personal"], program=fl.LocalProgram((tuning,)))
            deployments["ft"] = model
        return deployments
