"""A smoke round of code that flbench does not own, before the first round.

Methods, engines and checkpoints take for granted that a training of a client depends on its
tensors, its samples and the run's seed alone. Code of the user may also remember earlier calls,
read a clock, or draw random numbers of its own: then results depend on the order of clients, on the
number of workers and on a resume. A few clients are therefore trained for a few steps in each stage
of the method; the server aggregates, and the models predict. This is done twice, and once more with
net and method made anew; what comes out must be equal. A net may remember what it wants in
parameters and buffers, which begin as the client's own.

The vectorized engine calls code once for many clients. Code that it may call so gives the results
of the sequential engine, up to rounding. Rounding grows fast in deep nets, so both engines compute
in float64 if the code can, whatever `engine.precision` is.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flbench.algorithms import Algorithm
from flbench.algorithms.base import is_of_user
from flbench.client.logged import LOGGED
from flbench.client.program import LocalProgram, Phase, Statistic, Step, shortened
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, RunError, UnknownNameError, UserError
from flbench.core.rng import seeded
from flbench.core.storage import only_rows
from flbench.core.tree import take
from flbench.core.types import Dispatch, Results, Samples, State, Tree
from flbench.core.user_code_errors import user_line
from flbench.core.wording import listed
from flbench.data.federation import Federation
from flbench.engine.base import Engine, LocalWork, RoundSettings, dtype_of
from flbench.experiment import hook_checks, rounds
from flbench.experiment.communication import apply_masks
from flbench.experiment.predictions import Predict
from flbench.models.base import is_lightning, net_leaves

if TYPE_CHECKING:  # it imports Lightning, which takes a second
    from flbench.engine.sequential import SequentialEngine

CLIENTS: Final = 3
"""Clients of a smoke round."""
STEPS: Final = 3
"""Optimizer steps in each phase."""
SAMPLES: Final = 8
"""Largest number of samples of a step. A client has a few more, so that a batch is not full."""
LR: Final = 1e-3
"""Learning rate of SGD. Larger ones and other optimizers enlarge what is rounded."""
TOLERANCE: Final = 1e-3
"""Largest difference between two engines, as a share of what the training has changed."""


@dataclass(frozen=True)
class Smoke:
    """Short trainings of a few clients with the parts of a run.

    Attributes:
        engine: Section `engine` as the run uses it.
        algorithm: The method.
        net: The net.
        unknown: The parts of net and terms whose code is not that of PyTorch or flbench.
        federation: Samples of the run.
        begin: (net, method, dtype) -> the state before the first round, which is only to be read.
        draws: Makes the context in which clients compute.
    """

    engine: EngineConfig
    algorithm: Algorithm
    net: nn.Module
    unknown: Sequence[object]
    federation: Federation
    begin: Callable[[nn.Module, Algorithm, torch.dtype], State]
    draws: Callable[[], AbstractContextManager[Any]] = nullcontext

    def check(self, made: Callable[[], nn.Module]) -> nn.Module:
        """Execute a smoke round twice, and once with net and method made anew.

        Args:
            made: Makes the net of the run once more.

        Returns:
            A copy of the net, which has been trained.

        Raises:
            UnknownNameError: A step, `aggregate` or a deployment reads a tensor that nothing
                writes, or the program keeps, sends or masks one.
            ConfigError: Results differ, a hook returns something else than it must, or the code
                raised an exception.
        """
        if not len(self.ids):
            return self.net
        with _alone():
            first, anew = self._anew(self.net), self._anew(made())
            engine, programs = first._sequential(), dict[int, LocalProgram]()
            found = first._round(engine, programs)
            self._refuse(found, first._round(engine, programs), "")  # kept no longer than compared
            other = "when net and method are made twice, "
            self._refuse(found, anew._round(anew._sequential(), {}), other)
        return engine.net

    def _refuse(self, found: list[Tree], again: list[Tree], when: str) -> None:
        """Raise a ConfigError if two smoke rounds differ."""
        # Sums of a GPU may have another order each time.
        bound = 0.1 if self.engine.device.startswith("cuda") else 0.0
        if self._differ(found, again, bound):
            raise ConfigError(
                f"{when}two short trainings from the same seed differ. {self._names()} may draw"
                " from a random generator of its own, read a clock, or remember earlier calls"
                " other than in the buffers and trained parameters of a net (register_buffer,"
                " in a module that is not in eval mode). Draw from PyTorch's, NumPy's or"
                " Python's global generator, which flbench seeds for each client and round."
            )

    def check_stacked(self) -> None:
        """Execute a smoke round by the sequential and one by the vectorized engine.

        Clients draw constants in place of random numbers, which differ between the engines.

        Raises:
            ConfigError: The vectorized engine cannot run the code, or gives other results.
        """
        if is_lightning(self.net) or not len(self.ids):  # the engine itself refuses a module
            return
        subject = f"`engine.name=vectorized` cannot train with {self._names()}"
        cure = "Use engine.name=sequential, ray or auto."
        with _alone():
            try:
                with suppress(Exception):  # the code may have tensors of float32
                    if self._engines_agree("64-true"):
                        return
                if self._engines_agree("32-true"):
                    return
            except Exception as error:
                if isinstance(error, UserError | RunError) or "out of memory" in str(error):
                    raise
                raise ConfigError(
                    f"{subject} for many clients at once: {type(error).__name__}: {error}"
                    f"{user_line(error)}. {cure}"
                ) from error
        raise ConfigError(
            f"{subject}: after {STEPS} steps of {len(self.ids)} clients, the results differ from"
            " those of the sequential engine by more than rounding. The code may remember earlier"
            " calls, change buffers outside of training, or read the batch as a whole, with rows of"
            f" padding, where the mask is False. {cure}"
        )

    @cached_property
    def ids(self) -> Tensor:
        """The smallest clients with two training samples or more."""
        sizes = self.federation.sizes
        ids = torch.argsort(sizes, stable=True)
        return ids[sizes[ids] > 1][:CLIENTS].sort().values

    @cached_property
    def samples(self) -> Federation:
        """A federation in which these clients have a few training samples each."""
        train = list(self.federation.partition.parts["train"])
        for k, client in enumerate(self.ids.tolist()):
            train[client] = train[client][: SAMPLES + 2 + k]
        parts = self.federation.partition.parts | {"train": train}
        return replace(self.federation, partition=replace(self.federation.partition, parts=parts))

    def _engines_agree(self, precision: str) -> bool:
        """Return whether smoke rounds of the sequential and the vectorized engine are equal."""
        from flbench.engine.vectorized import VectorizedEngine  # it loads PyTorch's compiler

        config = self.engine.altered(block=None, precision=precision)
        own = replace(self, engine=config, draws=ConstantDraws)
        expected = own._anew(self.net)._round(own._sequential(), {})
        engine = VectorizedEngine(self.net, self.samples, config)
        found = own._anew(self.net)._round(engine, {})
        return not self._differ(expected, found, TOLERANCE)

    def _anew(self, net: nn.Module) -> "Smoke":
        """Return the same with a net, and a new object of the method."""
        method = self.algorithm.with_setting(self.algorithm.setting)
        return replace(self, algorithm=method, net=net)

    def _sequential(self) -> "SequentialEngine":
        """Return a sequential engine."""
        from flbench.engine.sequential import SequentialEngine

        engine = SequentialEngine(self.net, self.samples, self.engine.altered(name="sequential"))
        if is_lightning(self.net) and (extras := self.federation.dataset.extras):
            from flbench.experiment import own_module_programs

            own_module_programs.refuse_further_values(engine.net, tuple(extras))
        return engine

    def _round(self, engine: Engine, programs: dict[int, LocalProgram]) -> list[Tree]:
        """Return what is trained and computed in each stage, and by the models after the last one.

        Of each stage there is a round, whose results the server gets again in its last round.
        An exception of the server ends the smoke round: fewer clients than in the run take part.

        Args:
            engine: The engine.
            programs: The programs of the stages, which are added to it: two smoke rounds have the
                same objects, as the clients of one round do.
        """
        method, ids, state = self.algorithm, self.ids, self._state()
        net = {name: leaf.detach() for name, leaf in net_leaves(self.net).items()}
        found = [net, state.server, take(state.clients, ids)]
        try:
            for number, stage in enumerate(method.stages()):
                begin = state = replace(state, stage=number, stage_round=0)
                settings = self._settings(state, setup=stage.setup)
                with rounds.seeded_method(method, settings.draw):
                    program = programs.setdefault(number, self._program(state))
                    with rounds.naming(method, state):
                        hook_checks.kept(program, state)
                    with self.draws():
                        trained = rounds.train(
                            method, engine, state, settings, ids=ids, program=program
                        )
                    found += _trees(trained.results)
                    for last in (0, stage.rounds - 1)[: stage.rounds]:
                        now = begin.round + (0 if stage.setup else last)
                        state = replace(state, stage=number, stage_round=last, round=now)
                        with _ending():
                            seen = rounds.visible_to_server(state, program)
                            cohort = method.cohort(seen, settings.draw)
                            hook_checks.cohort(method, cohort)
                            state = rounds.exchange(method, state, trained).state
                        found += [{"cohort": cohort}, state.server, take(state.clients, ids)]
            found += self._models(engine, state, programs[len(programs) - 1])
        except UnknownNameError as error:
            # Earlier rounds of the run may give the server tensors that the smoke round does not.
            if not error.is_of_server or state.is_initial:
                raise
        except _EndError:
            pass
        return found

    def _models(self, engine: Engine, state: State, program: LocalProgram) -> Iterator[Tree]:
        """Yield what the deployed models are and predict, as in an evaluation.

        Raises:
            UnknownNameError: A model reads a tensor that nothing writes.
        """
        method = self.algorithm
        with _ending():
            models = rounds.deployments(method, rounds.visible_to_server(state, program), self.ids)
        for name, model in models.items():
            sent = (model.dispatch.shared, model.dispatch.rows)
            yield from (tree for one in sent for tree in (one.values, one.mask))
            yield {key: torch.tensor(x) for key, x in model.dispatch.numbers.items()}
            before = shortened(model.program or LocalProgram(()), STEPS).steps
            scores = Predict(model.weights, model.predict, has_classes=False)
            predicted = Statistic("smoke", scores, reduce="rows", samples=Samples("train", limit=2))
            try:
                with _ending(), self.draws():
                    work = LocalWork(
                        LocalProgram((*before, predicted)),
                        rows=partial(take, state.clients),
                        dispatch=partial(_masked, model.dispatch),
                        settings=rounds.settings_of(method, state),
                    )
                    results = engine.run(work, self.ids[:1])
            except UnknownNameError as error:
                place = f"`algorithm.name={method.name}`, the model `{name}` of `deploy`"
                raise error.placed(place) from error
            yield from _trees(results)

    def _state(self) -> State:
        """Return a state before the first round whose rows of the clients can be written."""
        state = self.begin(self.net, self.algorithm, dtype_of(self.engine))
        server = {name: value.clone() for name, value in state.server.items()}
        return replace(state, server=server, clients=only_rows(state.clients, self.ids))

    def _settings(self, state: State, *, setup: bool = False) -> RoundSettings:
        """Return the settings of a round, with small batches."""
        settings = rounds.settings_of(self.algorithm, state, setup=setup)
        size = min(SAMPLES, settings.train.batch_size)
        return replace(settings, train=settings.train.altered(batch_size=size))

    def _program(self, state: State) -> LocalProgram:
        """Return the local program of a state, with a few steps of plain SGD in each phase."""
        with rounds.naming(self.algorithm, state):
            seen = rounds.visible_to_server(state, LocalProgram(()))
            program = shortened(self.algorithm.local_program(seen), STEPS)
        return replace(program, steps=tuple(map(_by_sgd, program.steps)))

    def _differ(self, some: list[Tree], others: list[Tree], bound: float) -> bool:
        """Return whether trees differ by more than a share of what the training has changed."""
        start = net_leaves(self.net)
        if len(some) != len(others):
            return True
        for one, other in zip(some, others, strict=True):
            if {k: x.shape for k, x in one.items()} != {k: x.shape for k, x in other.items()}:
                return True
            gap = moved = 0.0
            for name, x in one.items():
                if not bound and torch.equal(x, other[name]):
                    continue  # without copies in float64
                if not x.is_floating_point():
                    if not torch.equal(x, other[name]):
                        return True
                    continue
                has_rows = name in start and x.shape[1:] == start[name].shape
                before = _numbers(start[name]) if has_rows else torch.zeros(())
                gap += float((_numbers(x) - _numbers(other[name])).square().sum())
                moved += float((_numbers(x) - before).square().sum())
            if gap**0.5 > bound * moved**0.5:
                return True
        return False

    def _names(self) -> str:
        """Return the names of the parts whose code is not known, as text."""
        kinds = (getattr(part, "__qualname__", type(part).__qualname__) for part in self.unknown)
        names = [f"`{kind.replace('<locals>.', '')}`" for kind in dict.fromkeys(kinds)]
        if is_of_user(self.algorithm):
            names.append(f"the method `{self.algorithm.name}`")
        return listed(names, 3) or f"`model.name={self.algorithm.setting.model}`"


class ConstantDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode of PyTorch in which all random numbers are constants, and dropout drops nothing.

    Two engines draw other numbers; it shows whether their results differ in anything else.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Execute an operation; one that draws random numbers gives constants."""
        found = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return found
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(found[1])
        for value in [found] if isinstance(found, Tensor) else found:
            is_mask = "bernoulli" in func.name() or value.dtype == torch.bool
            value.fill_(1 if is_mask else 0.5 if value.is_floating_point() else 0)
        return found


