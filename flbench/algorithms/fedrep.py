"""FedRep: a personal head is trained before the shared body (Collins et al., ICML 2021)."""

from torch import Tensor

import flbench.algorithms as fl
from flbench.algorithms.fedper import FedPer
from flbench.algorithms.shared.batchnorm import reestimate_batchnorm, weights_of_trained


@fl.ALGORITHMS.register("fedrep")
class FedRep(FedPer):
    """A client trains its head on the frozen body, then the body under the frozen head.

    Source: Algorithm 1. The clients send the body and keep the head. `gm` is that of FedPer. If the
    body is frozen, the head alone is trained, and no parameters are sent.

    Deviation: each phase has an optimizer of its own. The authors' code has one for both, so that
    the momentum of the body acts in the next head phase.
    """

    class Config(FedPer.Config):
        """Keys of FedRep."""

        head_epochs: int | None = fl.epochs(
            None,
            "training of the head in a round (default: train.local_epochs - 1, or all of them if"
            " the body is frozen)",
        )
        finetune_epochs: int = fl.epochs(
            0,
            "fine-tuning of the head at each client before it is evaluated as `ft`, discarded"
            " afterwards (the paper fine-tunes after the last round)",
            ge=0,
        )

    config: Config
    paper = fl.Paper(
        "Exploiting Shared Representations for Personalized Federated Learning",
        "Collins, Hassani, Mokhtari, Shakkottai",
        "ICML 2021",
    )

    def requires(self) -> list[str]:
        said = super().requires()
        if self.head_epochs() < 1:
            said.append(
                "`train.local_epochs` must be larger than 1: the body is trained in the last epoch,"
                " and the head in those before it. Raise it, or set `algorithm.head_epochs`."
            )
        return said

    def program(self, state: fl.State) -> fl.LocalProgram:
        keeps, sends = self.split()
        phases = [self.head_phase(self.head_epochs())]
        if self.shared():
            phases.append(self.phase(*self.terms(), train=self.shared(), epochs=1))
        # With train.batchnorm=drop the head phase would use the statistics of the seeded net.
        return fl.LocalProgram((*reestimate_batchnorm(self.setting), *phases), keeps, sends)

    def head_epochs(self) -> int:
        """Return the epochs of the head in a round."""
        epochs = self.setting.train.epochs_of(self.config.name)
        if (said := self.config.head_epochs) is not None:
            return said
        return epochs - bool(self.shared())

    def shared(self) -> frozenset[str]:
        """Return the names of the trained parameters that all clients share."""
        return frozenset(self.setting.net.parameters) - self.personal()

    def head_phase(self, epochs: int) -> fl.Phase:
        """Return a phase that trains the personal layers only, under constant statistics."""
        return self.phase(*self.terms(), train=self.personal(), epochs=epochs, batchnorm="eval")

    def tuning(self) -> fl.Phase:
        return self.head_phase(self.config.finetune_epochs)

    def weights(self, results: fl.Results) -> Tensor:
        """Return the weight of each client of the cohort, 0 if its body took no step."""
        return weights_of_trained(super().weights(results), self.setting, results)
