"""A smoke round of code that flbench does not own, before the first round.

Methods, engines and checkpoints take for granted that a training of a client depends on its
tensors, its samples and the run's seed alone. Code of the user may also remember earlier calls,
read a clock, or draw random numbers of its own: then results depend on the order of clients, on the
number of workers and on a resume. A few clients are therefore trained for a few steps in each stage
of the method; the server aggregates, and the models predict. This is done twice, and once more with
net and method made anew; what comes out must be equal. A net may remember what it wants in
parameters and buffers, which begin as the client's own.

The vectorized engine calls code once for many clients. Code that it may call so gives the results
of the sequential engine, up to rounding.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from flbench.algorithms import Algorithm, Deployment
from flbench.algorithms.base import is_of_user
from flbench.client.logged import LOGGED
from flbench.client.program import LocalProgram, Phase, Statistic, Step, shortened
from flbench.config.schema import Config, EngineConfig, OwnModelConfig
from flbench.core.errors import ConfigError, RunError, UnknownNameError, UserError
from flbench.core.rng import seeded
from flbench.core.storage import only_rows
from flbench.core.tree import take, write_counts
from flbench.core.types import Dispatch, Results, Samples, State, StepContext, Tree
from flbench.core.user_code_errors import is_raised_by_user, user_line
from flbench.core.wording import listed
from flbench.data.federation import Federation
from flbench.engine.base import Engine, RoundSettings
from flbench.experiment import hook_checks, rounds
from flbench.experiment.communication import apply_masks
from flbench.experiment.constant_draws import ConstantDraws
from flbench.experiment.predictions import Predict
from flbench.models.base import build as build_net
from flbench.models.base import is_lightning, net_leaves

if TYPE_CHECKING:  # it imports Lightning, which takes a second
    from flbench.engine.sequential import SequentialEngine

CLIENTS: Final = 3
"""Clients of a smoke round."""
STEPS: Final = 3
"""Optimizer steps in each phase."""
SAMPLES: Final = 8
"""Largest number of samples of a step; each client has a few more, and so a batch that is not
full."""
TOLERANCE: Final = {"64-true": 1e-6, "32-true": 1e-2}
"""Largest difference between two engines, as a share of what the training has changed, by
precision; 0.1 for the others."""


@dataclass(frozen=True)
class Outputs:
    """What a net or a deployed model computes in eval mode, as the function of a Statistic.

    Attributes:
        model: The deployed model; None for the net as it is trained.
    """

    model: Deployment | None = None

    def __call__(self, context: StepContext) -> Tree:
        """Return the logits or scores [B, C] of a batch."""
        if self.model is None:
            return {"scores": context.out.logits}
        return {"scores": Predict(self.model.weights, self.model.predict).scores(context)}


def _observed(model: Deployment | None = None) -> Statistic:
    """Return a Statistic of what a model computes for two samples."""
    return Statistic("smoke", Outputs(model), reduce="rows", samples=Samples("train", limit=2))


@dataclass(frozen=True)
class Smoke:
    """Short trainings with the parts of a run.

    Attributes:
        engine: Section `engine` as the run uses it.
        algorithm: The method.
        net: The net.
        unknown: The parts of net and terms whose code is not that of PyTorch or flbench.
        federation: Samples of the run.
        begin: (net, method) -> the state before the first round, which is only to be read.
    """

    engine: EngineConfig
    algorithm: Algorithm
    net: nn.Module
    unknown: Sequence[object]
    federation: Federation
    begin: Callable[[nn.Module, Algorithm], State]

    def check(self, config: Config) -> dict[str, Any]:
        """Execute a smoke round twice, and once with net and method made anew.

        Nothing is done for a run that has no code but that of PyTorch and flbench.

        Args:
            config: Configuration of the run.

        Returns:
            Optimizer and hyper-parameters of a LightningModule; otherwise empty.

        Raises:
            UnknownNameError: A step, `aggregate` or a deployment reads a tensor that nothing
                writes, or the program keeps, sends or masks one.
            ConfigError: Results differ, a hook returns something else than it must, or the code
                raised an exception.
        """
        net = self._used_net(config)
        if not is_lightning(net):
            return {}
        from flbench.experiment import own_module_programs

        return own_module_programs.recorded(net, config)

    def _anew(self, config: Config) -> "Smoke":
        """Return the same with another net and method of the same seed."""
        net = self.net
        if isinstance(config.model, OwnModelConfig):
            from flbench.models import own

            if own.is_made(config.model):
                shape, classes = self.federation.shape, self.federation.output
                net = build_net(config.model, shape, classes, config.seed)
        return replace(self, algorithm=self.algorithm.with_setting(self.algorithm.setting), net=net)

    def _used_net(self, config: Config) -> nn.Module:
        """Execute the smoke rounds, and return a net that was trained in them; see `check`."""
        if not (self.unknown or is_of_user(self.algorithm)) or not len(self._ids()):
            return self.net
        start = self.begin(self.net, self.algorithm)
        own = replace(self, algorithm=hook_checks.checked(copy.deepcopy(self.algorithm), start))
        with self._alone():
            engine = self._engine(self.engine.precision)
            programs: dict[int, LocalProgram] = {}
            try:
                first = own._round(engine, programs)
                second = own._round(engine, programs)
                other = self._anew(config)
                third = other._round(other._engine(self.engine.precision), {})
            except (UserError, RunError):
                raise
            except Exception as error:
                if is_raised_by_user(error) or is_lightning(self.net):
                    raise
                return engine.net  # the first round says what is wrong
        for found, when in ((second, ""), (third, "when net and method are made twice, ")):
            # Sums of a GPU may have another order each time.
            bound = 0.1 if self.engine.device.startswith("cuda") else 0.0
            if self._differ(first, found, bound):
                raise ConfigError(
                    f"{when}two short trainings from the same seed differ. {self._names()} may draw"
                    " from a random generator of its own, read a clock, or remember earlier calls"
                    " other than in the buffers and trained parameters of a net (register_buffer,"
                    " in a module that is not in eval mode). Draw from PyTorch's, NumPy's or"
                    " Python's global generator, which flbench seeds for each client and round."
                )
        return engine.net

    def check_stacked(self) -> None:
        """Train a few clients by the sequential and the vectorized engine.

        The two draw other random numbers, so constants take the place of all of them. A
        LightningModule is refused by the vectorized engine itself.

        Raises:
            ConfigError: The vectorized engine cannot run the code, or gives other results.
        """
        if is_lightning(self.net) or not len(self._ids()):
            return
        from flbench.engine.vectorized import VectorizedEngine  # it loads PyTorch's compiler

        with self._alone(), ConstantDraws():
            precision = "64-true"
            try:
                expected = self._by_sgd(self._engine(precision))
            except (UserError, RunError):
                raise
            except Exception:  # noqa: BLE001 the code may be written for float32
                precision = self.engine.precision
                expected = self._by_sgd(self._engine(precision))
            subject = f"`engine.name=vectorized` cannot train with {self._names()}"
            cure = "Use engine.name=sequential, ray or auto."
            try:
                config = self.engine.altered(precision=precision, block=None)
                found = self._by_sgd(VectorizedEngine(self.net, self._few(), config))
            except (UserError, RunError):
                raise
            except Exception as error:
                if "out of memory" in str(error):
                    raise
                raise ConfigError(
                    f"{subject} for many clients at once: {type(error).__name__}: {error}"
                    f"{user_line(error)}. {cure}"
                ) from error
        if self._differ(expected, found, TOLERANCE.get(precision, 0.1)):
            raise ConfigError(
                f"{subject}: after {STEPS} steps of {len(self._ids())} clients, the results differ"
                " from those of the sequential engine by more than rounding. The code may remember"
                " earlier calls, change buffers outside of training, or read the batch as a whole,"
                f" with rows of padding, where the mask is False. {cure}"
            )

    def _differ(self, some: list[Tree], others: list[Tree], bound: float) -> bool:
        """Return whether trees differ by more than a share of what the training has changed."""
        start = net_leaves(self.net)
        if [one.keys() for one in some] != [one.keys() for one in others]:
            return True
        for one, other in zip(some, others, strict=True):
            gap = moved = torch.zeros((), dtype=torch.float64)
            for name, x in one.items():
                first, y = start.get(name), other[name]
                if x.shape != y.shape:
                    return True
                x, y = (value.detach().cpu().double().nan_to_num() for value in (x, y))
                before = torch.zeros((), dtype=torch.float64)
                if first is not None and x.shape[1:] == first.shape:
                    before = first.detach().cpu().double()
                far, way = (x - y).square().sum(), (x - before).square().sum()
                if one[name].is_floating_point():
                    gap, moved = gap + far, moved + way
                elif not far.sqrt() <= bound * way.sqrt():  # counts are larger than weights
                    return True
            if not gap.sqrt() <= bound * (moved.sqrt() + 1e-12):
                return True
        return False

    def _round(self, engine: "SequentialEngine", programs: dict[int, LocalProgram]) -> list[Tree]:
        """Return what is trained and computed in each stage, and by the models after the last one.

        Of each stage there is a round, whose results the server gets again in its last round.
        An exception of the server ends the smoke round: fewer clients than in the run take part.

        Args:
            engine: The engine.
            programs: The programs of the stages, which are added to it: two smoke rounds have the
                same objects, as the clients of one round do.
        """
        method, ids = self.algorithm, self._ids()
        if is_lightning(self.net) and self.federation.dataset.extras:
            from flbench.experiment import own_module_programs

            own_module_programs.refuse_further_values(
                engine.net, tuple(self.federation.dataset.extras)
            )
        state = self._state(ids)
        net = {name: leaf.detach() for name, leaf in net_leaves(self.net).items()}
        found = [net, dict(state.server), take(state.clients, ids)]
        try:
            for number, stage in enumerate(method.stages()):
                begin = state = replace(state, stage=number, stage_round=0)
                settings = self._settings(state, setup=stage.setup)
                with rounds.seeded_method(method, settings.draw):
                    program = programs.setdefault(number, self._program(state))
                    with rounds.naming(method, state):
                        hook_checks.kept(program, state)
                    trained = self._trained(engine, state, settings, ids, program)
                    found += _trees(trained.results)
                    for last in (0, stage.rounds - 1)[: stage.rounds]:
                        now = begin.round + (0 if stage.setup else last)
                        state = replace(state, stage=number, stage_round=last, round=now)
                        with _ending():
                            seen = rounds.visible_to_server(state, program)
                            cohort = method.cohort(seen, settings.draw)
                            state = rounds.exchange(method, state, trained).state
                        found += [{"cohort": cohort}, dict(state.server), take(state.clients, ids)]
            found += self._models(engine, state, programs[len(programs) - 1], ids)
        except UnknownNameError as error:
            # Earlier rounds of the run may give the server tensors that the smoke round does not.
            if not error.is_of_server or state.is_initial:
                raise
        except _EndError:
            pass
        return found

    def _models(
        self, engine: Engine, state: State, program: LocalProgram, ids: Tensor
    ) -> Iterator[Tree]:
        """Yield what the deployed models are and predict, as in an evaluation.

        Args:
            engine: A sequential engine.
            state: State after the last stage.
            program: Program of the last stage.
            ids: The clients.

        Raises:
            UnknownNameError: A model reads a tensor that nothing writes.
        """
        method = self.algorithm
        with _ending():
            models = rounds.deployments(method, rounds.visible_to_server(state, program), ids)
        for name, model in models.items():
            sent = (model.dispatch.shared, model.dispatch.rows)
            yield from (tree for one in sent for tree in (one.values, one.mask))
            yield {key: torch.tensor(x) for key, x in model.dispatch.numbers.items()}
            before = shortened(model.program or LocalProgram(()), STEPS).steps
            try:
                with _ending():
                    results = engine.run(
                        LocalProgram((*before, _observed(model))),
                        ids[:1],
                        rows=partial(take, state.clients),
                        dispatch=partial(_dispatched, model),
                        settings=rounds.settings_of(method, state),
                    )
            except UnknownNameError as error:
                place = f"`algorithm.name={method.name}`, the model `{name}` of `deploy`"
                raise error.placed(place) from error
            yield from _trees(results)

    def _by_sgd(self, engine: Engine) -> list[Tree]:
        """Return results of the longest stage by plain SGD, which does not enlarge rounding."""

        def changed(step: Step) -> Step:
            if not isinstance(step, Phase):
                return step
            sgd = step.optimizer.altered(name="sgd", momentum=0.0, nesterov=False)
            return replace(step, optimizer=sgd)

        ids = self._ids()
        state = rounds.training_state(self.algorithm, self._state(ids))
        settings = self._settings(state)
        with rounds.seeded_method(self.algorithm, settings.draw):
            program = self._program(state)
        program = replace(program, steps=tuple(map(changed, program.steps)))
        return _trees(self._trained(engine, state, settings, ids, program).results)

    def _trained(
        self,
        engine: Engine,
        state: State,
        settings: RoundSettings,
        ids: Tensor,
        program: LocalProgram,
    ) -> rounds.Trained:
        """Return the results of a few steps of some clients."""
        before = write_counts(state.server)
        trained = rounds.train(
            self.algorithm,
            engine,
            state,
            settings,
            ids=ids,
            program=program,
            observe=() if is_lightning(self.net) else (_observed(),),
        )
        if write_counts(state.server) != before:
            raise ConfigError(
                f"the method `{self.algorithm.name}` changes `state.server` in place when it"
                " dispatches, which evaluations do too. Return new values from `aggregate`, and"
                " dispatch others than the server's as copies."
            )
        return trained

    def _state(self, ids: Tensor) -> State:
        """Return a state before the first round whose rows of some clients can be written."""
        state = self.begin(self.net, self.algorithm)
        server = {name: value.clone() for name, value in state.server.items()}
        return replace(state, server=server, clients=only_rows(state.clients, ids))

    def _settings(self, state: State, *, setup: bool = False) -> RoundSettings:
        """Return the settings of a round, with small batches."""
        settings = rounds.settings_of(self.algorithm, state, setup=setup)
        size = min(SAMPLES, settings.train.batch_size)
        return replace(settings, train=settings.train.altered(batch_size=size))

    def _program(self, state: State) -> LocalProgram:
        """Return the local program of a state, with a few steps in each phase."""
        with rounds.naming(self.algorithm, state):
            seen = rounds.visible_to_server(state, LocalProgram(()))
            return shortened(self.algorithm.local_program(seen), STEPS)

    def _names(self) -> str:
        """Return the names of the parts whose code is not known, as text."""
        names = dict.fromkeys(f"`{_name(part)}`" for part in self.unknown)
        if is_of_user(self.algorithm):
            names[f"the method `{self.algorithm.name}`"] = None
        return listed(names, 3) or f"`model.name={self.algorithm.setting.model}`"

    def _ids(self) -> Tensor:
        """Return the ids of the smallest clients with two training samples or more."""
        sizes = self.federation.sizes
        ids = torch.argsort(sizes, stable=True)
        return ids[sizes[ids] > 1][:CLIENTS].sort().values

    def _few(self) -> Federation:
        """Return a federation in which these clients have a few training samples each."""
        train = list(self.federation.partition.parts["train"])
        for k, client in enumerate(self._ids().tolist()):
            train[client] = train[client][: SAMPLES + 2 + k]
        parts = self.federation.partition.parts | {"train": train}
        return replace(self.federation, partition=replace(self.federation.partition, parts=parts))

    def _engine(self, precision: str) -> "SequentialEngine":
        """Return a sequential engine for a smoke round."""
        from flbench.engine.sequential import SequentialEngine

        config = self.engine.altered(name="sequential", precision=precision)
        return SequentialEngine(self.net, self._few(), config)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Return a context manager with one thread and without warnings; all is set back after."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with seeded(0), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            torch.set_num_threads(threads)


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


def _dispatched(model: Deployment, _: Tensor) -> Dispatch:
    """Return what the server sends for a deployed model, with its masks applied."""
    return apply_masks(model.dispatch)


def _trees(results: Results) -> list[Tree]:
    """Return what a cohort has computed, without what a module has logged, such as a clock."""
    seen = {name: x for name, x in results.observed.items() if not name.startswith(LOGGED)}
    return [results.kept, results.sent.values, seen, {"losses": results.losses}]


def _name(part: object) -> str:
    """Return the name of a class or function, or that of an object's class."""
    return str(getattr(part, "__qualname__", type(part).__qualname__)).replace("<locals>.", "")
