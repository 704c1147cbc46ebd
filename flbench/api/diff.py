"""Two runs beside each other."""

from os import PathLike
from typing import Any, Final

import pandas as pd

from flbench.api import html
from flbench.api.runs import Run
from flbench.calls import arguments
from flbench.results import diff as results
from flbench.results import reading

SIDES: Final = ("first", "second")


class Diff:
    """What differs between two runs; `fl.diff` returns one.

    Args:
        first: Content of a run folder.
        second: Content of another run folder.

    Raises:
        DataError: provenance.json of a run is damaged.
    """

    def __init__(self, first: reading.StoredRun, second: reading.StoredRun) -> None:
        self._paths = first.path, second.path
        self._found = results.diff(first, second)

    @property
    def configuration(self) -> pd.DataFrame:
        """The configuration keys with different values: columns `key`, `first`, `second`.

        The key `data` stands for the name of the data set. A key that a run does not have is None.
        Keys of the sections `output` and `tracking`, which say where files are, are left out.
        """
        return _table("key", self._found.configuration)

    @property
    def provenance(self) -> pd.DataFrame:
        """Versions, hardware, command and hashes that differ: `name`, `first`, `second`."""
        return _table("name", self._found.provenance)

    @property
    def metrics(self) -> pd.DataFrame:
        """Metrics at the best round by validation, bytes and seconds, equal or not.

        Columns: `metric` str, such as `test.accuracy`; `first`, `second` and `difference` (second
        minus first) float64, NaN where a run has no value. Bytes and seconds are those of all
        rounds.
        """
        table = _table("metric", self._found.metrics)
        table[list(SIDES)] = table[list(SIDES)].astype("float64")
        return table.assign(difference=table["second"] - table["first"])

    @property
    def warnings(self) -> list[str]:
        """Sentences that say what the differences mean for a comparison."""
        return list(self._found.warnings)

    def __repr__(self) -> str:
        keys = ", ".join(self._found.configuration) or "no key"
        return f"<Diff of {self._paths[0]} and {self._paths[1]}: different in {keys}>"

    def _repr_html_(self) -> str:
        pieces = []
        for title, table in (
            ("Configuration", self.configuration.set_index("key")),
            ("Metrics at the best round; bytes and seconds", self.metrics.set_index("metric")),
            ("Versions, hardware and hashes", self.provenance.set_index("name")),
        ):
            if len(table):
                pieces += [html.heading(title), html.table(table, most=100)]
        sides = dict(zip(SIDES, map(str, self._paths), strict=True))
        return html.card("Two runs", html.facts(sides), *pieces, html.notes(self.warnings))


def diff(first: Run | str | PathLike[str], second: Run | str | PathLike[str]) -> Diff:
    """Compare two runs: configuration, versions and hardware, and metrics, as `flbench diff` does.

    The runs may be unfinished. Whether a difference between the metrics of two single runs is
    larger than that between two seeds is not known; `fl.compare` repeats methods over seeds.

    Args:
        first: A run, or its folder.
        second: Another run, or its folder.

    Returns:
        The differences, as tables and sentences.

    Raises:
        UserError: A path is not a run folder.
        DataError: A file in a folder is damaged.
    """
    return Diff(*(_read(one, name) for one, name in zip((first, second), SIDES, strict=True)))


def _read(run: Any, name: str) -> reading.StoredRun:
    """Return the content of a run folder."""
    return reading.read(run.path if isinstance(run, Run) else arguments.path_of(run, name))


def _table(name: str, pairs: Any) -> pd.DataFrame:
    """Return pairs as a table with the columns `name`, `first` and `second`."""
    rows = [(key, *values) for key, values in pairs.items()]
    return pd.DataFrame(rows, columns=[name, *SIDES], dtype="object").astype({name: "str"})
