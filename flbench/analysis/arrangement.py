"""The arrangement of finished runs: methods, data sets and settings, and repetitions.

Everything is derived from the configurations of the runs, so a report of bare run folders is the
same as one of `flbench compare`:

- Runs of one *method* have the same `algorithm.name`, keys of the method, local optimizer and loss
  terms. Where runs of one `algorithm.name` differ in them, the method's label names the values,
  such as `hfcd tau=1`.
- A *place* is a data set with a setting: everything else that the results depend on, but the seeds.
  Runs on different samples are at different places, also if their configurations are equal.
- The *repetitions* of a place differ in `seed`, in `partition.seed`, or in both. Runs of several
  methods with the same two seeds are paired.

Methods are compared within a place. They must therefore share places, and within a repetition the
partition and the version of the code.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any, Final

from flbench.analysis.collapsed import collapsed
from flbench.analysis.sampling import FIXED, Sampling, Vary, sampling_of
from flbench.analysis.statistics import CLAIM_FROM
from flbench.config.schema import SCHEME_KEYS
from flbench.config.sources import leaves
from flbench.core.documents import read_json
from flbench.core.errors import UserError, did_you_mean
from flbench.core.own_names import SUFFIXES
from flbench.metrics import names as metric_names
from flbench.results.differences import CODE, SAMPLES, SOURCE, short_hashes, short_names, text_of
from flbench.results.left_out import LeftOut
from flbench.results.reading import StoredRun
from flbench.results.study_folder import PERSONAL, StoredStudy
from flbench.results.summary import SHARES

SECTIONS: Final = ("data.", "partition.", "shift.", "model.", "train.")
ALONE: Final = (*("engine.precision", "evaluation.every", "evaluation.rare", "evaluation.metrics"),)
WITHOUT: Final = ("data.root", "data.name", "data.path", "partition.path", "partition.seed")
METHOD: Final = ("algorithm.", "train.optimizer.", "train.schedule.", "train.terms")
"""Keys that belong to a method: they may differ between methods that are compared."""
BASELINE: Final = "fedavg"  # the method to which others are compared, if it is there
DATA: Final = "data"  # stands for the name of the data set
SPREADS: Final = ("client_std",)  # metrics that rank no methods: less is not better, nor is more
UNKNOWN: Final = "-"  # digest of a run of an earlier version
HOW_MANY: Final = ("samples", "samples_per_client", "min_samples", "split", "pool")
"""Keys of schemes that say how many samples clients have, not how these differ."""
HARDWARE: Final = ("processor", "gpus", "threads")
TRAFFIC: Final = ("up_bytes", "down_bytes", "peer_bytes", "setup_bytes")
PRICES: Final = ("bytes", "seconds")
"""What a run costs; a leaderboard shows it beside metrics."""
BEYOND: Final = ("rare_recall", "macro_f1", "worst10_accuracy")
"""Metrics that leaderboards show besides the one that ranks the methods."""
MOST_COLLAPSED: Final = 5  # collapsed runs that a sentence names
MANY: Final = 100  # validation samples; with fewer, the choice of the best round is chance

Setting = tuple[tuple[str, str], ...]
Pair = tuple[str, str]
"""Labels of two methods."""
Seeds = tuple[int, int]
"""Seed of the partition, and seed of everything else."""


@dataclass(frozen=True)
class Entry:
    """A finished run in its place.

    Attributes:
        method: Label of the method.
        place: Label of the data set and the setting.
        repetition: Number of the repetition, from 0. Runs of one place and repetition have the same
            seeds and partition.
        run: The run.
        folder: The run folder as users know it.
        deployment: Name of the deployment whose metrics are compared.
    """

    method: str
    place: str
    repetition: int
    run: StoredRun
    folder: str
    deployment: str = PERSONAL

    @property
    def test(self) -> Mapping[str, Any]:
        """Test metrics of the run at its best round by validation."""
        return self._test("best")

    def last(self, name: str) -> float:
        """Return a test metric after the last round; NaN if the run does not have it."""
        value = self._test("last").get(name)
        return float(value) if isinstance(value, int | float) else nan

    def _test(self, moment: str) -> Mapping[str, Any]:
        """Return the test metrics of the deployment at the best or the last round."""
        found: Mapping[str, Any] = self.run.summary[moment]["test"]
        # The metrics of another deployment are in a dict of its name.
        return found if self.deployment == PERSONAL else found.get(self.deployment, {})

    @property
    def bytes(self) -> float:
        """Bytes that all clients sent and received, set-up included."""
        return float(sum(self.run.summary["communication"][kind] for kind in TRAFFIC))

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation."""
        spent = self.run.summary["seconds"]
        return float(spent["train"] + spent["evaluate"])

    def score(self, name: str) -> float:
        """Return a test metric, `bytes` or `seconds`; NaN for a metric that the run does not have.

        Metrics of rare classes are NaN where no class is rare.
        """
        if name in PRICES:
            return self.bytes if name == "bytes" else self.seconds
        value = self.test.get(name)
        if name.startswith("rare_") and not self.run.has_rare_classes:
            return nan
        return float(value) if isinstance(value, int | float) else nan


