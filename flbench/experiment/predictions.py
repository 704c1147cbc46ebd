"""What deployed models predict, and the scores of an evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flbench.config.schema import EvaluationConfig
from flbench.core.errors import ConfigError
from flbench.core.types import Context, Tree
from flbench.core.wording import listed

if TYPE_CHECKING:
    from flbench.metrics.ranking import Margins

PARTS = ("validation", "test")
SCALARS = 2**26  # numbers of models or predictions that are computed at once: 256 MB of float32


@dataclass(frozen=True)
class Predict:
    """Computes the predictions of a deployment, as the function of a Statistic.

    Attributes:
        weights: `Deployment.weights`.
        predict: `Deployment.predict`: maps a Context to scores [B, C]; None takes the logits.
        has_margin: Whether to return the margins of two classes too.
        has_probabilities: Whether to return the logarithms of the predicted probabilities too.
        has_classes: Whether classes are predicted; otherwise the outputs are.
    """

    weights: Callable[[Context], Tree] | None = None
    predict: Callable[[Context], Tensor] | None = None
    has_margin: bool = False
    has_probabilities: bool = False
    has_classes: bool = True

    def scores(self, context: Context) -> Tensor:
        """Return the scores [B, C] whose largest entry is the predicted class.

        For targets that are not classes they are the outputs [B, ...] of the module.
        """
        if self.weights is not None:
            weights = context.leaves | self.weights(context)
            context = Context(
                partial(context.apply, weights, context.batch.x),
                batch=context.batch,
                ctx=context.ctx,
                leaves=context.leaves,
                start=context.start,
                apply=context.apply,
            )
        return context.out.logits if self.predict is None else self.predict(context)

    def __call__(self, context: Context) -> Tree:
        """Return what is predicted in one batch, with NaN for padding.

        `predicted` [B] are the classes; without classes they are the outputs [B, ...]. `undefined`
        [B] is 1 where a score is NaN, so that the class means nothing, and 0 elsewhere. `margin`
        [B] is the score of the second class minus that of the first, `logarithms` [B, C] are those
        of the probabilities. All are floating-point numbers; float32 has all integers up to
        16,777,216.
        """
        scores = self.scores(context)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        found = {"predicted": wide}
        if self.has_classes:
            found = {
                "predicted": scores.argmax(dim=1).float(),  # [B, C] -> [B]
                "undefined": scores.isnan().any(dim=1).float(),  # [B, C] -> [B]
            }
        if self.has_margin:
            found["margin"] = wide[:, 1] - wide[:, 0]
        if self.has_probabilities:
            single = scores.float()
            if getattr(self.predict, "scores", None) == "probabilities":
                # The smallest difference from 1, as in scikit-learn; other scores are logits.
                found["logarithms"] = single.clamp_min(torch.finfo(single.dtype).eps).log()
            else:
                found["logarithms"] = single.log_softmax(dim=1)
        mask = context.batch.mask
        return {
            key: torch.where(mask.reshape(-1, *(1,) * (value.ndim - 1)), value, torch.nan)
            for key, value in found.items()
        }


def positive_class(config: EvaluationConfig, classes: Sequence[str]) -> int:
    """Return the positive class of two, 0 or 1: the second one, or that of `evaluation.positive`.

    Raises:
        ConfigError: `evaluation.positive` is set, and is no name of one of two classes.
    """
    if config.positive is None:
        return 1
    if len(classes) != 2 or config.positive not in classes:
        raise ConfigError(
            f"`evaluation.positive={config.positive}` chooses one of two classes, and the data have"
            f" the classes {listed(classes, 5)}. Choose one of two, or leave it out."
        )
    return list(classes).index(config.positive)


@dataclass(frozen=True)
class Evaluation:
    """Scores of the models after one round: the confusion counts of a classification.

    Attributes:
        round: Number of rounds completed.
        local: Scores of every client's model on the client's own samples, by protocol (name of the
            deployment) and part (`validation`, `test`). They are those of `ClassJudge.scores`.
        common: Scores on the common test set, by protocol: `personal` for the clients' models and
            `gm` for the global model. Empty if it was not evaluated.
        margins: Margins of the same predictions by protocol and part (`validation`, `test`,
            `common`), if the data set has two classes; otherwise empty.
    """

    round: int
    local: dict[tuple[str, str], Any] = field(default_factory=dict)
    common: dict[str, Any] = field(default_factory=dict)
    margins: dict[tuple[str, str], "Margins"] = field(default_factory=dict)

    def add_margins_(
        self, key: tuple[str, str], value: Tensor, positive: Tensor, client: Tensor
    ) -> None:
        """Add margins [n] of a protocol on a part, in place; see `Margins`."""
        from flbench.metrics.ranking import Margins

        before, more = self.margins.get(key), Margins(value, positive, client)
        self.margins[key] = more if before is None else Margins.joined([before, more])
