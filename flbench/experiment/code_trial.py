"""Trials of code that flbench does not own, before the first round.

Methods, engines and checkpoints take for granted that a training of a client depends on its
tensors, its samples and the run's seed alone. The code of the user may depend on more: on what it
remembers from call to call, or on random numbers of its own. A client is therefore trained twice
for a few steps. Code that remembers something from one training to the next, or that gives other
results, is refused, because results would depend on the order of clients, on the number of workers
and on a resume. A net may remember what it wants in parameters and buffers, which begin as the
client's own.

The vectorized engine calls code once for many clients. Code that it may call so gives the results
of the sequential engine, up to rounding.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from flbench.algorithms import Algorithm, Deployment
from flbench.algorithms.base import is_of_user
from flbench.client.logged import LOGGED
from flbench.client.program import LocalProgram, Phase, Statistic, Step, shortened
from flbench.config.schema import EngineConfig
from flbench.core.errors import ConfigError, RunError, UnknownNameError, UserError
from flbench.core.ownership import unknown_parts
from flbench.core.raised import is_of_gradients, is_raised_by_user, user_line
from flbench.core.rng import Draw, seeded
from flbench.core.tree import digest, take
from flbench.core.types import Dispatch, Message, Results, Samples, State, StepContext, Tree
from flbench.core.wording import listed
from flbench.data.federation import Federation
from flbench.engine.base import Engine
from flbench.experiment import hook_checks, rounds
from flbench.experiment.communication import apply_mask, apply_masks
from flbench.experiment.constant_draws import ConstantDraws
from flbench.experiment.evaluate import Predict
from flbench.models.base import is_lightning, net_leaves

if TYPE_CHECKING:  # it imports Lightning, which takes a second
    from flbench.engine.sequential import SequentialEngine

CURE: Final = (
    "Draw from PyTorch's, NumPy's or Python's global generator, which flbench seeds for each client"
    " and round."
)
CURES: Final = {
    "dtype": " Engines give parameters, buffers and samples one type, that of `engine.precision`:"
    " convert to the type of a parameter instead of a fixed one.",
    "inplace operation": " Write `x = x + y` instead of `x += y`, and take functions without `_` at"
    " the end of their names.",
    "does not require grad": " Set requires_grad where the net is made: what its code freezes while"
    " it trains would be frozen for all further clients.",
}
"""What else to say about an exception, by words of its text."""
STEPS: Final = 3
"""Optimizer steps in each phase."""
SAMPLES: Final = 8
"""Largest number of samples of a step."""
TOLERANCE: Final = {"64-true": 1e-6, "32-true": 1e-2, "tf32": 5e-2}
"""Largest difference between two engines, as a share of what the training has changed, by
precision; 0.1 for the others."""


@dataclass(frozen=True)
class Logits:
    """What the net computes in eval mode, as the function of a Statistic."""

    def __call__(self, context: StepContext) -> Tree:
        """Return the logits [B, C] of a batch."""
        return {"logits": context.out.logits}


@dataclass(frozen=True)
class ModelScores:
    """What a deployed model computes, as the function of a Statistic.

    Attributes:
        model: The deployment.
    """

    model: Deployment

    def __call__(self, context: StepContext) -> Tree:
        """Return the scores [B, C] of a batch."""
        return {"scores": Predict(self.model.weights, self.model.predict).scores(context)}


FEW: Final = Samples("train", limit=2)
OBSERVE: Final = (Statistic("trial", Logits(), reduce="rows", samples=FEW),)


@dataclass(frozen=True)
class CodeTrial:
    """Short trainings with the parts of a run.

    Attributes:
        engine: Section `engine` as the run uses it.
        algorithm: The method.
        net: The net.
        has_own_net: Whether the user has given the net.
        federation: Samples of the run.
        state: State before the first round of training; it is not changed, and rows of clients may
            share memory.
    """

    engine: EngineConfig
    algorithm: Algorithm
    net: nn.Module
    has_own_net: bool
    federation: Federation
    state: State

    def check(self, anew: "Callable[[], CodeTrial]") -> None:
        """Execute a smoke round twice, and with parts that are made anew.

        Nothing is done for a run that has no code but that of PyTorch and flbench.

        Args:
            anew: Function that makes the net and the method anew, from the same seed.

        Raises:
            UnknownNameError: A step, `aggregate` or a deployment reads a tensor that nothing
                writes, or the program keeps, sends or masks one.
            ConfigError: The code remembers something from one round to the next, its results
                differ, or it raised an exception.
        """
        ids = self._clients(2)
        parts = self._parts()
        if not len(ids) or not parts:
            return
        own = replace(self, algorithm=copy.deepcopy(self.algorithm))
        with self._alone():
            engine = self._engine(self.engine.precision)
            programs: dict[int, LocalProgram] = {}
            try:
                first = own._smoke(engine, ids, programs)
                second = own._smoke(engine, ids, programs)
                other = anew()
                starts = [self._start(ids), other._start(ids)]
                third = other._smoke(other._engine(self.engine.precision), ids, {})
            except (UserError, RunError):
                raise
            except Exception as error:
                if sentence := _raised(error):
                    raise ConfigError(sentence) from error
                return  # the first round says what is wrong
        if not self._are_equal(first, second):
            raise ConfigError(
                f"two rounds of client {self.federation.partition.called(int(ids[0]))} from the"
                f" same state, with the same batches and seeds, differ. {parts} may draw from a"
                " random generator of its own, read a clock, or remember earlier calls other than"
                " in the buffers and trained parameters of a net (register_buffer, in a module that"
                f" is not in eval mode). {CURE}"
            )
        if digest(starts[0]) != digest(starts[1]) or not self._are_equal(first, third):
            raise ConfigError(
                f"the net and the method were made twice from the same seed, and their weights or"
                f" results differ. What makes {parts} (`__init__`, or a function that is given) may"
                " draw from a random generator of its own, read a clock, or remember earlier calls."
                f" {CURE}"
            )

    def _smoke(
        self, engine: Engine, ids: Tensor, programs: dict[int, LocalProgram]
    ) -> list[tuple[Results, list[Tree]]]:
        """Return what a short round of each stage of a user's method computes, and its models.

        Two clients train for a few steps, and the server gets their results once for each client
        of the cohort. Of a method of flbench, the clients of its longest stage train, no more.

        Args:
            engine: A sequential engine.
            ids: The clients that train.
            programs: The programs of the stages, which are added to it: two rounds have the same
                objects, as the clients of one round do.
        """
        if not is_of_user(self.algorithm):
            program = programs.setdefault(0, self._program(self.state))
            return [(self._trained(engine, program, ids), [])]
        # Methods modify no argument; one that does must not change the next trial.
        server = {name: value.clone() for name, value in self.state.server.items()}
        state, found = replace(self.state, stage=0, server=server), []
        try:
            for number in range(len(self.algorithm.stages())):
                state = replace(state, stage=number)
                program = programs.setdefault(number, self._program(state))
                with rounds.seeded_method(self.algorithm, self._draw(state)):
                    results = self._trained(engine, program, ids, state=state)
                self._check_unchanged(server)
                trees: list[Tree] = []
                found.append((results, trees))
                state = self._after_stage(state, program, results, trees)
            found += self._models(engine, state, programs[len(programs) - 1], ids)
        except UnknownNameError as error:
            # Earlier stages of the run may give the server tensors that the trial does not.
            if not error.is_of_server or state.is_initial:
                raise
        except _EndError:
            pass
        return found

    def _check_unchanged(self, server: Tree) -> None:
        """Raise a ConfigError if a dispatch has changed the server's tensors, which are copies."""
        for name, value in self.state.server.items():
            if digest([{name: value}]) != digest([{name: server[name]}]):  # NaN is NaN
                raise ConfigError(
                    f"the method `{self.algorithm.name}` changes `{name}` in `state.server` in"
                    " place when it dispatches, which evaluations do too. Return new values"
                    " from `aggregate`, and dispatch others than the server's as copies."
                )

    def _after_stage(
        self, state: State, program: LocalProgram, trained: Results, found: list[Tree]
    ) -> State:
        """Return a state like the one after a stage, in which only the server's tree is new.

        Args:
            state: State at the beginning of the stage.
            program: Program of the stage.
            trained: Results of a few clients.
            found: List that what the server computes is added to.

        Raises:
            UnknownNameError: The server reads a tensor that nothing writes.
            _EndError: It raised another exception. The first round says what is wrong.
        """
        stage, method = self.algorithm.stages()[state.stage], self.algorithm
        settings = rounds.settings_of(method, state, setup=stage.setup)
        seen = rounds.visible_to_server(state, program)
        with _ended(), rounds.seeded_method(method, settings.draw):
            cohort = method.cohort(seen, settings.draw)
            hook_checks.cohort(method, cohort)
            results = _repeated(replace(trained, sent=apply_mask(trained.sent)), cohort)
            links, update = rounds.of_server(method, seen, results)
            with rounds.naming(method, state, "aggregate"):
                hook_checks.update(method, update, state, len(cohort))
            found += [{"cohort": cohort}, update.server, {} if links is None else {"links": links}]
            if update.reply is not None:
                found += [update.reply.values, update.reply.mask]
        server = {**state.server, **update.server}
        state = replace(
            state,
            round=state.round + (0 if stage.setup else stage.rounds),
            server=server,
            participation_count=state.participation_count + 1,
            is_initial=False,
        )
        if stage.rounds > 1:  # its last round may be special
            last = replace(seen, server=server, stage_round=stage.rounds - 1, is_initial=False)
            last = replace(last, round=state.round - (not stage.setup))
            with suppress(Exception), rounds.seeded_method(method, settings.draw):
                server = server | rounds.of_server(method, rounds.named(last), results)[1].server
        return replace(state, server=server)

    def _models(
        self, engine: Engine, state: State, program: LocalProgram, ids: Tensor
    ) -> list[tuple[Results, list[Tree]]]:
        """Return what the deployed models are and predict, as in an evaluation.

        Args:
            engine: A sequential engine.
            state: State after the last stage.
            program: Program of the last stage.
            ids: The clients.

        Raises:
            UnknownNameError: A model reads a tensor that nothing writes.
        """
        seen = rounds.visible_to_server(state, program)
        try:
            with _ended():
                models = rounds.deployments(self.algorithm, seen, ids, checked=True)
        except UnknownNameError:
            return []  # the server's tree may have further tensors after more rounds
        found = []
        for name, model in models.items():
            trees: list[Tree] = []
            for sent in (model.dispatch.shared, model.dispatch.rows):
                trees += [sent.values, sent.mask]
            trees.append({key: torch.tensor(x) for key, x in model.dispatch.numbers.items()})
            predict = Statistic("prediction", ModelScores(model), reduce="rows", samples=FEW)
            before = shortened(model.program or LocalProgram(()), STEPS).steps
            try:
                with _ended():
                    results = engine.run(
                        LocalProgram((*before, predict)),
                        ids[:1],
                        rows=partial(take, state.clients),
                        dispatch=partial(_dispatched, model),
                        settings=rounds.settings_of(self.algorithm, state),
                    )
            except UnknownNameError as error:
                place = f"`algorithm.name={self.algorithm.name}`, the model `{name}` of `deploy`"
                raise error.placed(place) from error
            found.append((results, trees))
        return found

    def _start(self, ids: Tensor) -> list[Tree]:
        """Return the tensors before the first round: of the net, the server, and some clients."""
        net = {name: leaf.detach() for name, leaf in net_leaves(self.net).items()}
        return [net, dict(self.state.server), take(self.state.clients, ids)]

    def check_stacked(self) -> None:
        """Train a few clients by the sequential and the vectorized engine.

        The two draw other random numbers. Where the results differ, they are compared again with
        constants in place of all random numbers.

        Nothing is done for the nets and methods of flbench, nor for a LightningModule, which the
        vectorized engine itself refuses.

        Raises:
            ConfigError: The vectorized engine cannot run the code, or gives other results.
        """
        if is_lightning(self.net):
            return
        program, parts = self._program(self.state), self._parts()
        if not self.has_own_net and not parts:
            return
        ids = self._clients(3)
        if not len(ids):
            return
        with self._alone():
            for precision in dict.fromkeys(("64-true", self.engine.precision)):
                try:
                    one = self._engine(precision)
                    expected = self._trained(one, _with_sgd(program), ids)
                except (UserError, RunError):
                    raise
                except Exception:  # noqa: BLE001 the code may be written for float32
                    continue
                self._compare(one, expected, _with_sgd(program), ids, precision, parts)
                return

    def _compare(
        self,
        one: "SequentialEngine",
        expected: Results,
        program: LocalProgram,
        ids: Tensor,
        precision: str,
        parts: str,
    ) -> None:
        """Raise a ConfigError if the vectorized engine trains something else."""
        from flbench.engine.vectorized import VectorizedEngine  # it loads PyTorch's compiler

        parts = parts or f"`model.name={self.algorithm.setting.model}`"
        subject = f"`engine.name=vectorized` cannot train with {parts}"
        cure = "Use engine.name=sequential, ray or auto."
        bound = TOLERANCE.get(precision, 0.1)
        try:
            config = self.engine.altered(precision=precision, block=None)
            many = VectorizedEngine(self.net, self.federation, config)
            found = self._trained(many, program, ids)
            differs = self._difference(expected, found, bound)
            if differs:
                with ConstantDraws():
                    expected = self._trained(one, program, ids)
                    found = self._trained(many, program, ids)
                differs = self._difference(expected, found, bound)
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
                f"{subject}: after {STEPS} steps of {len(ids)} clients, {differs} differs from that"
                " of the sequential engine by more than rounding. The code may remember earlier"
                f" calls, change buffers outside of training, or read the batch as a whole. {cure}"
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
        pairs = [("the training loss", expected.losses, found.losses)]
        pairs += [
            (f"what the net computes (`{name}`)", value, found.observed[name])
            for name, value in expected.observed.items()
            if name in found.observed
        ]
        for name, one, other in pairs:
            one, other = one.double().nan_to_num(), other.double().nan_to_num()
            if not (one - other).norm() <= bound * one.norm() + 1e-12:
                return name
        return None

    def _draw(self, state: State) -> Draw:
        """Return the random streams of the round that follows a state."""
        return rounds.settings_of(self.algorithm, state).draw

    def _program(self, state: State) -> LocalProgram:
        """Return the local program of a state."""
        seen = rounds.visible_to_server(state, LocalProgram(()))
        with (
            rounds.seeded_method(self.algorithm, self._draw(state)),
            rounds.naming(self.algorithm, state),
        ):
            return self.algorithm.local_program(seen)

    def _parts(self) -> str:
        """Return the names of the parts of net, programs and models whose code is not known."""
        program = self._program(self.state)
        seen = rounds.visible_to_server(self.state, program)
        try:
            models = tuple(self.algorithm.deployed(seen, torch.tensor([0])).values())
        except Exception:  # noqa: BLE001 a method may have no model before its first round
            models = ()
        deployments = [(model.program, model.predict, model.weights) for model in models]
        unknown = unknown_parts((self.net, program, deployments))
        names = dict.fromkeys(f"`{_name(part)}`" for part in unknown)
        if is_of_user(self.algorithm):
            names[f"the method `{self.algorithm.name}`"] = None
        return _listed(list(names))

    def _clients(self, count: int) -> Tensor:
        """Return the ids of the smallest clients with two training samples or more."""
        sizes = self.federation.sizes
        ids = torch.argsort(sizes, stable=True)
        return ids[sizes[ids] > 1][:count].sort().values

    def _engine(self, precision: str) -> "SequentialEngine":
        """Return a sequential engine for a trial."""
        from flbench.engine.sequential import SequentialEngine

        config = self.engine.altered(name="sequential", precision=precision)
        return SequentialEngine(self.net, self.federation, config)

    def _trained(
        self,
        engine: Engine,
        program: LocalProgram,
        ids: Tensor,
        observe: tuple[Step, ...] = OBSERVE,
        state: State | None = None,
    ) -> Results:
        """Return the results of a few steps of some clients, from the trial's state or another."""
        state = state or self.state
        size = min(SAMPLES, self.algorithm.setting.train.batch_size)
        sizes = self.federation.sizes[ids].tolist()
        while size > 2 and any(count % size == 1 for count in sizes):
            size -= 1  # some layers cannot train on a single sample
        settings = rounds.settings_of(self.algorithm, state)
        train = settings.train.altered(batch_size=size)
        return rounds.train(
            self.algorithm,
            engine,
            state,
            replace(settings, train=train),
            ids=ids,
            program=shortened(program, STEPS),
            checked=True,
            observe=() if is_lightning(self.net) else observe,
        ).results

    def _are_equal(
        self,
        one: list[tuple[Results, list[Tree]]],
        other: list[tuple[Results, list[Tree]]],
    ) -> bool:
        """Return whether two smoke rounds have equal results: on a CPU bit for bit."""
        if self.engine.device.startswith("cuda"):
            pairs = zip(one, other, strict=False)
            return all(self._difference(a[0], b[0], 0.1) is None for a, b in pairs)
        digests = []
        for found in (one, other):
            trees = []
            for results, more in found:
                # A module may log a clock.
                seen = {k: x for k, x in results.observed.items() if not k.startswith(LOGGED)}
                losses = {"losses": results.losses}
                trees += [results.kept, results.sent.values, seen, losses, *more]
            digests.append(
                digest([{k: torch.as_tensor(x) for k, x in tree.items()} for tree in trees])
            )
        return digests[0] == digests[1]

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
def _ended() -> Iterator[None]:
    """Return a context manager in which an exception ends a smoke round, but for unknown names."""
    try:
        yield
    except UnknownNameError:
        raise
    except Exception as error:
        raise _EndError from error