@dataclass(frozen=True)
class Arrangement:
    """Finished runs of methods, arranged for a comparison.

    Attributes:
        entries: The runs, ordered by place, method and repetition.
        methods: Labels of the methods, in the order in which they were given.
        places: Labels of the places.
        repetitions: Largest number of repetitions of a method in a place.
        vary: What differs between repetitions.
        metric: Test metric that ranks the methods.
        baseline: Method with which the others are compared in the recall of the classes.
        warnings: Sentences about what limits the comparison.
        apart: Why the runs are not comparable, if `force` compares them nevertheless; or None.
        samplings: How the repetitions of each place were drawn; of a place that is missing, only
            `vary` is known.
        kinds: Kind of partition of each place: the scheme by which samples are distributed to
            clients, with its keys. Places of one kind rank methods alike.
        families: The pairs of methods that are tested, in groups whose p-values are corrected
            together; empty for all pairs in one group.
        corrected_for: Those pairs in words.
        reference: Method with which each of the others is compared, if no other pair is tested: the
            baseline that the user has named, or the reference of the runs' plan. It is the
            baseline. None if pairs are tested otherwise.
        chosen: What the user has named for the columns of the leaderboards besides `metric`;
            empty for BEYOND and PRICES.
        targets: Values of the metric whose costs the user asks for; empty for those of the runs.
        leading: Methods that the answer is about: of a study the methods with the parameters that
            won the search; empty for all methods.
    """

    entries: tuple[Entry, ...]
    methods: tuple[str, ...]
    places: tuple[str, ...]
    repetitions: int
    vary: Vary
    metric: str
    baseline: str
    warnings: tuple[str, ...]
    apart: str | None = None
    samplings: Mapping[str, Sampling] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    families: tuple[tuple[Pair, ...], ...] = ()
    corrected_for: str = "for all pairs"
    reference: str | None = None
    chosen: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    leading: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Metrics, `bytes` and `seconds` that leaderboards show, each once; `metric` is the first.

        Metrics of rare classes are among them also where no class is rare.
        """
        return tuple(dict.fromkeys([self.metric, *(self.chosen or (*BEYOND, *PRICES))]))

    @property
    def tested(self) -> tuple[str, ...]:
        """Metrics in which methods are tested: `metric`, and those that the user has named."""
        named = (name for name in self.chosen if name not in (*PRICES, *SPREADS))
        return tuple(dict.fromkeys([self.metric, *named]))

    @property
    def measured(self) -> str:
        """Which models are compared, after which round."""
        deployment = self.entries[0].deployment
        models = (
            "the models that are deployed to the clients"
            if deployment == PERSONAL
            else f"the deployment `{deployment}`"
        )
        return (
            f"{models}, at the best round by validation accuracy, or at the last round without"
            " validation parts"
        )

    def at(self, place: str, method: str | None = None) -> list[Entry]:
        """Return the entries of a place, of one method or of all, ordered by repetition."""
        return [
            entry
            for entry in self.entries
            if entry.place == place and method in (None, entry.method)
        ]

    def sampling_at(self, place: str) -> Sampling:
        """Return how the repetitions of a place were drawn."""
        return self.samplings.get(place, Sampling(self.vary))

    def is_complete(self, place: str, method: str) -> bool:
        """Return whether a method has all repetitions of a place, so that it can be ranked."""
        repetitions = {entry.repetition for entry in self.at(place)}
        return len(self.at(place, method)) == len(repetitions)


def arrange(
    runs: Sequence[StoredRun],
    *,
    metric: str | Sequence[str] = "accuracy",
    targets: str | float | Iterable[float] | None = (),
    baseline: str | None = None,
    force: bool = False,
    labels: Mapping[Path, str] | None = None,
    shown: Mapping[Path, str] | None = None,
    notes: Sequence[str] = (),
    reference: str | None = None,
) -> Arrangement:
    """Arrange runs for a comparison.

    Args:
        runs: The runs. Unfinished ones are left out, which a warning says.
        metric: Test metric that ranks the methods; larger is better. Of several names the first one
            ranks, and all are the columns of the leaderboards, among which `bytes` and `seconds`
            can be. A text can have several names between commas.
        targets: Values of the metric whose costs are wanted; a text has them between commas.
        baseline: Method with which each of the others is compared, and no other pair is tested. By
            default all pairs are, and the recall of the classes is compared with that of FedAvg if
            it is there, otherwise of the first method.
        force: Whether to compare runs that are not comparable; a warning says why they are not.
        labels: Label of the method by run folder, for runs whose method is known by another name
            than its keys.
        shown: Name for users by run folder, for runs of archives.
        notes: Sentences about where the runs come from, and about what was left out, which become
            warnings.
        reference: The baseline of runs whose plan has one. It has no effect if the user names
            another one, or if it has no finished run.

    Raises:
        UserError: There is no finished run, the runs are not comparable, or the metric or the
            baseline is not known.
    """
    metric, *chosen = _names(metric)
    wanted = _targets(targets, metric)
    finished = [run for run in runs if run.finished]
    if not finished:
        raise UserError("there is no finished run to compare.")
    undefined = [run for run in finished if _is_undefined(run, metric)]
    finished = [run for run in finished if not _is_undefined(run, metric)]
    if not finished:
        raise UserError(f"`{metric}` of {undefined[0].path} is no number. Choose another metric.")
    warnings = [f"left out: {run.path}: its test {metric} is no number." for run in undefined]
    if unfinished := [str(run.path) for run in runs if not run.finished]:
        warnings.append(f"not finished, and left out: {', '.join(unfinished)}.")
    methods = _method_labels(finished, labels or {})
    settings = [_setting(run) for run in finished]
    settings, other_samples = _with_samples(finished, settings, shown or {})
    warnings += other_samples
    origins = {run.path: _provenance(run) for run in finished}
    reason = _why_apart(finished, methods, settings, origins)
    if reason is not None:
        if not force:
            raise UserError(
                f"these runs are not comparable: {reason}. Compare runs that agree, or use --force"
                " to compare them with a warning."
            )
        warnings.append(f"These runs are not comparable: {reason}.")
        if _strangers(methods, settings) is not None:  # one place for all
            names = dict.fromkeys(run.summary["dataset"] for run in finished)
            settings = [((DATA, " and ".join(names)),)] * len(finished)
    places = _place_labels(settings)
    entries, more = _entries(finished, methods, places, shown or {})
    warnings += more + _about_optimizers(finished) + _about_hardware(finished, origins)
    order = list(dict.fromkeys(methods))
    if baseline is not None and baseline not in order:
        raise UserError(
            f"the baseline {str(baseline)!r} is not one of the methods: {', '.join(order)}."
            f"{did_you_mean(str(baseline).lower(), order)}"
        )
    _check_metrics(finished, metric, chosen)
    warnings += _about_missing(entries, order)
    warnings += [*_about_direction(finished, [metric, *chosen]), *notes]
    warnings += _about_rare(finished, chosen)
    beside = baseline or (reference if reference in order else None)
    if beside is not None:
        warnings += _about_equal(entries, beside)
    at_place: dict[str, list[Entry]] = {}
    for entry in entries:
        at_place.setdefault(entry.place, []).append(entry)
    samplings = {
        place: sampling_of(
            [entry.run for entry in mine], _vary(mine), len({one.repetition for one in mine})
        )
        for place, mine in at_place.items()
    }
    warnings += _about_choice(at_place, samplings)
    warnings += _about_collapsed(at_place, metric)
    return Arrangement(
        entries=tuple(entries),
        methods=tuple(order),
        places=tuple(at_place),
        repetitions=max(_counts(entries).values()),
        vary=_vary(entries),
        metric=metric,
        baseline=beside or _baseline(entries),
        warnings=tuple(warnings),
        apart=reason,
        samplings=samplings,
        kinds={place: _kind(mine[0].run) for place, mine in at_place.items()},
        families=_beside(order, beside),
        corrected_for="for all pairs" if beside is None else f"for all differences from {beside}",
        reference=beside,
        chosen=tuple(chosen),
        targets=wanted,
    )


def of_study(study: StoredStudy) -> Arrangement | None:
    """Arrange the final trainings of a study as a comparison of one place.

    The default and the tuned parameters of a method are two methods, `METHOD` and `METHOD tuned`.
    The repetitions are the seeds, each with a partition of its own or all on that of the search.
    Metrics are those of the study's deployment. Two kinds of questions are tested: what tuning
    changes for each method, a test by itself; and how the tuned methods differ, whose p-values are
    corrected together. Where the default parameters have won the search, they are the tuned ones
    too.

    Args:
        study: The study. Final trainings that are damaged, or that lack the study's metric, are
            left out.

    Returns:
        The comparison; None if there is no final training.
    """
    header, left_out = study.header, LeftOut()
    found: dict[tuple[str, int], StoredRun] = {}
    for label, seed, run in study.finished_finals():
        with left_out.catching(run.path):
            run.check_comparable()
            run.samples()
            found.setdefault((label, seed), run)
    seeds = sorted({seed for _, seed in found})
    place, deployment = header.dataset, header.deployment
    # Names within the study, whose folder may be moved.
    folders = {run.path: "/".join(run.path.parts[-3:]) for run in found.values()}
    entries = [
        Entry(label, place, seeds.index(seed), run, folders[run.path], deployment)
        for (label, seed), run in found.items()
    ]
    entries = [entry for entry in entries if _is_number(entry.test.get(header.metric))]
    if not entries:
        return None
    methods = tuple(dict.fromkeys(entry.method for entry in entries))
    tuned = {name: f"{name} tuned" for name in study.methods}
    gains = [(tuned[name], name) for name in tuned if {tuned[name], name} <= {*methods}]
    best = [name if study.default_has_won(name) else tuned[name] for name in tuned]
    leading = tuple(name for name in best if name in methods)
    has_partitions = len({entry.run.summary["partition_hash"] for entry in entries}) > 1
    vary: Vary = "both" if has_partitions else "training"
    runs = [entry.run for entry in entries]
    return Arrangement(
        entries=tuple(entries),
        methods=methods,
        places=(place,),
        repetitions=max(_counts(entries).values()),
        vary=vary,
        metric=header.metric,
        baseline=_baseline([one for one in entries if one.method in leading] or entries),
        warnings=(
            *left_out.sentences,
            *_about_versions(runs),
            *_about_collapsed({place: entries}, header.metric),
        ),
        samplings={place: sampling_of(runs, vary, len({one.repetition for one in entries}))},
        families=(
            *((gain,) for gain in gains),
            tuple(combinations(leading, 2)),
        ),
        leading=leading,
        corrected_for="for all pairs of tuned methods (the gain of a method is one test)",
    )


def _tree(run: StoredRun) -> dict[str, Any]:
    """Return the configuration of a run by dotted keys, without the place of a method's code."""
    return {key: value for key, value in leaves(run.config.tree()).items() if key != SOURCE}


