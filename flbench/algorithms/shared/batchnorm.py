"""BatchNorm statistics for steps that run the net in eval mode, with `train.batchnorm=drop`."""

from collections.abc import Callable

from flbench.algorithms.base import Setting
from flbench.client.batchnorm import recalibrate
from flbench.client.program import Step
from flbench.core.types import Tree


def reestimate_batchnorm(
    setting: Setting, weights: Callable[[Tree, Tree], Tree] | None = None
) -> tuple[Step, ...]:
    """Return steps that re-estimate BatchNorm statistics; none unless `train.batchnorm=drop`.

    With that policy clients begin each round with the statistics of the seeded net, and a round of
    training leaves much of them. These steps belong before any step that runs the net in eval mode.

    Args:
        setting: What the method knows of the experiment.
        weights: (leaves, ctx) -> what the net is called with; None calls it with the leaves.
    """
    return recalibrate(setting.net, weights) if setting.train.batchnorm == "drop" else ()