class _EndError(Exception):
    """Ends a smoke round."""


@contextmanager
def _ending() -> Iterator[None]:
    """Return a context manager in which an exception ends a smoke round, unless it is flbench's."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise _EndError from error


def _by_sgd(step: Step) -> Step:
    """Return a step of a program; a phase has plain SGD."""
    if not isinstance(step, Phase):
        return step
    sgd = step.optimizer.altered(name="sgd", lr=LR, momentum=0.0, nesterov=False)
    return replace(step, optimizer=sgd)


@contextmanager
def _alone() -> Iterator[None]:
    """Return a context manager without warnings, with its own random numbers."""
    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _masked(dispatch: Dispatch, _: Tensor) -> Dispatch:
    """Return what the server sends, with its masks applied."""
    return apply_masks(dispatch)


def _trees(results: Results) -> list[Tree]:
    """Return what a cohort has computed, without what a module has logged, such as a clock."""
    seen = {name: x for name, x in results.observed.items() if not name.startswith(LOGGED)}
    sent = {name: x.cpu() for name, x in results.sent.values.items()}
    return [results.kept, sent, seen, {"losses": results.losses}]


def _numbers(value: Tensor) -> Tensor:
    """Return the numbers of a tensor in float64, with zeros for NaN."""
    return value.detach().cpu().double().nan_to_num()