def seeds_of(run: StoredRun) -> Seeds:
    """Return the seed of the partition and the seed of everything else of a run."""
    own = run.config.partition.seed
    return run.config.seed if own is None else own, run.config.seed


def _method_labels(runs: Sequence[StoredRun], labels: Mapping[Path, str]) -> list[str]:
    """Return the label of each run's method: its name, and the keys in which its runs differ.

    Runs whose label is given do not count.
    """
    trees = [
        {key: value for key, value in _tree(run).items() if key.startswith(METHOD)} for run in runs
    ]
    unnamed = [tree for run, tree in zip(runs, trees, strict=True) if run.path not in labels]
    found = []
    for run, tree in zip(runs, trees, strict=True):
        if run.path in labels:
            found.append(labels[run.path])
            continue
        name = run.config.algorithm.name
        same = [other for other in unnamed if other["algorithm.name"] == name]
        keys = [key for key in tree if any(_differs(other, tree, key) for other in same)]
        short = short_names(keys)
        values = ", ".join(f"{short[key]}={_method_text(tree[key])}" for key in keys)
        found.append(f"{name} {values}".strip())
    return found


def _differs(other: Mapping[str, Any], tree: Mapping[str, Any], key: str) -> bool:
    """Return whether two runs of a method differ in a key of it."""
    if key == CODE and other.get(key) is None:  # of a version that did not record it
        return False
    return bool(other.get(key) != tree[key])


