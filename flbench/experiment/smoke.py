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
from collections.abc import Callable, Iterator
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
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, RunError, UnknownNameError, UserError
from flbench.core.ownership import unknown_parts
from flbench.core.raised import is_raised_by_user, user_line
from flbench.core.rng import seeded
from flbench.core.storage import only_rows
from flbench.core.tree import digest, take, write_counts
from flbench.core.types import Dispatch, Results, Samples, State, StepContext, Tree
from flbench.core.wording import listed
from flbench.data.federation import Federation
from flbench.engine.base import Engine, RoundSettings
from flbench.experiment import hook_checks, rounds
from flbench.experiment.communication import apply_masks
from flbench.experiment.constant_draws import ConstantDraws
from flbench.experiment.evaluate import Predict
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
TOLERANCE: Final = {"64-true": 1e-6, "32-true": 1e-2, "tf32": 5e-2}
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
        has_own_net: Whether the user has given the net.
        federation: Samples of the run.
        begin: (net, method) -> the state before the first round, which is only to be read.
    """

    engine: EngineConfig
    algorithm: Algorithm
    net: nn.Module
    has_own_net: bool
    federation: Federation
    begin: Callable[[nn.Module, Algorithm], State]

    def check(self, anew: "Callable[[], Smoke]") -> nn.Module:
        """Execute a smoke round twice, and once with parts that are made anew; return a used net.

        Nothing is done for a run that has no code but that of PyTorch and flbench.

        Args:
            anew: Function that makes the net and the method anew, from the same seed.

        Raises:
            UnknownNameError: A step, `aggregate` or a deployment reads a tensor that nothing
                writes, or the program keeps, sends or masks one.
            ConfigError: Results differ, or the code raised an exception.
        """
        parts = self._parts()
        if not len(self._ids()) or not parts:
            return self.net
        start = self.begin(self.net, self.algorithm)
        hook_checks.programs(self.algorithm, start)
        method = hook_checks.checked(copy.deepcopy(self.algorithm), start)
        own = replace(self, algorithm=method)
        with self._alone():
            engine = self._engine(self.engine.precision)
            programs: dict[int, LocalProgram] = {}
            try:
                first = own._round(engine, programs)
                second = own._round(engine, programs)
                other = anew()
                third = other._round(other._engine(self.engine.precision), {})
            except (UserError, RunError):
                raise
            except Exception as error:
                if is_raised_by_user(error) or is_lightning(self.net):
                    raise
                return engine.net  # the first round says what is wrong
        for found, when in ((second, ""), (third, "when net and method are made twice, ")):
            if not self._are_equal(first, found):
                raise ConfigError(
                    f"{when}two short trainings from the same seed differ. {parts} may draw from a"
                    " random generator of its own, read a clock, or remember earlier calls other"
                    " than in the buffers and trained parameters of a net (register_buffer, in a"
                    " module that is not in eval mode). Draw from PyTorch's, NumPy's or Python's"
                    " global generator, which flbench seeds for each client and round."
                )
        return engine.net

    def check_stacked(self) -> None:
        """Train a few clients by the sequential and the vectorized engine.

        The two draw other random numbers. Where the results differ, they are compared again with
        constants in place of all random numbers.

        Nothing is done for the nets and methods of flbench, nor for a LightningModule, which the
        vectorized engine itself refuses.

        Raises:
            ConfigError: The vectorized engine cannot run the code, or gives other results.
        """
        parts = self._parts()
        if is_lightning(self.net) or not (self.has_own_net or parts) or not len(self._ids()):
            return
        with self._alone():
            for precision in dict.fromkeys(("64-true", self.engine.precision)):
                try:
                    one = self._engine(precision)
                    expected = self._by_sgd(one)
                except (UserError, RunError):
                    raise
                except Exception:  # noqa: BLE001 the code may be written for float32
                    continue
                self._compare(one, expected, precision, parts)
                return

    def _round(
        self, engine: "SequentialEngine", programs: dict[int, LocalProgram]
    ) -> list[tuple[Results | None, list[Tree]]]:
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
            from flbench.experiment import own_training

            own_training.refuse_further_values(engine.net, tuple(self.federation.dataset.extras))
        state = self._state(ids)
        net = {name: leaf.detach() for name, leaf in net_leaves(self.net).items()}
        found: list[tuple[Results | None, list[Tree]]] = [
            (None, [net, dict(state.server), take(state.clients, ids)])
        ]
        try:
            for number, stage in enumerate(method.stages()):
                begin = state = replace(state, stage=number, stage_round=0)
                settings = self._settings(state, setup=stage.setup)
                with rounds.seeded_method(method, settings.draw):
                    program = programs.setdefault(number, self._program(state))
                    trained = self._trained(engine, state, settings, ids, program)
                    found.append((trained.results, []))
                    for last in (0, stage.rounds - 1)[: stage.rounds]:
                        now = begin.round + (0 if stage.setup else last)
                        state = replace(state, stage=number, stage_round=last, round=now)
                        with _ending():
                            seen = rounds.visible_to_server(state, program)
                            cohort = method.cohort(seen, settings.draw)
                            state = rounds.exchange(method, state, trained).state
                        found.append((None, [{"cohort": cohort}, dict(state.server)]))
                        found.append((None, [take(state.clients, ids)]))
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
    ) -> Iterator[tuple[Results | None, list[Tree]]]:
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
            trees = [tree for one in sent for tree in (one.values, one.mask)]
            trees.append({key: torch.tensor(x) for key, x in model.dispatch.numbers.items()})
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
            yield results, trees

    def _compare(
        self, one: "SequentialEngine", expected: Results, precision: str, parts: str
    ) -> None:
        """Raise a ConfigError if the vectorized engine trains something else."""
        from flbench.engine.vectorized import VectorizedEngine  # it loads PyTorch's compiler

        parts = parts or f"`model.name={self.algorithm.setting.model}`"
        subject = f"`engine.name=vectorized` cannot train with {parts}"
        cure = "Use engine.name=sequential, ray or auto."
        # Tensors are compared by their effect: forward may write to them before it reads them.
        bound = TOLERANCE.get(precision, 0.1)
        try:
            config = self.engine.altered(precision=precision, block=None)
            many = VectorizedEngine(self.net, self._few(), config)
            differs = self._difference(expected, self._by_sgd(many), bound)
            if differs:
                with ConstantDraws():
                    differs = self._difference(self._by_sgd(one), self._by_sgd(many), bound)
        except (UserError, RunError):
            raise
        except Exception as error:
            if "out of memory" in str(error):
                raise
            raise ConfigError(
                f"{subject} for many clients at once: {type(error).__name__}: {error}"
                f"{user_line(error)}. {cure}"
            ) from error
        if differs:
            raise ConfigError(
                f"{subject}: after {STEPS} steps of {len(self._ids())} clients, {differs} differs"
                " from that of the sequential engine by more than rounding. The code may remember"
                " earlier calls, change buffers outside of training, or read the batch as a whole,"
                f" with rows of padding, where the mask is False. {cure}"
            )

    def _difference(self, expected: Results, found: Results, bound: float) -> str | None:
        """Return what differs between two engines by more than a share of what was trained."""
        if len(expected.failures) or len(found.failures):
            same = len(expected.failures) == len(found.failures)
            return None if same else "which client diverges"
        wanted = {**expected.kept, **expected.sent.values}
        got = {**found.kept, **found.sent.values}
        first = {name: value.detach() for name, value in net_leaves(self.net).items()}
        moves = {
            name: (value.double() - first[name].to(value.device).double()).norm()
            if name in first and value.shape[1:] == first[name].shape
            else value.double().norm()
            for name, value in wanted.items()
        }
        total = max(moves.values(), default=torch.tensor(0.0))
        for name, value in wanted.items():
            size = value.double().norm()
            allowed = bound * (moves[name] + 1e-3 * total + 1e-6 * size)
            if not (value.double() - got[name].double()).norm() <= allowed:
                return f"`{name}`"
        seen = {"the training loss": expected.losses, **expected.observed}
        others = {"the training loss": found.losses, **found.observed}
        for name in seen.keys() & others.keys():
            one, other = (tree[name].double().nan_to_num() for tree in (seen, others))
            if not (one - other).norm() <= bound * one.norm() + 1e-12:
                return name
        return None

    def _by_sgd(self, engine: Engine) -> Results:
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
        return self._trained(engine, state, settings, ids, program).results

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

    def _parts(self) -> str:
        """Return the names of the parts of net, programs and models whose code is not known."""
        state = rounds.training_state(self.algorithm, self.begin(self.net, self.algorithm))
        with rounds.seeded_method(self.algorithm, rounds.settings_of(self.algorithm, state).draw):
            program = self._program(state)
            seen = rounds.visible_to_server(state, program)
            try:
                models = tuple(self.algorithm.deployed(seen, torch.tensor([0])).values())
            except Exception:  # noqa: BLE001 a method may have no model before its first round
                models = ()
        deployments = [(model.program, model.predict, model.weights) for model in models]
        unknown = unknown_parts((self.net, program, deployments))
        names = dict.fromkeys(f"`{_name(part)}`" for part in unknown)
        if is_of_user(self.algorithm):
            names[f"the method `{self.algorithm.name}`"] = None
        return listed(names, 3)

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

    def _are_equal(
        self,
        one: list[tuple[Results | None, list[Tree]]],
        other: list[tuple[Results | None, list[Tree]]],
    ) -> bool:
        """Return whether two smoke rounds have equal results: on a CPU bit for bit."""
        if self.engine.device.startswith("cuda"):
            pairs = [(a[0], b[0]) for a, b in zip(one, other, strict=False) if a[0] and b[0]]
            return all(self._difference(*pair, 0.1) is None for pair in pairs)
        return _digest(one) == _digest(other)

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


def _digest(found: list[tuple[Results | None, list[Tree]]]) -> str:
    """Return a digest of all that smoke rounds have computed."""
    trees: list[dict[str, Any]] = []
    for results, more in found:
        trees += more
        if results is not None:
            # A module may log a clock.
            seen = {k: x for k, x in results.observed.items() if not k.startswith(LOGGED)}
            trees += [results.kept, results.sent.values, seen, {"losses": results.losses}]
    return digest([{k: torch.as_tensor(x) for k, x in tree.items()} for tree in trees])


def _name(part: object) -> str:
    """Return the name of a class or function, or that of an object's class."""
    return str(getattr(part, "__qualname__", type(part).__qualname__)).replace("<locals>.", "")
