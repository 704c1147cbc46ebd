"""What a method has learned besides models, as tables for reports.

Methods return these tables, a run writes them to its folder, and reports draw them. The type
belongs to none of these, because methods import nothing of reports.
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
