"""Trains the methods of 2020 to 2025 in settings of the board, and all methods with new clients.

usage: python benchmarks/new_methods.py DATA_DIR OUT_DIR [--parts PART,...] [--jobs N] [--minutes M]
       python benchmarks/new_methods.py --list

The parts are trained in the order given, --jobs trainings at a time in a process each, without Ray.
A part that needs others (PART/tuned needs PART/study) has the jobs of each method as soon as they
can begin. The script ends when everything is trained or the minutes are over; finished runs are
kept, and the same command trains what is left. It writes OUT_DIR/results.tar.gz without the models.

    SETTING/default    each method with its default parameters, five repetitions
    SETTING/study      eight trials for each method, as `flbench tune --search random
                       --scheduler none` draws them, on a partition of their own
    SETTING/tuned      each method with the best parameters of the study, five repetitions
    clients/NAME       all methods on a federation some of whose clients join after the training;
                       clients/NAME*3 has three repetitions
"""

import argparse
import json
import os
import shutil
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Final

from flbench.algorithms import ALGORITHMS
from flbench.comparison.design import DEFAULTS, Design, LabelledLayer
from flbench.comparison.folder import ComparisonFolder
from flbench.config.resolve import resolve
from flbench.config.schema import EngineConfig
from flbench.config.sources import Layer, from_file, from_values, merge
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.experiment import provenance
from flbench.jobs.job import Job, Outcome, Task
from flbench.jobs.launchers import launcher
from flbench.jobs.samples import LoadedSamples
from flbench.results import reading, study_folder
from flbench.results.study_folder import Header, MethodEntry
from flbench.tuning import fitting, library
from flbench.tuning.proposals import Proposals
from flbench.tuning.study import TrialFolder, now
from flbench.workers.ray_resources import CELL, Resources

CONFIGS: Final = Path(__file__).resolve().parents[1] / "configs"
REFERENCES: Final = ("local", "fedavg", "ft")
NEW: Final = (
    *("feddbe", "gpfl", "fedcp", "fedrod", "fedpac", "fedas", "fedcac", "pfedfda", "fedtgp"),
    *("floco", "knnper", "fedamp", "perfedavg", "lgfedavg", "pfedhn"),
    *("fedadam", "fedyogi", "fedadagrad"),
)
SETTINGS: Final = ("digits-dir05", "fashion-dir05")
TRIALS: Final = 8
REPETITIONS: Final = 5
SEARCH_SEED: Final = 100  # of the search, which is no repetition of a comparison
COMMON: Final = {"tracking.mlflow": False, "engine.workers": 1}
LAST: Final = 1_000_000_000
"""Rounds between two checkpoints: one after the last round, whose model is deleted."""
LEFT_OUT: Final = (".safetensors", ".gz", ".html", ".png", ".pdf")
ORIGIN: Final = "benchmarks/new_methods.py"


@dataclass
class Item:
    """A training of a part.

    Attributes:
        job: What is trained.
        path: Its run folder.
        ended: Function that is called after the training.
    """

    job: Job
    path: Path
    ended: Callable[["Item", Outcome], None] = lambda item, outcome: None

    @property
    def is_done(self) -> bool:
        """Whether the run is finished."""
        return reading.is_finished(self.path)


@dataclass
class Part:
    """Trainings that belong together.

    Attributes:
        name: Its name, which is that of its folder.
        items: Function that returns the trainings that can begin now, and those that are done.
    """

    name: str
    items: Callable[[], Sequence[Item]]