def _dispatched(model: Deployment, _: Tensor) -> Dispatch:
    """Return what the server sends for a deployed model, with its masks applied."""
    return apply_masks(model.dispatch)


def _repeated(results: Results, ids: Tensor) -> Results:
    """Return results of clients in which the rows of a few clients are repeated.

    Args:
        results: Results of the few clients.
        ids: Ids [K] int64 of the clients.
    """
    rows = torch.arange(len(ids)) % len(results.ids)  # [K]
    return replace(
        results,
        ids=ids,
        steps=results.steps[rows],
        losses=results.losses[rows],
        kept={},
        sent=Message(take(results.sent.values, rows), take(results.sent.mask, rows)),
    )


def _with_sgd(program: LocalProgram) -> LocalProgram:
    """Return a program with plain SGD, whose steps do not enlarge what is only rounding."""

    def changed(step: Step) -> Step:
        if not isinstance(step, Phase):
            return step
        sgd = step.optimizer.altered(name="sgd", momentum=0.0, nesterov=False)
        return replace(step, optimizer=sgd)

    return replace(program, steps=tuple(map(changed, program.steps)))


def _name(part: object) -> str:
    """Return the name of a class or function, or that of an object's class."""
    return str(getattr(part, "__qualname__", type(part).__qualname__)).replace("<locals>.", "")


def _listed(names: list[str]) -> str:
    """Return up to three names as a text; names of attributes are quoted."""
    return listed((name if "`" in name else f"`{name}`" for name in names), 3)


def _raised(error: Exception) -> str | None:
    """Return a sentence on an exception of the user's code; None if it is not the user's."""
    text = str(error)
    line = user_line(error) if is_raised_by_user(error) else ""
    if not (line or is_of_gradients(error)) or "out of memory" in text:
        return None
    cure = next((cure for word, cure in CURES.items() if word in text), "")
    return (
        f"training a client for a few steps raised {type(error).__name__}:"
        f" {text.rstrip('.')}{line}. Correct the code.{cure}"
    )
