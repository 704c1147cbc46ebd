"""The reference engine: one client after the other on one net."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import convert_conv2d_weight_memory_format

from flbench.client.program import LocalProgram, Statistic, Step
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError
from flbench.core.known_code import is_known
from flbench.core.types import Results
from flbench.data.federation import Federation
from flbench.engine.base import STACKED_SIZE, Engine, LocalWork, find_device, gathered
from flbench.engine.client_run import ClientRun
from flbench.engine.environment import Environment
from flbench.models.trial import may_draw, may_draw_in_eval

STACKED_CLIENTS = 64
"""Clients that are stacked to evaluate their models."""
STACKED_SAMPLES = 64
"""Largest mean number of samples of a client for which models are stacked."""


class SequentialEngine(Engine):
    """Trains one client after the other on one device.

    The net is copied once, and the copy is filled with each client's values in place. A phase
    without `weights` calls this net directly, because `torch.func.functional_call` costs 4-6 % of a
    step.

    Args:
        net: The seeded net. Its values are the leaves' initial values.
        federation: The samples of all clients.
        config: Device and precision. The number of threads is set for the whole process by
            `flbench.experiment`.
        stacks: Whether Statistics with `stacked` of small nets are computed for blocks of
            `STACKED_CLIENTS` clients at once. Which clients share a block may change rounding.

    Raises:
        ConfigError: The device does not exist or cannot compute in that precision.
    """

    def __init__(
        self, net: nn.Module, federation: Federation, config: EngineConfig, *, stacks: bool = True
    ) -> None:
        copy = deepcopy(net)
        if find_device(config.device).type == "cpu" and has_plain_convolutions(net):
            convert_conv2d_weight_memory_format(copy, torch.channels_last)
        env = self._environment = Environment(copy, federation, config)
        self._may_draw = may_draw(net)
        is_small = sum(leaf.numel() for leaf in env.own.values()) <= STACKED_SIZE
        is_plain = env.device.type == "cpu" and env.autocast is None
        self._stacks = stacks and is_small and is_plain and not may_draw_in_eval(net)
        seeded = deepcopy(net) if self._stacks else net
        self._given = seeded, federation, config.altered(block=STACKED_CLIENTS)
        self._stack: Engine | None = None

    @property
    def net(self) -> nn.Module:
        """The copy of the net that is filled with each client's values."""
        return self._environment.net

    def run(self, work: LocalWork, ids: Tensor) -> Results:
        """Train the clients one after the other; see `Engine.run`."""
        if self._can_stack(work.program, work.observe) and len(ids) > 1:
            from flbench.engine.vectorized import VectorizedEngine

            try:
                self._stack = self._stack or VectorizedEngine(*self._given)
                return self._stack.run(work, ids)
            except ConfigError:  # an operation of a method that `torch.vmap` lacks
                self._stacks = False
        env, known = self._environment, is_known((work.program, work.observe))
        seeded = self._may_draw or not known
        runs = (ClientRun(env, one, work, is_seeded=seeded) for one in ids.tolist())
        return gathered((one.results() for one in runs), ids, work.settings.storage)

    def _can_stack(self, program: LocalProgram, observe: tuple[Step, ...]) -> bool:
        """Return whether clients are stacked: they only copy tensors, or evaluate small models."""
        if not self._stacks or program.steps or program.sends:
            return False
        return all(
            isinstance(step, Statistic)
            and step.stacked
            and self._mean_size(step.samples.part) <= STACKED_SAMPLES
            for step in observe
        ) and is_known(observe)

    def _mean_size(self, part: str) -> float:
        """Return the mean number of samples of a client in a part."""
        federation = self._environment.federation
        common = [federation.common] * (part == "common")
        sizes = [len(rows) for rows in common or federation.partition.parts[part]]
        return sum(sizes) / len(sizes)

    def stacked(self, program: LocalProgram, observe: tuple[Step, ...], batch_size: int) -> int:
        """Return `STACKED_CLIENTS` for evaluations of small models, and 1 for all else."""
        return STACKED_CLIENTS if self._can_stack(program, observe) else 1

    def close(self) -> None:
        """Do nothing: this engine holds no processes."""


def has_plain_convolutions(net: nn.Module) -> bool:
    """Return whether a net trains faster on a CPU with the channels last in memory.

    With AVX2 and with AVX-512 a step of the nets of flbench that have convolutions and no
    normalization takes 0.75 to 1.0 of the time; LeNet-5 with BatchNorm takes 1.4 to 1.5 times as
    long. The code of a user's net may call `view`, which needs the default format. Leaves that a
    client keeps or sends are copied to it.
    """
    layers = list(net.modules())
    has_norm = any(isinstance(layer, _NormBase | nn.GroupNorm) for layer in layers)
    return any(isinstance(layer, nn.Conv2d) for layer in layers) and not has_norm and is_known(net)