def _method_text(value: Any) -> str:
    """Return a value as text; the list of loss terms as their names.

    >>> _method_text(0.1), _method_text([{"name": "focal", "gamma": 2.0}]), _method_text([])
    ('0.1', 'focal', 'none')
    """
    if isinstance(value, list):
        return (
            "+".join(str(item["name"]) if isinstance(item, dict) else str(item) for item in value)
            or "none"
        )
    text = text_of(value)
    return text[:8] if re.fullmatch("[0-9a-f]{64}", text) else text


def _setting(run: StoredRun) -> Setting:
    """Return the keys of a run's setting with their values as text, and `data`."""
    kept = [
        (key, text_of(value))
        for key, value in _tree(run).items()
        if key.startswith((*ALONE, *SECTIONS)) and key not in WITHOUT and not key.startswith(METHOD)
    ]
    return ((DATA, run.summary["dataset"]), *kept)


def _with_samples(
    runs: Sequence[StoredRun], settings: Sequence[Setting], shown: Mapping[Path, str]
) -> tuple[list[Setting], list[str]]:
    """Add the hash of the samples to settings in which runs have different samples.

    A run without a hash, of an earlier version, is taken to have the samples of the other runs of
    its setting if these agree.

    Args:
        runs: The runs.
        settings: Their settings.
        shown: Name for users by run folder, for runs of archives.

    Returns:
        The settings, and a sentence for each that has been divided.
    """
    hashes: dict[Setting, dict[str, Path]] = {}  # with the first run that has the samples
    for run, setting in zip(runs, settings, strict=True):
        if run.data_hash is not None:
            hashes.setdefault(setting, {}).setdefault(run.data_hash, run.path)
    divided = [setting for setting, found in hashes.items() if len(found) > 1]
    sentences = []
    for setting in divided:
        texts = short_hashes(list(hashes[setting]))
        where = [
            f"{text} in {shown.get(path, path)}"
            for text, path in zip(texts, hashes[setting].values(), strict=True)
        ]
        sentences.append(
            f"The samples of {dict(setting)[DATA]} differ between runs whose configurations name"
            f" the same data: SHA-256 {', '.join(where)}. These runs are neither paired nor tested"
            " against each other. Train them on one copy of the data."
        )
    return [
        (*setting, (SAMPLES, run.data_hash or "-")) if setting in divided else setting
        for run, setting in zip(runs, settings, strict=True)
    ], sentences