@dataclass
class Work:
    """What is trained, and where.

    Attributes:
        out: Folder of the results.
        methods: Methods of all parts; empty for the new ones in the settings of the board, and for
            all of flbench's methods with new clients.
        values: Values of the configuration by dotted key, such as fewer rounds for a trial.
        repetitions: Repetitions of default and tuned parameters.
        trials: Trials of each method.
    """

    out: Path
    methods: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)
    repetitions: int = REPETITIONS
    trials: int = TRIALS

    @property
    def of_board(self) -> tuple[str, ...]:
        """Methods in the settings of the board."""
        return self.methods or (*REFERENCES, *NEW)

    def part(self, name: str) -> Part:
        """Return a part by its name.

        Raises:
            KeyError: There is no such part.
        """
        name, _, count = name.partition("*")
        first, _, kind = name.partition("/")
        if first in SETTINGS and kind == "default":
            items = self._comparison(name, self.base(f"board/{first}"), self.of_board)
            return Part(name, lambda: items)
        if first in SETTINGS and kind == "study":
            trials = [trial for mine in self._study(first).values() for trial in mine]
            return Part(name, lambda: trials)
        if first in SETTINGS and kind == "tuned":
            return self._tuned(first)
        if first == "clients" and (CONFIGS / "clients" / f"{kind}.yaml").is_file():
            # The nets of these settings have no adapters.
            fitting = (one for one in ALGORITHMS.names() if not ALGORITHMS.find(one).example())
            methods = self.methods or tuple(fitting)
            base, seeds = self.base(f"clients/{kind}"), int(count or 1)
            items = self._comparison(name, base, methods, seeds=seeds)
            return Part(name, lambda: items)
        raise KeyError(name)

    def base(self, config: str) -> Layer:
        """Return what all trainings of a setting share.

        Args:
            config: Name of its file below `configs`.
        """
        values = {
            **COMMON,
            "data.root": ".",  # the folder with the data sets, which `main` changes to
            "output.checkpoint_every": LAST,
            **self.values,
        }
        layer = from_file(CONFIGS / f"{config}.yaml")
        return merge([layer, from_values(values, ORIGIN)])

    def _comparison(
        self,
        name: str,
        base: Layer,
        methods: Sequence[str],
        *,
        study: Path | None = None,
        seeds: int | None = None,
    ) -> list[Item]:
        """Return the trainings of a comparison, whose folder is made or written anew.

        Args:
            name: Name of the part.
            base: What the methods share.
            methods: Methods, or those of them whose parameters are known.
            study: Study with their parameters; None for the default parameters.
            seeds: Number of repetitions; None for those of the board.
        """
        layers = []
        for method in methods:
            layer = from_values({"algorithm.name": method}, ORIGIN)
            if study is not None:
                won = _study(study).winner(method)
                assert won is not None
                layer = merge([layer, from_values(won.params, "study")])
            layers.append(LabelledLayer.of(method, layer))
        tuned = None if study is None else str(study)
        repetitions = self.repetitions if seeds is None else seeds
        design = Design(base=base, methods=tuple(layers), seeds=repetitions, tuned=tuned)
        cells = design.cells()
        root = self.out / name
        found = sorted(root.glob("*/comparison.json"))
        short = name.replace("/", "-")
        folder = (
            ComparisonFolder.reopen(found[0].parent)
            if found
            else ComparisonFolder.create(root, short)
        )
        about = {"id": folder.path.name, "created": now(), "command": [ORIGIN, name]}
        folder.save(design, cells, **about)
        folder.close()
        return [Item(cell, folder.run_folder(cell)) for cell in cells]

    def _study(self, setting: str) -> dict[str, list[Item]]:
        """Return the trials of a search by method; its study.json is written anew."""
        base = self.base(f"board/{setting}")
        seeds = {"seed": SEARCH_SEED, "partition.seed": SEARCH_SEED}
        base = merge([base, from_values(seeds, ORIGIN)])
        path = self.out / setting / "study"
        entries, found = {}, {}
        for method in self.of_board:
            layers = [base, from_values({"algorithm.name": method}, ORIGIN)]
            config, _ = resolve(layers)
            rounds = config.train.rounds
            space, _ = fitting.fit(library.built_in(method, rounds=rounds), layers)
            defaults = space.defaults(config)
            entries[method] = MethodEntry(space.source, defaults, space.tree())
            options = {"seed": SEARCH_SEED, "trials": self.trials, "batch": self.trials}
            proposals = Proposals("random", space, defaults, **options)
            found[method] = [
                self._trial(path, method, index, [*layers, from_values(params, "search")], params)
                for index, params in enumerate(proposals.given({}))
            ]
        header = Header(
            id=f"{setting}-study",
            created=now(),
            command=(ORIGIN, f"{setting}/study"),
            dataset=config.data.title,
            scheme=config.partition.title,
            partition_hash=None,
            seed=SEARCH_SEED,
            metric="accuracy",
            search="random",
            scheduler="none",
            trials=self.trials,
            rounds=rounds,
            seeds=0,
            git_revision=provenance.git_revision(),
            methods=entries,
        )
        path.mkdir(parents=True, exist_ok=True)
        (path / "study.json").write_text(json.dumps(asdict(header), indent=1) + "\n", "utf-8")
        return found

    def _trial(
        self, study: Path, method: str, index: int, layers: Sequence[Layer], params: dict[str, Any]
    ) -> Item:
        """Return a trial of a search."""
        trial = TrialFolder(study, method, index)
        config, origins = resolve([DEFAULTS, *layers])
        job = Job(trial.name, method, "", "", 0, config, origins)
        item = Item(job, trial.path, lambda item, outcome: _record(trial, params, item))
        if item.is_done and not (item.path / "trial.json").is_file():  # the script was killed
            _record(trial, params, item)
        return item

    def _tuned(self, setting: str) -> Part:
        """Return the trainings with tuned parameters: of the methods whose trials have ended."""
        study, name = self.out / setting / "study", f"{setting}/tuned"
        trials = self._study(setting)
        seen: set[str] = set()
        items: list[Item] = []

        def found() -> list[Item]:
            over = {
                method
                for method, mine in trials.items()
                if all((trial.path / "trial.json").is_file() for trial in mine)
            }
            if over != seen:
                seen.update(over)
                known = _study(study)
                won = {method: known.winner(method) for method in trials if method in over}
                tuned = [method for method, trial in won.items() if trial is not None]
                base = self.base(f"board/{setting}")
                every = self._comparison(name, base, tuned, study=study) if tuned else []
                # Where the default parameters have won, the default runs are copied in the end.
                is_there = (self.out / setting / "default").is_dir()
                kept = {name for name, trial in won.items() if trial and not trial.index}
                items[:] = [x for x in every if not (is_there and x.job.method in kept)]
            return items

        return Part(name, found)


