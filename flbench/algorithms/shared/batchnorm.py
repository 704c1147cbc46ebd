"""BatchNorm and steps that run the net in eval mode."""

import torch
from torch import Tensor

from flbench.algorithms.setting import Setting
from flbench.client.batchnorm import recalibrate
from flbench.client.program import Step
from flbench.core.types import Results


def reestimate_batchnorm(setting: Setting) -> tuple[Step, ...]:
    """Return steps that re-estimate BatchNorm statistics; none unless `train.batchnorm=drop`.

    With that policy clients begin each round with the statistics of the seeded net, and a round of
    training leaves much of them. These steps belong before any step that runs the net in eval mode.
    """
    return recalibrate(setting.net) if setting.train.batchnorm == "drop" else ()


def weights_of_trained(weights: Tensor, setting: Setting, results: Results) -> Tensor:
    """Return weights [K] of clients, 0 where no optimizer step was taken in train mode.

    BatchNorm cannot train on a batch of one sample in train mode. A client with one sample may have
    taken all its steps in a phase in eval mode, such as that of the head. Clients that took no step
    at all have weight 0 already.
    """
    if not setting.net.statistics:
        return weights
    trained = (setting.sizes[results.ids] > 1) & (setting.train.batch_size > 1)
    return torch.where(trained, weights, 0.0)
