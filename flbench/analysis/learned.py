"""What the methods of a comparison have learned besides their models, read from finished runs."""

from dataclasses import dataclass
from typing import Final

from flbench.algorithms.base import Algorithm
from flbench.algorithms.registry import ALGORITHMS
from flbench.analysis.arrangement import Arrangement, Entry
from flbench.core.errors import UserError
from flbench.core.learned import Learned
from flbench.data.federation import Federation
from flbench.experiment import trained

PACKED: Final = (
    "What methods learned is not shown for runs from an archive, because it has no checkpoints."
)


@dataclass(frozen=True)
class Findings:
    """What the methods of a place have learned, in the first repetition of each.

    Attributes:
        items: Pairs of a method's label and a table or points.
        missing: A sentence for each method whose run folder or data cannot be read; one for all
            methods from archives.
    """

    items: tuple[tuple[str, Learned], ...] = ()
    missing: tuple[str, ...] = ()


def read(comparison: Arrangement, place: str) -> Findings:
    """Return what the methods of a place have learned.

    Data are loaded only if there is a method that has something to show. Methods that have nothing
    are left out. Code that a run names is called only if this user's flbench has written the run,
    or if the user has allowed it.
    """
    items: list[tuple[str, Learned]] = []
    missing: list[str] = []
    loaded: dict[int, Federation] = {}  # by repetition: the same data and partition
    for method in comparison.methods:
        entry = next(iter(comparison.at(place, method)), None)
        if entry is None or not _has_something(entry):
            continue
        if entry.is_packed:
            if PACKED not in missing:
                missing.append(PACKED)
            continue
        try:
            trained.check_checkpoint(entry.run.path)
            found, samples = trained.learned(entry.run.path, loaded.get(entry.repetition))
        except UserError as error:
            missing.append(f"What {method} learned cannot be shown: {error}")
        else:
            loaded[entry.repetition] = samples
            items += [(method, one) for one in found]
    return Findings(tuple(items), tuple(missing))


def _has_something(entry: Entry) -> bool:
    """Return whether the method of a run overrides `Algorithm.learned`."""
    method = ALGORITHMS.installed(entry.run.config.algorithm.name)
    return method is not None and method.learned is not Algorithm.learned
