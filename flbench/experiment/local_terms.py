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

from flbench.algorithms.base import Algorithm
from flbench.algorithms.setting import Setting
from flbench.algorithms.shared.prototypes import CountClasses
from flbench.client.loss_and_optimizer import local_loss
from flbench.client.program import CrossEntropyTerm, LocalProgram, LossTerm, Phase, Statistic, Step
from flbench.config.schema import OwnTermConfig, TermConfig
from flbench.core import parts, source_hash
from flbench.core.errors import ConfigError
from flbench.core.registry import TERMS
from flbench.core.types import Context, State
from flbench.losses import CrossEntropy
from flbench.losses.class_counts import COUNTS
from flbench.losses.own import OwnTerm


@dataclass(frozen=True)
class ExtendedCrossEntropy:
    """A method's cross entropy with further terms, each times its own weight.

    All of them read the outputs that the method's cross entropy reads.

    Attributes:
        base: The method's cross entropy.
        terms: The terms; a plain cross entropy is one of them, unless others take its place.
    """

    base: CrossEntropyTerm
    terms: tuple[LossTerm, ...]

    @property
    def weight(self) -> float | str:
        """Factor that the method gives its cross entropy; it multiplies the whole value."""
        return self.base.weight

    def __call__(self, context: Context) -> Tensor:
        """Return the term, 0-dim."""
        return local_loss(self.terms, context.with_outputs(self.base.outputs(context)))


@dataclass(frozen=True)
class LocalTerms:
    """The terms of `train.terms`, as a rewrite of a method's programs.

    Attributes:
        terms: `ExtendedCrossEntropy.terms`.
    """

    terms: tuple[LossTerm, ...]

    def __call__(self, program: LocalProgram, setting: Setting) -> LocalProgram:
        """Return a program whose phases take the terms into account.

        The client counts its training samples by class first. Nothing else changes, and nothing
        more is kept or sent. A program without a phase that has a cross entropy is returned as it
        is.
        """
        steps = tuple(map(self._extended, program.steps))
        if steps == program.steps:
            return program
        count = Statistic(COUNTS.partition(".")[0], CountClasses(setting.classes))
        return replace(program, steps=(count, *steps))

    def _extended(self, step: Step) -> Step:
        """Return a step of a program; a phase has its cross entropies extended."""
        if not isinstance(step, Phase):
            return step
        terms = (
            ExtendedCrossEntropy(term, self.terms) if isinstance(term, CrossEntropyTerm) else term
            for term in step.terms
        )
        return replace(step, terms=tuple(terms))


def make(entries: Sequence[TermConfig]) -> tuple[LocalTerms, list[str | None]]:
    """Return the terms of `train.terms`, and the SHA-256 of the user's, None for flbench's.

    Raises:
        ConfigError: A function of the user is not there, has changed since the run began, or cannot
            be called.
    """
    found: list[LossTerm] = []
    hashes: list[str | None] = []
    for k, entry in enumerate(entries):
        try:
            if isinstance(entry, OwnTermConfig):
                own = _own_term(entry)
                whose, cure = f"`{entry.name}`", "Restore the source, or start a new run."
                now = source_hash.checked(own.function, entry.name, entry.sha256, whose, cure)
                found.append(own)
            else:
                term = TERMS.find(entry.name)(**entry.model_dump(exclude={"name", "instead"}))
                found.append(term)
                now = None
        except ConfigError as error:
            raise ConfigError(f"`train.terms.{k}`: {error}") from error
        hashes.append(now)
    both = list(zip(found, entries, strict=True))
    instead = [term for term, entry in both if entry.instead] or [CrossEntropy()]
    added = [term for term, entry in both if not entry.instead]
    return LocalTerms((*instead, *added)), hashes


def check_method(algorithm: Algorithm, start: State) -> None:
    """Raise a ConfigError if no training phase of a method has a cross entropy."""
    for number in range(len(algorithm.stages())):
        program = algorithm.local_program(replace(start, stage=number, clients={}))
        phases = [step for step in program.steps if isinstance(step, Phase)]
        if any(isinstance(term, ExtendedCrossEntropy) for step in phases for term in step.terms):
            return
    raise ConfigError(
        f"`train.terms`: no training phase of `{algorithm.name}` has a cross entropy to add terms"
        " to. Remove the key, or take another method."
    )


def _own_term(entry: OwnTermConfig) -> OwnTerm:
    """Return the term of a function of the user; raise a ConfigError if it cannot be called."""
    arguments = entry.arguments()
    term = OwnTerm.load(entry.name, tuple(arguments.items()), entry.weight)
    if not callable(term.function):
        kind = type(term.function).__name__
        raise ConfigError(f"`{entry.name}` is {kind}, not a function of a Context.")
    whose, others = f"`{entry.name}`", OwnTermConfig.model_fields
    parts.check_arguments(term.function, ["a Context"], arguments, whose, others=others)
    return term
