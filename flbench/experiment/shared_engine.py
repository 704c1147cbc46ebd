"""Choice of one engine for many trainings, by measuring before the first of them."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from torch import nn

from flbench.config.schema import Config, EngineConfig, OwnModelConfig
from flbench.core.errors import ConfigError, MethodError, RunError
from flbench.data.federation import Federation
from flbench.engine.base import Engine
from flbench.experiment import assembly, engine_choice, estimate, own_methods
from flbench.experiment.code_trial import CodeTrial
from flbench.experiment.estimate import Estimate
from flbench.experiment.found import find_engine, on_this_machine
from flbench.experiment.rounds import training_state

SHORT: Final = 20.0
"""Seconds of training: where the sequential engine takes less, no other engine is measured."""
ADVANTAGE: Final = 1.25
"""The vectorized engine is chosen if the sequential one takes at least this many times as long."""
MEASURING: Final = 6.0
"""Seconds after which no further training is measured."""


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a study or a comparison.

    Attributes:
        name: `sequential` or `vectorized`.
        block: Clients that the vectorized engine stacks; None for the sequential engine. It is a
            part of the choice, because the order of sums depends on it, and a worker would choose
            it by the memory that is free when it starts.
        note: Why it was chosen; None if the trainings are short.
    """

    name: str
    block: int | None = None
    note: str | None = None


def choose(
    cases: Iterable[tuple[Config, Callable[[], Federation]]],
    trainings: int,
    at_once: int,
    *,
    asked: bool,
    on_cluster: bool = False,
) -> EngineChoice:
    """Return the fastest engine for all trainings of a study or a comparison.

    A few steps of the first cases are measured, for about `MEASURING` seconds. The number of
    threads that PyTorch uses in this process may change.

    Args:
        cases: Configurations that differ in what a step costs, such as the method, and a function
            that returns the samples of each.
        trainings: Number of trainings with these configurations.
        at_once: Number of trainings at the same time, which share the memory.
        asked: Whether the user asks for the choice (`engine.name=auto`). Otherwise trainings that
            take less than `SHORT` seconds together have the sequential engine.
        on_cluster: Whether the trainings have GPUs of other machines, which this process cannot
            measure.

    Raises:
        ConfigError: The user asks for the choice on a cluster.
    """
    if on_cluster and asked:
        raise ConfigError(
            "`engine.name=auto`: the GPUs of a cluster cannot be measured from this machine. Name"
            " an engine, such as engine.name=vectorized."
        )
    if on_cluster:
        return EngineChoice(
            "sequential",
            note="engine: sequential. On the GPUs of the cluster engine.name=vectorized is often"
            " faster; they cannot be measured from this machine.",
        )
    begin = time.monotonic()
    slow = fast = 0.0  # seconds of a training by the sequential and by the vectorized engine
    block: int | None = None
    for config, samples in cases:
        if slow and time.monotonic() - begin > MEASURING:
            break
        simple = config.engine.altered(name="sequential", block=None)
        built = assembly.build(config, samples(), engine=simple)
        try:
            with own_methods.named(config.algorithm):
                if not asked and not slow and estimate.measure(built).total * trainings < SHORT:
                    return EngineChoice("sequential")
                make = partial(_engine, simple, *built.given)
                state = training_state(built.algorithm, built.sketch())
                own, engine = isinstance(config.model, OwnModelConfig), built.found.engine
                trial = CodeTrial(engine, built.algorithm, built.net, own, built.federation, state)
                trial.check_stacked()
                one, other = (
                    engine_choice.measured(name, built.algorithm, state, make)
                    for name in ("sequential", "vectorized")
                )
                slow, fast = slow + one.total, fast + other.total
                size = _block(make("vectorized"), built.config, at_once)
                block = size if block is None else min(size, block)
        except MethodError:  # its own training reports it
            continue
        except ConfigError:  # the precision, the net, or an operation in a loss term
            return EngineChoice(
                "sequential",
                note=f"engine: sequential, because the vectorized engine cannot train"
                f" {config.algorithm.name} as it is configured.",
            )
        except RunError:  # a method that diverges is measured as the others
            continue
        finally:
            built.engine.close()
    if not slow:
        return EngineChoice("sequential")
    ratio = slow / max(fast, 1e-9)
    name = "vectorized" if ratio >= ADVANTAGE else "sequential"
    times = (
        f"engine: {name} (measured; set engine.name to use another). The sequential engine takes"
        f" {ratio:.2g} times as long as the vectorized one."
    )
    return EngineChoice(name, block if name == "vectorized" else None, times)


def estimated(config: Config, federation: Federation) -> Estimate:
    """Estimate the costs of a training with its engine before it begins.

    Evaluations are estimated for the sequential engine. The training is estimated for the
    vectorized engine if that is the one, and otherwise for the sequential engine.

    Args:
        config: Configuration of the training.
        federation: Its samples.

    Raises:
        ConfigError: The method or the engine does not accept the configuration.
        MethodError: The code of a user's method raised an exception.
        RunError: The models diverge in the first steps.
    """
    engine = on_this_machine(config.engine)  # the training may have a GPU of another machine
    simple = engine.altered(name="sequential", block=None)
    built = assembly.build(config, federation, engine=simple)
    with closing(built.engine), own_methods.named(config.algorithm):
        found = estimate.measure(built)
        if config.engine.name != "vectorized":
            return found
        make = partial(_engine, engine, *built.given)
        state = training_state(built.algorithm, built.sketch())
        fast = engine_choice.measured("vectorized", built.algorithm, state, make)
    training = config.train.rounds * fast.round
    return replace(found, training=training, total=found.total - found.training + training)


def _engine(config: EngineConfig, net: nn.Module, federation: Federation, name: str) -> Engine:
    """Return an engine by its name."""
    return assembly.build_engine(find_engine(config.altered(name=name)), net, federation)


def _block(engine: Engine, config: Config, at_once: int) -> int:
    """Return how many clients to stack: all of them, or as many as this share of memory allows."""
    fitting = engine.block(config.train.batch_size) or 1
    return max(1, min(fitting // at_once, config.partition.clients or fitting))