def _place_labels(settings: Sequence[Setting]) -> list[str]:
    """Return the label of each setting: the data set, and keys that tell the settings apart.

    Keys that differ along with others, such as the net that belongs to a data set, are left out.
    """
    keys: list[str] = []
    kinds = 1
    for key in _differing(settings):
        tried = [*keys, key]
        if (more := len({tuple(dict(one).get(k) for k in tried) for one in settings})) > kinds:
            keys, kinds = tried, more
    short = short_names(keys)
    trees = [dict(setting) for setting in settings]
    texts = {key: short_hashes([tree.get(key, "-") for tree in trees]) for key in keys}
    return [
        ", ".join([tree[DATA], *(f"{short[key]}={texts[key][k]}" for key in keys if key != DATA)])
        for k, tree in enumerate(trees)
    ]


def _differing(settings: Sequence[Setting]) -> list[str]:
    """Return the keys in which settings differ."""
    trees = [dict(setting) for setting in settings]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return [key for key in keys if len({tree.get(key) for tree in trees}) > 1]


def _strangers(methods: Sequence[str], settings: Sequence[Setting]) -> tuple[int, int] | None:
    """Return the positions of runs of two methods that share no setting; None if all share one."""
    held: dict[str, set[Setting]] = {}
    for method, setting in zip(methods, settings, strict=True):
        held.setdefault(method, set()).add(setting)
    names = list(held)
    for first in names:
        for second in names:
            if not held[first] & held[second]:
                return methods.index(first), methods.index(second)
    return None


def _why_apart(
    runs: Sequence[StoredRun],
    methods: Sequence[str],
    settings: Sequence[Setting],
    origins: Mapping[Path, Mapping[str, Any]],
) -> str | None:
    """Return the first reason why runs are not comparable; None if they are."""
    if (found := _strangers(methods, settings)) is not None:
        first, second = (dict(settings[k]) for k in found)
        key = next(key for key in (first | second) if first.get(key) != second.get(key))
        values = short_hashes([first.get(key, "-"), second.get(key, "-")])
        return _named(key, runs, found, values)
    groups: dict[tuple[Setting, Seeds], int] = {}
    for k, (run, setting) in enumerate(zip(runs, settings, strict=True)):
        before = groups.setdefault((setting, seeds_of(run)), k)
        if run.summary["partition_hash"] != runs[before].summary["partition_hash"]:
            what = "partition (same keys and seeds, so the data differ)"
            hashes = [runs[one].summary["partition_hash"][:12] for one in (before, k)]
            return _named(what, runs, (before, k), hashes)
    versions = {run.path: _version(origins[run.path]) for run in runs}
    for k, run in enumerate(runs):
        if versions[run.path] != versions[runs[0].path]:
            names = [versions[runs[0].path], versions[run.path]]
            return _named("version of flbench", runs, (0, k), names)
    return None


