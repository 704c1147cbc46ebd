"""What tells runs apart: their methods, their settings and their seeds.

- Runs of one *method* have the same `algorithm.name`, keys of the method, local optimizer and loss
  terms. Where runs of one `algorithm.name` differ in them, the method's label names the values,
  such as `hfcd tau=1`.
- A *setting* is everything else that results depend on, but the seeds. Runs on different samples
  have different settings, also if their configurations are equal.
- Runs of one setting with the same two seeds, of the training and of the partition, are paired.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.config.sources import leaves
from flbench.core.documents import read_json
from flbench.core.errors import DataError, UserError
from flbench.results import study_folder
from flbench.results.metrics_file import CURE
from flbench.results.reading import StoredRun
from flbench.results.summary import SHARES, is_share, metrics_at

if TYPE_CHECKING:
    import pandas as pd

SECTIONS: Final = ("data.", "partition.", "shift.", "model.", "train.")
ALONE: Final = ("engine.precision", "evaluation.every", "evaluation.rare", "evaluation.metrics")
WITHOUT: Final = ("data.root", "data.name", "data.path", "partition.path", "partition.seed")
METHOD: Final = ("algorithm.", "train.optimizer.", "train.schedule.", "train.terms")
"""Keys that belong to a method: they may differ between methods that are compared."""
DATA, SAMPLES = "data", "samples"
"""What stands for the name of the data set, and for the hash of its samples."""
SOURCE: Final = "algorithm.source"
"""Where a method that is not flbench's own is imported from. Runs of one source, which has a hash,
do not differ by it."""
MISSING: Final = "-"  # the value of a key that a configuration lacks
SHORTEST_HASH: Final = 6  # digits
HASHES: Final = ("partition_hash", "config_hash", "weights_digest")
_SHA256: Final = re.compile("[0-9a-f]{64}")


def check_comparable(run: StoredRun) -> None:
    """Check what a comparison needs of a finished run, besides what reading it has checked.

    Raises:
        UserError: The run has no classes.
        DataError: A file is damaged, or the summary lacks a hash or an accuracy.
    """
    run.check_classes()
    for key in HASHES:
        if key not in run.summary:
            raise DataError(f"{run.path / 'summary.json'} is damaged (no `{key}`). {CURE}")
    for name, table in (("class", run.classes), ("client", run.clients)):
        if not len(table):
            raise DataError(f"{run.path} has no {name} table. {CURE}")
    if not any(isinstance(value, float) for value in run.summary["best"]["test"].values()):
        raise UserError(f"{run.path} has no test metrics, so it cannot be compared.")
    for moment in ("best", "last"):
        said = run.summary[moment]
        found = metrics_at(run.rows, said["round"], run.config.evaluation.best)
        if lost := said["test"].keys() - found["test"].keys():
            raise DataError(
                f"{run.path / 'metrics.csv'} is damaged (no test `{min(lost)}` of round"
                f" {said['round']}, which summary.json has). {CURE}"
            )
    _ = run.client_counts
    run.samples()
    read_json(run.path / "provenance.json")
    for row in run.rows:
        if row.metric in SHARES and not is_share(row.value) and row.value == row.value:
            raise DataError(
                f"{run.path / 'metrics.csv'} is damaged (`{row.full_name}` of round"
                f" {row.round} is {row.value}, which is no share). {CURE}"
            )


@dataclass(frozen=True)
class Differences:
    """What tells runs apart; see `differences`.

    Attributes:
        runs: The runs.
        names: Name for users by run folder.
        configurations: Values as text, runs x dotted keys; NaN for keys that a run lacks.
        methods: Label of the method of each run.
        settings: Values of the settings as text, runs x names: `data`, which is the name of the
            data set, dotted keys, and `samples` if runs whose keys are equal have other samples.
        divided: A sentence about each setting whose runs have other samples.
    """

    runs: tuple[StoredRun, ...]
    names: Mapping[Path, str]
    configurations: "pd.DataFrame"
    methods: tuple[str, ...]
    settings: "pd.DataFrame"
    divided: Sequence[str] = ()

    @cached_property
    def setting_of(self) -> "pd.Series[int]":
        """Number of the setting of each run, from 0."""
        return _numbers(self.settings)

    @property
    def differing(self) -> list[str]:
        """The names in which the settings differ."""
        return [name for name in map(str, self.settings) if self.settings[name].nunique() > 1]

    @property
    def labels(self) -> list[str]:
        """Label of the setting of each run: the data set, and keys that tell the settings apart.

        Keys that differ along with others, such as the net that belongs to a data set, are left
        out.
        """
        keys: list[str] = []
        kinds = 1
        for key in self.differing:
            if (more := len(self.settings[[*keys, key]].drop_duplicates())) > kinds:
                keys, kinds = [*keys, key], more
        short = short_names(keys)
        texts = {key: short_hashes(self.settings[key]) for key in keys}
        return [
            ", ".join([data, *(f"{short[key]}={texts[key][k]}" for key in keys if key != DATA)])
            for k, data in enumerate(self.settings[DATA])
        ]

    @property
    def notes(self) -> list[str]:
        """Sentences about samples that differ, and about local optimizers that do."""
        own = ("train.optimizer.", "train.schedule.")
        found = self.configurations[
            [key for key in map(str, self.configurations) if key.startswith(own)]
        ]
        kinds = found.nunique(dropna=False)
        one_method = self.configurations["algorithm.name"].nunique() == 1
        if kinds.max() == 1 or one_method or all(map(_is_cell_of_study, self.runs)):
            return [*self.divided]
        names = ", ".join(kinds.index[kinds > 1])
        return [
            *self.divided,
            f"The methods were trained with different values of {names}. The comparison is fair if"
            " each method's values were chosen on validation parts with equal effort, as `flbench"
            " tune` does.",
        ]

    @cached_property
    def reason(self) -> str | None:
        """Why methods cannot be compared over these runs, in words; None if they can."""
        if (found := self.strangers) is not None:
            values = {str(name): self.settings[name].iloc[[*found]] for name in self.settings}
            name = next(name for name, pair in values.items() if pair.nunique() > 1)
            return self._apart(name, found, short_hashes(values[name]))
        hashes = [str(run.summary.get("partition_hash", MISSING)) for run in self.runs]
        known = [text != MISSING for text in hashes]  # an unfinished run has no hash
        groups = list(zip(self.setting_of, map(seeds_of, self.runs), known, strict=True))
        if (found := _first_apart(hashes, groups)) is not None:
            what = "partition (same keys and seeds, so the data differ)"
            return self._apart(what, found, [hashes[k][:12] for k in found])
        origins = [provenance(run) for run in self.runs]  # runs without one do not count
        versions = [version_of(origin) for origin in origins]
        if (found := _first_apart(versions, [bool(origin) for origin in origins])) is not None:
            return self._apart("version of flbench", found, [versions[k] for k in found])
        return None

    @cached_property
    def strangers(self) -> tuple[int, int] | None:
        """The positions of runs of two methods that share no setting; None if all share one."""
        held: dict[str, set[int]] = {}
        for method, number in zip(self.methods, self.setting_of, strict=True):
            held.setdefault(method, set()).add(number)
        for first, mine in held.items():
            for second, other in held.items():
                if not mine & other:
                    return self.methods.index(first), self.methods.index(second)
        return None

    def _apart(self, what: str, pair: tuple[int, int], values: Sequence[str]) -> str:
        """Return a sentence about what two runs differ in, with the values of both."""
        one, other = (self.names[self.runs[k].path] for k in pair)
        return f"they differ in {what}: {values[0]} and {values[1]}, in {one} and {other}"


def differences(
    runs: Sequence[StoredRun],
    labels: Mapping[Path, str] | None = None,
    names: Mapping[Path, str] | None = None,
) -> Differences:
    """Compare the configurations of runs.

    Args:
        runs: The runs, at least one.
        labels: Label of the method by run folder, for runs whose method is known by another name
            than its keys.
        names: Name for users by run folder; None for the folders.
    """
    import pandas as pd

    names = {run.path: str(run.path) for run in runs} if names is None else names
    trees = [leaves(run.config.tree()) for run in runs]
    texts = [{key: text_of(value) for key, value in tree.items()} for tree in trees]
    configurations = pd.DataFrame(texts).drop(columns=SOURCE, errors="ignore")
    methods = _methods(runs, trees, configurations, labels or {})
    keys = [
        key
        for key in map(str, configurations)
        if key.startswith((*ALONE, *SECTIONS)) and key not in WITHOUT and not key.startswith(METHOD)
    ]
    settings = configurations[keys].fillna(MISSING)
    settings.insert(0, DATA, [run.summary["dataset"] for run in runs])
    settings[SAMPLES] = [run.data_hash or MISSING for run in runs]
    divided = []
    for _, mine in settings.groupby(_numbers(settings.drop(columns=SAMPLES)), sort=False):
        known = mine.loc[mine[SAMPLES] != MISSING, SAMPLES].drop_duplicates()
        if len(known) < 2:
            settings.loc[mine.index, SAMPLES] = MISSING
            continue
        paths = [names[runs[k].path] for k in known.index]
        where = [f"{a} in {b}" for a, b in zip(short_hashes(known), paths, strict=True)]
        divided.append(
            f"The samples of {mine[DATA].iloc[0]} differ between runs whose configurations name"
            f" the same data: SHA-256 {', '.join(where)}. These runs are neither paired nor tested"
            " against each other. Train them on one copy of the data."
        )
    if not divided:
        settings = settings.drop(columns=SAMPLES)
    return Differences(tuple(runs), names, configurations, tuple(methods), settings, divided)


def _numbers(table: "pd.DataFrame") -> "pd.Series[int]":
    """Return a number for each row, from 0, which is that of the rows with the same values."""
    return table.groupby([*table], sort=False).ngroup()


def _methods(
    runs: Sequence[StoredRun],
    trees: Sequence[Mapping[str, Any]],
    configurations: "pd.DataFrame",
    labels: Mapping[Path, str],
) -> list[str]:
    """Return the label of each run's method: its name, and the keys in which its runs differ.

    Runs whose label is given do not count.
    """
    names = configurations["algorithm.name"]
    unnamed = configurations[[run.path not in labels for run in runs]]
    keys = [key for key in map(str, configurations) if key.startswith(METHOD)]
    of = {}
    for name, mine in unnamed.groupby(names, sort=False):
        differing = [key for key in keys if mine[key].nunique(dropna=False) > 1]
        of[name] = short_names(differing)
    found = []
    for run, tree, name in zip(runs, trees, names, strict=True):
        short = of.get(name, {})
        own = [f"{short[key]}={_method_text(tree[key])}" for key in tree if key in short]
        values = ", ".join(own)
        found.append(labels.get(run.path, f"{name} {values}".strip()))
    return found


def _method_text(value: Any) -> str:
    """Return a value as text; the list of loss terms as their names.

    >>> _method_text(0.1), _method_text([{"name": "focal", "gamma": 2.0}]), _method_text([])
    ('0.1', 'focal', 'none')
    """
    if isinstance(value, list):
        names = [str(item["name"]) if isinstance(item, dict) else str(item) for item in value]
        return "+".join(names) or "none"
    text = text_of(value)
    return text[:8] if _SHA256.fullmatch(text) else text


def _first_apart(values: Sequence[str], groups: Sequence[Any]) -> tuple[int, int] | None:
    """Return the positions of the first value that is not that of the first one of its group."""
    first: dict[Any, int] = {}
    for k, (value, group) in enumerate(zip(values, groups, strict=True)):
        if value != values[first.setdefault(group, k)]:
            return first[group], k
    return None


def seeds_of(run: StoredRun) -> tuple[int, int]:
    """Return the seed of the partition and the seed of everything else of a run."""
    own = run.config.partition.seed
    return run.config.seed if own is None else own, run.config.seed


def _is_cell_of_study(run: StoredRun) -> bool:
    """Return whether a study has chosen the parameters of a run by equal budgets."""
    return study_folder.is_study(run.path.absolute().parents[1])


def provenance(run: StoredRun) -> Mapping[str, Any]:
    """Return the content of a run's provenance.json; empty if there is none."""
    file = run.path / "provenance.json"
    return read_json(file) if file.is_file() else {}


