"""How the configurations of several runs differ."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flbench.config.sources import leaves
from flbench.results.reading import StoredRun

SECTIONS: Final = ("data.", "partition.", "shift.", "model.", "train.")
ALONE: Final = ("seed", "engine.precision", "evaluation.rare")
WITHOUT: Final = ("data.root", "data.name", "data.path", "partition.path")  # where files are
DATA, PARTITION, SAMPLES = "data", "partition", "samples"
SEEDS: Final = ("seed", "partition.seed")
"""Keys in which repetitions differ, over which `flbench report` compares methods."""
SOURCE: Final = "algorithm.source"
"""Where a method that is not flbench's own is imported from. Runs of one source, which has a hash,
do not differ by it."""
CODE: Final = "algorithm.sha256"
"""Hash of the source of a method that is not flbench's own."""
TUNED: Final = ("train.optimizer.", "train.schedule.")
"""The local optimizer. Each method needs its own learning rate, which the search spaces of flbench
contain, so runs that differ in these keys can be compared; those that differ in rounds, local
epochs or batches cannot."""
SHORTEST_HASH: Final = 6  # digits
_SHA256: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Differences:
    """What tells runs apart, besides their methods.

    Attributes:
        values: Value of each run as text, by configuration key. `data` stands for the name of the
            data set, `partition` for the beginning of the partition's hash if no key explains that
            it differs, and `samples` for that of the data set's hash if it differs between runs
            whose keys of the section `data` are equal.
        setting: Those of these names that belong to the setting which a comparison of methods holds
            fixed.
        tuned: Those of these names that belong to the local optimizer, if runs of several methods
            differ in them: each method may have been tuned. The remaining names are keys of methods
            in which runs of one method differ.
    """

    values: dict[str, tuple[str, ...]]
    setting: tuple[str, ...]
    tuned: tuple[str, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """Sentences that say what the differences mean for a comparison of the methods."""
        sentences = []
        if SAMPLES in self.setting:
            sentences.append(
                "the data set has the same name, but not the same samples in all runs (`samples` is"
                " the beginning of their SHA-256 in partition.json). Train the runs on one copy of"
                " the data."
            )
        if setting := [name for name in self.setting if name not in SEEDS]:
            sentences.append(
                f"the runs differ in {', '.join(setting)}: those with different values are not"
                " comparable. `flbench report` compares methods where the values are equal."
            )
        if self.tuned:
            sentences.append(
                f"the methods were trained with different values of {', '.join(self.tuned)}. The"
                " comparison is fair if each method's values were chosen by validation parts with"
                " equal effort, as `flbench tune` does."
            )
        return sentences

    def label(self, index: int) -> str:
        """Return the values of one run as text, such as `alpha=0.1, seed=1`; "" without any.

        Keys are shortened to their last part unless that stands for another key too.

        >>> Differences({"seed": ("1", "2"), "partition.seed": ("0", "7")}, ()).label(1)
        'seed=2, partition.seed=7'
        """
        names = short_names(self.values)
        return ", ".join(f"{names[key]}={texts[index]}" for key, texts in self.values.items())


def differences(runs: Sequence[StoredRun]) -> Differences:
    """Compare the configurations of runs.

    Keys of a method are compared between the runs of that method, and keys of a net if all runs
    have them. Keys that results do not depend on, such as the engine, and how often models were
    evaluated are left out.

    Args:
        runs: The runs, at least one.
    """
    values = _differing([_setting(run) for run in runs])
    if values.get("partition.seed") == values.get("seed"):  # its default
        values.pop("partition.seed", None)
    hashes = [str(run.summary.get("partition_hash", "")) for run in runs]
    explained = any(key == "seed" or key.startswith((DATA, PARTITION)) for key in values)
    if len(set(hashes) - {""}) > 1 and not explained:
        values[PARTITION] = tuple(text[:8] for text in hashes)
    if has_other_samples(runs):
        values[SAMPLES] = tuple(short_hashes([run.data_hash or "-" for run in runs]))
    optimizer = [key for key in values if key.startswith(TUNED)]
    setting = tuple(key for key in values if key not in optimizer)
    methods = {run.config.algorithm.name for run in runs}
    tuned = tuple(optimizer) if len(methods) > 1 else ()
    keys = [leaves(run.config.algorithm.model_dump(mode="json"), "algorithm.") for run in runs]
    for tree in keys:
        tree.pop(SOURCE, None)
    for method in dict.fromkeys(tree["algorithm.name"] for tree in keys):
        for key in _differing([tree for tree in keys if tree["algorithm.name"] == method]):
            values[key] = tuple(short_hashes([text_of(tree.get(key)) for tree in keys]))
    return Differences(values, setting, tuned)


def has_other_samples(runs: Sequence[StoredRun]) -> bool:
    """Return whether two runs with equal keys of the section `data` have different samples.

    Runs without a hash of their samples do not count.

    Args:
        runs: The runs.
    """
    hashes: dict[str, str] = {}
    for run in runs:
        if run.data_hash is not None:
            about = {key: value for key, value in _setting(run).items() if key.startswith(DATA)}
            if hashes.setdefault(repr(about), run.data_hash) != run.data_hash:
                return True
    return False


def _setting(run: StoredRun) -> dict[str, Any]:
    """Return the keys of the setting of a run, and `data`, the name of its data set."""
    kept = {
        key: value
        for key, value in leaves(run.config.tree()).items()
        if key in ALONE or (key.startswith(SECTIONS) and key not in WITHOUT)
    }
    return {DATA: run.summary["dataset"], **kept}


def _differing(trees: Sequence[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the values, as text, of the keys that all dicts have with different values."""
    return {
        key: tuple(short_hashes([text_of(tree[key]) for tree in trees]))
        for key in differing_keys(trees)
        if all(key in tree for tree in trees)
    }


def differing_keys(trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that two dicts have with different values, in the order of the dicts.

    A dict without a key does not count for it.

    Args:
        trees: Values by key.

    >>> differing_keys([{"seed": 1, "mu": 0.1}, {"seed": 2}, {"seed": 2, "mu": 0.1}])
    ['seed']
    """
    found = []
    for key in dict.fromkeys(key for tree in trees for key in tree):
        values = [tree[key] for tree in trees if key in tree]
        if any(value != values[0] for value in values):
            found.append(key)
    return found


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted key, or the key if that stands for another key too.

    >>> short_names(["partition.alpha", "partition.seed"])
    {'partition.alpha': 'alpha', 'partition.seed': 'partition.seed'}
    """
    parts = {key: key.rpartition(".")[2] for key in keys}
    last = list(parts.values())
    return {
        key: key if part in ALONE or last.count(part) > 1 else part for key, part in parts.items()
    }


def short_hashes(texts: Sequence[str]) -> list[str]:
    """Return texts in which SHA-256 hashes are cut to the shortest beginnings that differ.

    The beginnings have at least six digits. Other texts do not change.

    >>> short_hashes(["ab" * 32, "-", "ab" * 3 + "c" * 58, "ab" * 32])
    ['abababa', '-', 'abababc', 'abababa']
    """
    hashes = {text for text in texts if _SHA256.fullmatch(text)}
    length = next(
        n for n in range(SHORTEST_HASH, 65) if len({text[:n] for text in hashes}) == len(hashes)
    )
    return [text[:length] if text in hashes else text for text in texts]


def text_of(value: Any) -> str:
    """Return a value of a configuration as text.

    >>> text_of(0.1), text_of([0.6, 0.2, 0.2]), text_of(None), text_of(True)
    ('0.1', '0.6,0.2,0.2', '-', 'true')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(text_of, value)) if isinstance(value, list) else str(value)