def _named(
    what: str, runs: Sequence[StoredRun], pair: tuple[int, int], values: Sequence[str]
) -> str:
    """Return a sentence about what two runs differ in, with the values of both."""
    first, second = (runs[k] for k in pair)
    return f"they differ in {what}: {values[0]} and {values[1]}, in {first.path} and {second.path}"


def _provenance(run: StoredRun) -> Mapping[str, Any]:
    """Return the content of a run's provenance.json; empty if there is none."""
    file = run.path / "provenance.json"
    return read_json(file) if file.is_file() else {}


def _about_versions(runs: Sequence[StoredRun]) -> list[str]:
    """Return a sentence if runs were trained by different versions of flbench."""
    versions = list(dict.fromkeys(_version(_provenance(run)) for run in runs))
    if len(versions) < 2:
        return []
    return [
        f"The final trainings were made by different versions of flbench: {', '.join(versions)}."
        " Differences between methods may come from the code."
    ]


def _version(origin: Mapping[str, Any]) -> str:
    """Return the version of flbench in a provenance.json, with its Git revision."""
    return f"{origin.get('flbench', '-')} ({origin.get('git_revision') or 'no Git revision'})"


def _entries(
    runs: Sequence[StoredRun],
    methods: Sequence[str],
    places: Sequence[str],
    folders: Mapping[Path, str],
) -> tuple[list[Entry], list[str]]:
    """Return the entries in their order, and sentences about runs that are there twice."""
    seeds: dict[str, set[Seeds]] = {}
    for run, place in zip(runs, places, strict=True):
        seeds.setdefault(place, set()).add(seeds_of(run))
    number = {
        (place, both): k for place, some in seeds.items() for k, both in enumerate(sorted(some))
    }
    found: dict[tuple[str, str, int], StoredRun] = {}
    twice = []
    for run, method, place in zip(runs, methods, places, strict=True):
        key = (place, method, number[place, seeds_of(run)])
        if key in found:
            twice.append(
                f"{run.path} has the method and the seeds of {found[key].path}, and is left out."
            )
        else:
            found[key] = run
    order, names = list(seeds), list(dict.fromkeys(methods))
    entries = [
        Entry(method, place, k, run, folders.get(run.path, str(run.path)))
        for (place, method, k), run in found.items()
    ]
    entries.sort(key=lambda one: (order.index(one.place), names.index(one.method), one.repetition))
    return entries, twice


def _counts(entries: Sequence[Entry]) -> dict[tuple[str, str], int]:
    """Return the number of repetitions by place and method."""
    counts: dict[tuple[str, str], int] = {}
    for entry in entries:
        key = (entry.place, entry.method)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _about_missing(entries: Sequence[Entry], methods: Sequence[str]) -> list[str]:
    """Return sentences about runs that are missing, and about too few repetitions."""
    sentences = []
    counts = _counts(entries)
    for place in dict.fromkeys(entry.place for entry in entries):
        every = len({entry.repetition for entry in entries if entry.place == place})
        have = {method: counts.get((place, method), 0) for method in methods}
        if short := [f"{method} has {n} of {every}" for method, n in have.items() if n < every]:
            sentences.append(f"{place}: repetitions are missing: {', '.join(short)}.")
    if len(methods) > 1 and max(counts.values()) < CLAIM_FROM:
        sentences.append(
            f"Fewer than {CLAIM_FROM} repetitions: the tables show what these runs measured, and"
            " support no claim that a method is better."
        )
    return sentences


def _beside(methods: Sequence[str], reference: str | None) -> tuple[tuple[Pair, ...], ...]:
    """Return the pairs of each other method with the reference, as the only family of tests."""
    others = [method for method in methods if method != reference]
    return () if reference is None or not others else (tuple((one, reference) for one in others),)


def _about_equal(entries: Sequence[Entry], reference: str) -> list[str]:
    """Return a sentence about the methods all of whose runs have the weights of the reference's."""
    weights: dict[str, dict[tuple[str, int], str]] = {}
    for entry in entries:
        mine = weights.setdefault(entry.method, {})
        mine[entry.place, entry.repetition] = entry.run.summary.get("weights_digest", UNKNOWN)
    known = weights.pop(reference)
    equal = [
        name
        for name, mine in weights.items()
        if mine.items() <= known.items() and UNKNOWN not in mine.values()
    ]
    if not equal:
        return []
    have = "has" if len(equal) == 1 else "have"
    return [
        f"{', '.join(equal)} {have} the weights of {reference} in each repetition: what differs in"
        " the configuration has no effect on the training here."
    ]


def _baseline(entries: Sequence[Entry]) -> str:
    """Return the label of FedAvg if it is there, otherwise that of the first method."""
    names = {entry.method: entry.run.config.algorithm.name for entry in entries}
    return next((method for method, name in names.items() if name == BASELINE), next(iter(names)))


