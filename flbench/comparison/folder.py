"""The folder of a comparison: its design in comparison.json, and a run folder for each cell."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from flbench.comparison.design import Design
from flbench.config import trust
from flbench.core.documents import as_data_error, read_json
from flbench.core.text import redact_address
from flbench.jobs.folder import JobFolder
from flbench.jobs.job import Job

MARKER: Final = "comparison.json"
FORMAT: Final = 1
ABOUT: Final = ("id", "created", "command")
TUNING: Final = "about_tuning"
"""Entry of comparison.json with the sentences that its report repeats, such as those about the
parameters that a study has found."""


@dataclass(frozen=True)
class CellEntry:
    """What comparison.json says of a cell, which can be read without the objects of the user.

    Attributes:
        name: Name of its folder below `cells/`.
        method: Label of the method.
        place: Label of data set and setting.
        repetition: Number of the repetition, from 0.
        data: Name of the data set.
        scheme: Name of the scheme of the partition.
        own: Whether somebody chose the label; see `LabelledLayer`.
    """

    name: str
    method: str
    place: str
    repetition: int
    data: str
    scheme: str
    own: bool = False

    @classmethod
    def of(cls, cell: Job, *, own: bool) -> Self:
        """Return the entry of a cell."""
        config = cell.config
        data, scheme = cell.data or config.data.title, config.partition.title
        return cls(cell.name, cell.method, cell.place, cell.repetition, data, scheme, own)


def is_cell(path: Path) -> bool:
    """Return whether a path is the folder of a cell of a comparison."""
    path = path.absolute()
    return path.parent.name == "cells" and is_comparison(path.parents[1])


def is_comparison(path: Path) -> bool:
    """Return whether a folder is that of a comparison, which has a comparison.json."""
    return (path / MARKER).is_file()


class ComparisonFolder(JobFolder):
    """The folder of a comparison, which can be the folder of something else, too."""

    marker = MARKER
    option = "out"
    inside = "cells"
    what = "the folder of a comparison"

    @classmethod
    def command_to_resume(cls, path: Path) -> str:
        """Return the command that resumes a comparison."""
        return f"flbench compare --resume {path}"

    def save(
        self, design: Design, cells: Sequence[Job], repeated: Sequence[str] = (), **about: Any
    ) -> None:
        """Write comparison.json.

        Args:
            design: The design.
            cells: Its cells.
            repeated: Sentences that the report repeats.
            about: How the comparison began: `command`; later also `id` and `created`, which begin
                as the name of the folder and the time.
        """
        tree = design.model_dump(mode="json")
        tracking = tree["base"]["tree"].get("tracking") or {}  # the methods have no such keys
        if tracking.get("uri"):
            tracking["uri"] = redact_address(str(tracking["uri"]))
        own = tuple(f"{one.label} " for one in design.methods if one.own)
        began = datetime.now().astimezone().isoformat(timespec="seconds")
        content = {
            "format": FORMAT,
            "id": self.path.name,
            "created": began,
            **about,
            **({TUNING: repeated} if repeated else {}),
            **tree,
            # The label of a variant that the grid makes begins with that of its method.
            "cells": [
                vars(CellEntry.of(cell, own=f"{cell.method} ".startswith(own))) for cell in cells
            ],
        }
        self.write(MARKER, json.dumps(content, indent=1) + "\n")
        trust.record(self.path, design_in(content))


def design_in(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of comparison.json that says what is trained."""
    layers = [tree.get("base", {}), *tree.get("methods", []), *tree.get("data", [])]
    return {"layers": [one.get("tree") for one in layers], "grid": tree.get("grid")}


def read_design(path: Path) -> tuple[Design, dict[str, Any]]:
    """Return the design of a comparison, and when and how it began.

    Raises:
        UserError: The path is not the folder of a comparison.
        DataError: comparison.json is damaged.
    """
    ComparisonFolder.check(path)
    tree = read_json(path / MARKER)
    with as_data_error(path / MARKER):
        return Design.model_validate(tree), {key: tree[key] for key in ABOUT}


def read_cells(path: Path) -> list[CellEntry]:
    """Return the cells of a comparison, in the order in which they are trained.

    Raises:
        UserError: The path is not the folder of a comparison.
        DataError: comparison.json is damaged.
    """
    ComparisonFolder.check(path)
    with as_data_error(path / MARKER):
        return [CellEntry(**entry) for entry in read_json(path / MARKER)["cells"]]
