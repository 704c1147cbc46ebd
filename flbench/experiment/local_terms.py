"""The loss terms of `train.terms`, in the local loss of any method.

A phase of local training whose loss contains a cross entropy (a `CrossEntropyTerm`) takes the terms
into account, whatever method it belongs to; so does a fine-tuning before an evaluation. The terms
read the logits that this cross entropy reads, for example those of APFL's mixed model. What a
method measures without training on it (Statistics, such as the losses by which IFCA chooses a
cluster) stays with the plain cross entropy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from flbench.algorithms.base import Algorithm, Setting
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.client.loss_and_optimizer import local_loss
from flbench.client.program import CrossEntropyTerm, LocalProgram, LossTerm, Phase, Statistic, Step
from flbench.config.schema import OwnTermConfig, TermConfig
from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError
from flbench.core.registry import TERMS
from flbench.core.types import State, StepContext
from flbench.losses import CrossEntropy
from flbench.losses.class_counts import COUNTS
from flbench.losses.own import OwnTerm


@dataclass(frozen=True)
class ExtendedCrossEntropy:
    """A method's cross entropy to which terms are added, or whose place they take.

    The value is (the cross entropy, or the terms `instead` of it) + the terms `added`, each times
    its own weight. All of them read the outputs that the method's cross entropy reads.

    Attributes:
        base: The method's cross entropy.
        added: Terms that are added to it.
        instead: Terms that take its place; if there is none, it stays.
    """

    base: CrossEntropyTerm
    added: tuple[LossTerm, ...]
    instead: tuple[LossTerm, ...]

    @property
    def weight(self) -> float | str:
        """Factor that the method gives its cross entropy; it multiplies the whole value."""
        return self.base.weight

    def __call__(self, context: StepContext) -> Tensor:
        """Return the term, 0-dim."""
        inner = context.with_outputs(self.base.outputs(context))
        return local_loss(((*self.instead,) or (CrossEntropy(),)) + self.added, inner)


@dataclass(frozen=True)
class LocalTerms:
    """The terms of `train.terms`, as a rewrite of a method's programs.

    Attributes:
        added: Terms that are added to a method's cross entropy.
        instead: Terms that take its place.
        hashes: SHA-256 (hex) of the source of each term, in the order of `train.terms`; None for
            terms of flbench, and if it is not known.
    """

    added: tuple[LossTerm, ...]
    instead: tuple[LossTerm, ...]
    hashes: tuple[str | None, ...]

    def __call__(self, program: LocalProgram, setting: Setting) -> LocalProgram:
        """Return a program whose phases take the terms into account.

        The client counts its training samples by class first. Nothing else changes, and nothing
        more is kept or sent. A program without a phase that has a cross entropy is returned as it
        is.
        """
        steps = tuple(self._extend_step(step) for step in program.steps)
        if steps == program.steps:
            return program
        count = Statistic(COUNTS.partition(".")[0], CountClasses(setting.classes))
        return replace(program, steps=(count, *steps))

    def _extend_step(self, step: Step) -> Step:
        """Return a step of a program; a phase has its cross entropies extended."""
        if not isinstance(step, Phase):
            return step
        terms = tuple(
            ExtendedCrossEntropy(term, self.added, self.instead)
            if isinstance(term, CrossEntropyTerm)
            else term
            for term in step.terms
        )
        return replace(step, terms=terms)


def make(entries: Sequence[TermConfig]) -> LocalTerms:
    """Return the terms of `train.terms`; the smoke round tries those of the user.

    Args:
        entries: The entries, at least one.

    Raises:
        ConfigError: A function of the user is not there, has changed since the run began, or cannot
            be called.
    """
    added: list[LossTerm] = []
    instead: list[LossTerm] = []
    hashes: list[str | None] = []
    for k, entry in enumerate(entries):
        try:
            if isinstance(entry, OwnTermConfig):
                own = _own_term(entry)
                # Short: the command line shows both hashes in full.
                cure = "Restore the source, or start a new run without `sha256`."
                whose = f"`{entry.name}`"
                now = source_hash.checked(own.function, entry.name, entry.sha256, whose, cure)
                hashes.append(now)
                term: LossTerm = own
            else:
                term = TERMS.find(entry.name)(**entry.model_dump(exclude={"name", "instead"}))
                hashes.append(None)
        except ConfigError as error:
            raise ConfigError(f"`train.terms.{k}`: {error}") from error
        (instead if entry.instead else added).append(term)
    return LocalTerms(tuple(added), tuple(instead), tuple(hashes))


def check_method(algorithm: Algorithm, start: State) -> list[str]:
    """Return a note if stages have no cross entropy that the terms could join.

    Args:
        algorithm: The method, with the terms.
        start: State before the first round, without the clients' leaves.

    Raises:
        ConfigError: No stage of the method has one.
    """
    stages = algorithm.stages()
    without = []
    for number, stage in enumerate(stages):
        program = algorithm.local_program(replace(start, stage=number))
        if not any(isinstance(step, Phase) and _is_extended(step) for step in program.steps):
            without.append(f"`{stage.name}`")
    if len(without) == len(stages):
        raise ConfigError(
            f"`train.terms`: no training phase of `{algorithm.name}` has a cross entropy that a"
            " term can be added to. Remove the key, or take another method."
        )
    return [f"train.terms: there is no cross entropy in {', '.join(without)}."] if without else []


def _is_extended(phase: Phase) -> bool:
    """Return whether the terms are in the loss of a phase."""
    return any(isinstance(term, ExtendedCrossEntropy) for term in phase.terms)


def _own_term(entry: OwnTermConfig) -> OwnTerm:
    """Return the term of a function of the user; raise a ConfigError if it cannot be called."""
    arguments = entry.arguments()
    term = OwnTerm.load(entry.name, tuple(arguments.items()), entry.weight)
    if not callable(term.function):
        raise ConfigError(
            f"`{entry.name}` is {type(term.function).__name__}, not a function of a StepContext."
        )
    parts.check_arguments(
        term.function,
        ["a StepContext"],
        arguments,
        f"`{entry.name}`",
        others=OwnTermConfig.model_fields,
    )
    return term