def _about_optimizers(runs: Sequence[StoredRun]) -> list[str]:
    """Return a sentence if the methods were trained with different optimizers."""
    trees = [
        {
            key: text_of(value)
            for key, value in _tree(run).items()
            if key.startswith(("train.optimizer.", "train.schedule."))
        }
        for run in runs
    ]
    keys = _differing([tuple(tree.items()) for tree in trees])
    if not keys or len({run.config.algorithm.name for run in runs}) == 1:
        return []
    return [
        f"The methods were trained with different values of {', '.join(keys)}. The comparison is"
        " fair if each method's values were chosen on validation parts with equal effort, as"
        " `flbench tune` does."
    ]


def _about_hardware(
    runs: Sequence[StoredRun], origins: Mapping[Path, Mapping[str, Any]]
) -> list[str]:
    """Return a sentence if the runs were trained on different hardware or by different engines."""
    different = [
        name for name in HARDWARE if len({str(origins[run.path].get(name)) for run in runs}) > 1
    ]
    if len({run.config.engine.name for run in runs}) > 1:
        different.append("engine.name")
    if not different:
        return []
    return [f"The runs differ in {', '.join(different)}, so their seconds are not comparable."]


def _vary(entries: Sequence[Entry]) -> Vary:
    """Return what differs between the repetitions of a method in a place."""
    training = partition = False
    for where in {(entry.place, entry.method) for entry in entries}:
        mine = [entry.run for entry in entries if (entry.place, entry.method) == where]
        training |= len({run.config.seed for run in mine}) > 1
        partition |= len({run.summary["partition_hash"] for run in mine}) > 1
    if training and partition:
        return "both"
    return "training" if training else "partition" if partition else "nothing"


def _kind(run: StoredRun) -> str:
    """Return the kind of partition of a run: its scheme, with the keys that the scheme uses.

    Clients that the data set has are a kind of their own for each data set.
    """
    partition = run.config.partition
    if partition.scheme in FIXED:
        return f"{partition.title} of {run.summary['dataset']}"
    keys = [key for key, schemes in SCHEME_KEYS.items() if partition.scheme in schemes]
    known = [key for key in keys if key not in HOW_MANY]
    own = ("args", "sha256") if partition.is_own else ()
    values = [
        f"{key}={text_of(value)}"
        for key in (*known, *own)
        if (value := getattr(partition, key)) is not None
    ]
    return " ".join([partition.title, *values])


def _about_choice(
    at_place: Mapping[str, Sequence[Entry]], samplings: Mapping[str, Sampling]
) -> list[str]:
    """Return a sentence for each place where few validation samples have chosen the best rounds."""
    sentences = []
    for place, entries in at_place.items():
        known = samplings[place].validation
        has_choice = any(
            len({row.round for row in entry.run.rows if row.split == "validation"}) > 1
            for entry in entries
        )
        if has_choice and known is not None and 0 < known < MANY:
            sentences.append(
                f"{place}: the best rounds were chosen on {known} validation samples of all"
                f" clients. With fewer than {MANY} the choice is largely chance, and favours"
                " methods whose results vary between rounds."
            )
    return sentences


def _about_collapsed(at_place: Mapping[str, Sequence[Entry]], metric: str) -> list[str]:
    """Return a sentence for each place that has collapsed runs."""
    sentences = []
    for place, entries in at_place.items():
        values: dict[str, dict[int, float]] = {}
        for entry in entries:
            values.setdefault(entry.method, {})[entry.repetition] = entry.score(metric)
        runs = {(entry.method, entry.repetition): entry for entry in entries}
        those = [
            f"{method} in repetition {k} ({values[method][k]:.4g} beside a median of"
            f" {median(values[method].values()):.4g}; seed {runs[method, k].run.config.seed},"
            f" {runs[method, k].folder})"
            for method, k in collapsed(values)
        ]
        if those:
            more = len(those) - MOST_COLLAPSED
            end = f", and {more} other runs" if more > 0 else ""
            is_one = len(those) == 1
            sentences.append(
                f"{place}: {len(those)} {'run lies' if is_one else 'runs lie'} far below the other"
                f" repetitions of {'its' if is_one else 'their'} method in test {metric}:"
                f" {'; '.join(those[:MOST_COLLAPSED])}{end}. Means, intervals and tests contain"
                f" {'it' if is_one else 'them'}. Look at the training loss in metrics.csv."
            )
    return sentences


