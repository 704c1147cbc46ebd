"""What a method has learned besides models, as data for reports: tables and points.

Methods return these types, a run writes them to its folder, and reports draw them. They belong to
none of these, because methods import nothing of reports.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class LearnedTable:
    """A table of what a method has learned besides the models, for reports.

    Attributes:
        name: Short name, a part of the names of files.
        about: One sentence or two: what rows, columns and values are.
        values: [R, Q], NaN where there is no value: a tensor, or an array if it is read from a run.
        rows: What the R rows are: `client`, `class`, `group`, `layer` or another word.
        columns: What the Q columns are, as `rows`.
        labels: Names of the columns, if they are neither classes nor clients; () for numbers.
    """

    name: str
    about: str
    values: "ArrayLike"
    rows: str = "client"
    columns: str = "client"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class LearnedPoints:
    """Vectors that a method has learned, one per class and place, for a map of them in reports.

    Attributes:
        name: Short name, a part of the names of files.
        about: One sentence or two: what a point is.
        values: [P, D], the points: a tensor; or an array [P, 2] of their first two principal
            components if it is read from a run.
        classes: [P] int64, the class of each point.
        is_shared: [P] bool: the points of the server, or of a group; the others are of clients.
    """

    name: str
    about: str
    values: "ArrayLike"
    classes: "ArrayLike"
    is_shared: "ArrayLike"


Learned = LearnedTable | LearnedPoints