def version_of(origin: Mapping[str, Any]) -> str:
    """Return the version of flbench in a provenance.json, with its Git revision."""
    return f"{origin.get('flbench', '-')} ({origin.get('git_revision') or 'no Git revision'})"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted key, or the key if that stands for another key too.

    >>> short_names(["partition.alpha", "partition.seed"])
    {'partition.alpha': 'alpha', 'partition.seed': 'partition.seed'}
    """
    parts = {key: key.rpartition(".")[2] for key in keys}
    last = [*parts.values(), "seed"]
    return {key: key if last.count(part) > 1 else part for key, part in parts.items()}


def short_hashes(texts: Iterable[str]) -> list[str]:
    """Return texts in which SHA-256 hashes are cut to the shortest beginnings that differ.

    The beginnings have at least six digits. Other texts do not change.

    >>> short_hashes(["ab" * 32, "-", "ab" * 3 + "c" * 58, "ab" * 32])
    ['abababa', '-', 'abababc', 'abababa']
    """
    given = list(texts)
    hashes = {text for text in given if _SHA256.fullmatch(text)}
    length = next(
        n for n in range(SHORTEST_HASH, 65) if len({text[:n] for text in hashes}) == len(hashes)
    )
    return [text[:length] if text in hashes else text for text in given]


def text_of(value: Any) -> str:
    """Return a value of a configuration as text.

    >>> text_of(0.1), text_of([0.6, 0.2, 0.2]), text_of(None), text_of(True)
    ('0.1', '0.6,0.2,0.2', '-', 'true')
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(text_of, value)) if isinstance(value, list) else str(value)