def _study(path: Path) -> study_folder.StoredStudy:
    """Return a study as it is now."""
    return study_folder.read(path, lenient=True)


def _record(trial: TrialFolder, params: dict[str, Any], item: Item) -> None:
    """Write the trial.json of a trial that has ended."""
    rounds = item.job.config.train.rounds
    record = trial.begin({"params": params, "seed": SEARCH_SEED, "rounds": rounds})
    record |= {"ended": now(), "state": "failed"}
    if item.is_done:
        summary = read_json(item.path / "summary.json")
        score = summary["last"]["validation"].get("accuracy")
        is_finite = isinstance(score, float) and isfinite(score)
        record |= {"round": rounds, "seconds": summary["seconds"]}
        record |= {"state": "finished", "score": score} if is_finite else {"state": "diverged"}
    trial.write(record)


def _next(parts: Sequence[Part], begun: set[Path]) -> Item | None:
    """Return the first training that can begin; None if there is none at present."""
    for part in parts:
        for item in part.items():
            if item.path not in begun and not item.is_done:
                return item
    return None


def train(parts: Sequence[Part], jobs: int, end: float) -> list[str]:
    """Train the parts, until everything is trained or the time is over.

    Args:
        parts: The parts in the order of their value.
        jobs: Trainings at the same time.
        end: Time (of `time.monotonic`) at which no training may run any more.

    Returns:
        A sentence for each training that failed.
    """
    samples, failures = LoadedSamples(), []
    resources = Resources(jobs, EngineConfig(), 0.0, 1, None, CELL)
    begun: set[Path] = set()
    running: dict[int, Item] = {}
    begin = time.monotonic()
    known = [item.job for part in parts for item in part.items()]
    with launcher(known, samples, resources, print) as chosen:
        while time.monotonic() < end:
            while len(running) < jobs and (item := _next(parts, begun)) is not None:
                begun.add(item.path)
                try:
                    chosen.begin(item.job, Task(item.path, item.job.layer))
                except UserError as error:  # such as a data set that is not there
                    failures.append(f"{item.path}: {error}")
                    continue
                running[id(item.job)] = item
            if not running:
                break
            for job, outcome in chosen.ended():
                item = running.pop(id(job))
                item.ended(item, outcome)
                for model in item.path.glob("*.safetensors"):
                    model.unlink()
                if outcome.reason is not None:
                    failures.append(f"{item.path}: {outcome.reason}")
                print(
                    f"{time.monotonic() - begin:6.0f} s  {outcome.seconds:5.1f} s "
                    f" {item.path.parent.parent.parent.name} {job.name} {outcome.reason or ''}",
                    flush=True,
                )
    return failures