def _about_direction(runs: Sequence[StoredRun], metrics: Sequence[str]) -> list[str]:
    """Return a sentence for each metric of the user's own in which methods are tested.

    Whether its small values are good is known to its code only, which a report does not need.
    """
    own = {
        f"{name}{suffix}"
        for run in runs
        for name in run.config.evaluation.metrics or {}
        for suffix in ("", *SUFFIXES)
    }
    return [
        f"`{metric}` is a metric of your own, and the report takes larger values for better ones."
        " If smaller values are better, ranks and verdicts mean the opposite: report its negative."
        for metric in metrics
        if metric in own
    ]


def _about_rare(runs: Sequence[StoredRun], chosen: Sequence[str]) -> list[str]:
    """Return a sentence if the user asks for a metric of rare classes, and there are none."""
    asked = [name for name in chosen if name.startswith("rare_")]
    if not asked or any(run.has_rare_classes for run in runs):
        return []
    return [
        f"`{asked[0]}` is left out, because no class is rare: the classes are balanced, or"
        " `evaluation.rare` selects none."
    ]


def _is_undefined(run: StoredRun, metric: str) -> bool:
    """Return whether a run has a test metric that is NaN or infinite, so that it has no mean."""
    value = run.summary["best"]["test"].get(metric)
    return isinstance(value, float) and not isfinite(value)


def _is_number(value: Any) -> bool:
    """Return whether a metric has a finite value."""
    return isinstance(value, int | float) and isfinite(value)


def _names(metric: str | Sequence[str]) -> list[str]:
    """Return the names of metrics, each once.

    Raises:
        UserError: There is none.
    """
    if not isinstance(metric, str | Sequence):
        raise UserError(f"metric={metric!r} is not the name of a metric, such as 'accuracy'.")
    parts = metric.split(",") if isinstance(metric, str) else [str(name) for name in metric]
    names = [*dict.fromkeys(filter(None, (part.strip() for part in parts)))]
    if not names:
        raise UserError(f"metric={metric!r} names no metric. Name one, such as accuracy.")
    return names


def _targets(given: str | float | Iterable[float] | None, metric: str) -> tuple[float, ...]:
    """Return the values of the metric whose costs are wanted, each once.

    Raises:
        UserError: One of them is not a number, or beyond the values of the metric.
    """
    if given is None:
        return ()
    values: Iterable[Any] = [given]
    if isinstance(given, str):
        values = [part for part in given.split(",") if part.strip()] or [given]
    elif isinstance(given, Iterable):
        values = given
    found = []
    for value in values:
        try:
            target = nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            target = nan
        if not isfinite(target):
            raise UserError(
                f"the target {value!r} is not a number. Name values of the metric, such as 0.8,0.9."
            )
        if metric in SHARES and not 0 <= target <= 1:
            cure = f": {target / 100:g} instead of {target:g}" if 1 < target <= 100 else ""
            raise UserError(
                f"the target {target:g} is no value of `{metric}`, which is between 0 and 1{cure}."
            )
        found.append(target)
    return tuple(dict.fromkeys(found))


def _check_metrics(runs: Sequence[StoredRun], metric: str, others: Sequence[str]) -> None:
    """Raise a UserError if a run does not have a metric that ranks methods, or another column."""
    if metric in PRICES or metric in metric_names.LESS_IS_BETTER:
        raise UserError(
            f"`{metric}` ranks no methods: less is better. Name a metric first, as in"
            f" accuracy,{metric}."
        )
    for run in runs:
        names = _metric_names(run)
        ranking = [name for name in names if name not in SPREADS]
        if metric in SPREADS and metric in names:
            raise UserError(f"`{metric}` ranks no methods: neither more nor less of it is better.")
        if metric.startswith("rare_") and not run.has_rare_classes:
            raise UserError(
                f"{run.path} has no rare class, so `{metric}` ranks no methods. Classes are rare"
                " by `evaluation.rare` if they have few training samples and the classes are not"
                " balanced. Choose another metric."
            )
        if metric not in ranking:
            have = f"It has {', '.join(ranking)}." if ranking else "It has no test metrics."
            near = did_you_mean(metric, ranking)
            raise UserError(f"{run.path} has no test metric `{metric}`.{near} {have}")
    known = [*dict.fromkeys(name for run in runs for name in _metric_names(run)), *PRICES]
    for name in others:
        if name not in known:
            raise UserError(
                f"no run has a test metric `{name}` for a column of the tables."
                f"{did_you_mean(name, known)} There are {', '.join(known)}."
            )


def _metric_names(run: StoredRun) -> list[str]:
    """Return the names of a run's test metrics."""
    test = run.summary["best"]["test"]
    return [name for name, value in test.items() if isinstance(value, int | float)]
