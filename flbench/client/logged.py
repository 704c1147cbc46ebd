"""What clients log while they train a LightningModule of the user."""

from typing import Any, Final

import torch
from torch import Tensor

from flbench.core.errors import ConfigError
from flbench.core.own_names import check_metric
from flbench.core.types import Tree

LOGGED: Final = "log."
"""Prefix of the names under which an engine returns what was logged, in `Results.observed`."""


class Log:
    """What a client's module has logged in a round: the mean over the calls of `self.log`."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {}
        self._metrics: dict[str, Any] = {}

    def log(self, name: str, value: Any, *_: Any, **options: Any) -> None:
        """Take the place of `LightningModule.log`: add a number, or a metric of torchmetrics."""
        check_metric(name, "a LightningModule logs")
        if options.get("reduce_fx", "mean") not in ("mean", torch.mean):
            raise ConfigError(
                f"self.log({name!r}, reduce_fx={options['reduce_fx']!r}): a round has the mean over"
                " the steps. Leave reduce_fx out, or log a metric of torchmetrics."
            )
        if hasattr(value, "compute"):
            self._metrics[name] = value
            return
        try:
            number = torch.as_tensor(value, dtype=torch.float64).detach().reshape(())
        except (RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"self.log({name!r}, {value!r}): log one number.") from error
        self._values.setdefault(name, []).append(number)

    def end_phase(self) -> None:
        """Add the values of metrics, which have seen the whole phase."""
        for name, metric in self._metrics.items():
            self.log(name, metric.compute())
            metric.reset()
        self._metrics = {}

    def tree(self) -> Tree:
        """Return (value, 1) [2] float64 for each name.

        A client that has not logged a name that others have gets (0, 0) from the engine.
        """
        means = {name: float(torch.stack(each).mean()) for name, each in self._values.items()}
        return {
            LOGGED + name: torch.tensor([mean, 1.0], dtype=torch.float64)
            for name, mean in means.items()
        }