def collect(out: Path) -> Path:
    """Write all finished runs below a folder to one file, without models; return its path."""
    file = out / "results.tar.gz"
    begun = (path.parent for path in out.rglob("config.yaml"))
    unfinished = {path for path in begun if not reading.is_finished(path)}
    with tarfile.open(file, "w:gz", compresslevel=3) as archive:
        for path in sorted(out.rglob("*")):
            is_left_out = path.suffix in LEFT_OUT or path.name == ".lock" or not path.is_file()
            is_left_out |= path.name == "predictions.csv" and "trials" in path.parts
            if not is_left_out and not unfinished & {*path.parents}:
                archive.add(path, path.relative_to(out))
    return file


def adopt_defaults(out: Path) -> int:
    """Copy the default runs of methods whose search kept the default parameters to the tuned runs.

    They are what a training with these parameters would give, because seeds and partitions are
    those of the default runs.

    Returns:
        Number of runs.
    """
    count = 0
    for setting in SETTINGS:
        study = out / setting / "study"
        tuned = sorted((out / setting / "tuned").glob("*/comparison.json"))
        default = sorted((out / setting / "default").glob("*/comparison.json"))
        if not (tuned and default and (study / "study.json").is_file()):
            continue
        for method in _study(study).methods:
            won = _study(study).winner(method)
            if won is None or won.index:
                continue
            for source in sorted((default[0].parent / "cells").glob(f"{method}-*")):
                target = tuned[0].parent / "cells" / source.name
                if reading.is_finished(source) and not reading.is_finished(target):
                    shutil.rmtree(target, ignore_errors=True)
                    shutil.copytree(source, target)
                    count += 1
    return count


@cache
def every_part() -> tuple[str, ...]:
    """Return the names of all parts, the most valuable first."""
    clients = [f"clients/{path.stem}" for path in sorted((CONFIGS / "clients").glob("*.yaml"))]
    digits, *others = SETTINGS
    kinds = ("default", "tuned", "study")  # a method is trained as soon as its search is over
    return (
        *(f"{digits}/{kind}" for kind in kinds),
        *clients,
        *(f"{one}/{kind}" for one in others for kind in kinds),
    )


def pairs(items: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of `key=value`; values are JSON, or text."""
    for item in items:
        key, _, text = item.partition("=")
        try:
            yield key, json.loads(text)
        except ValueError:
            yield key, text


def main() -> int:
    """Train what the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?", help="folder with the data sets")
    parser.add_argument("out", type=Path, nargs="?", help="folder of the results")
    parser.add_argument("--parts", default=",".join(every_part()), help="parts in their order")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--minutes", type=float, default=1e6, help="time limit")
    parser.add_argument("--methods", help="methods, instead of those of the parts")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--set", action="append", default=[], help="key=value of all trainings")
    parser.add_argument("--list", action="store_true", help="print the parts, and train nothing")
    begin = time.monotonic()
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(every_part()))
        return 0
    if asked.data is None or asked.out is None:
        parser.error("name the folder with the data sets and the folder of the results")
    names = asked.parts.split(",")
    if unknown := [name for name in names if name.partition("*")[0] not in every_part()]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(every_part())}")
    asked.out.mkdir(parents=True, exist_ok=True)
    work = Work(
        asked.out.resolve(),
        tuple(asked.methods.split(",")) if asked.methods else (),
        dict(pairs(asked.set)),
        asked.repetitions,
        asked.trials,
    )
    os.chdir(asked.data)  # configurations name files of this folder
    parts = [work.part(name) for name in names]
    failures = []
    try:
        failures = train(parts, asked.jobs, begin + 60 * asked.minutes)
    except KeyboardInterrupt:
        print("interrupted: what is finished is kept", flush=True)
    adopted = adopt_defaults(work.out)
    print(f"{adopted} default runs are tuned runs, too; {collect(work.out)} is written")
    for part in parts:
        items = part.items()
        done = sum(item.is_done for item in items)
        print(f"{part.name}: {done} of {len(items)} known trainings are finished")
    for name, count in Counter(failures).items():
        print(name if count == 1 else f"{name} ({count} times)")
    return min(len(failures), 1)


if __name__ == "__main__":
    sys.exit(main())
