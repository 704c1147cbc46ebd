"""Checks of a comparison against its data and methods, before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from flbench.comparison import plan, tuned
from flbench.comparison.folder import ComparisonFolder
from flbench.comparison.plan import Design
from flbench.config.resolve import read
from flbench.config.schema import Config, EngineConfig
from flbench.config.sources import Layer, leaves
from flbench.core.control_groups import available_cores
from flbench.core.errors import ConfigError, UserError
from flbench.core.own_names import check_whole
from flbench.experiment import assembly
from flbench.experiment.engines import on_this_machine, with_device
from flbench.experiment.lifecycle import CHANGEABLE_ON_RESUME
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.results.differences import CODE, SOURCE
from flbench.workers.nesting import is_elsewhere
from flbench.workers.ray_resources import CELL, Resources, gpu_share

RETRIES: Final = 2  # new attempts of a cell whose process dies
SEEDS: Final = ("seed", "partition.seed", "partition.sha256")  # what differs between repetitions

Place = tuple[str, str]
"""Label of the data set, and of the setting."""


@dataclass(frozen=True)
class PreparedComparison:
    """A comparison that can be carried out.

    Attributes:
        design: What the user asked for.
        cells: Its cells, in the order in which they are trained.
        found: Complete configuration of the first repetition, by method and place.
        samples: Data sets and partitions.
        resources: Cells at the same time, and the resources of each of them.
        notes: Sentences about configuration and data.
        repeated: Those of the notes that the report repeats: which methods are left out, and how
            the setting in which a study has found the parameters differs from that of the
            comparison.
    """

    design: Design
    cells: tuple[Job, ...]
    found: tuned.Cells
    samples: LoadedSamples
    resources: Resources
    notes: tuple[str, ...]
    repeated: tuple[str, ...] = ()

    def complete(self, cell: Job) -> Config:
        """Return the configuration of a cell with the values that follow from its data."""
        return tuned.complete(self.found[cell.method, (cell.data, cell.setting)], cell.config)

    def at(self, address: str) -> "PreparedComparison":
        """Return the comparison on another Ray cluster.

        Args:
            address: Address of a running cluster, or `local` for this machine.
        """
        asked = self.cells[0].config.engine.altered(address=address)
        engine = with_device(asked, address, "`address`")
        resources = _resources(engine, self.resources.concurrent, len(self.cells))
        return replace(self, resources=resources)


def _value(layer: Layer, path: str) -> Any:
    """Return a value of a layer by its dotted key; None if the layer does not set it."""
    return layer[path].value if path in layer else None


def prepare(
    design: Design, samples: LoadedSamples, jobs: int | None, *, force: bool = False
) -> PreparedComparison:
    """Check a design against its data and methods. No file is written.

    Args:
        design: The design.
        samples: Data of the comparison, not yet loaded.
        jobs: Number of cells to train at the same time; None for one per core.
        force: Whether the study that has found the parameters may have another setting.

    Raises:
        UserError: The comparison cannot be carried out.
    """
    plan.check(design)
    design, left_out = plan.without_invalid(design)
    cells = plan.cells(design)
    optional = {one.label for one in design.methods if one.is_optional}
    first = cells[0].config.engine
    engine = with_device(first, first.address, "`address`")
    notes: dict[str, None] = {}
    if design.seeds < 3:
        notes[
            f"`seeds={design.seeds}`: with fewer than 3 repetitions, no difference"
            " between methods can be claimed."
        ] = None
    built: dict[tuple[str, Place], Config] = {}
    errors: dict[str, None] = {}
    for cell in cells:
        place = cell.method, (cell.data, cell.setting)
        if cell.repetition:
            continue
        federation = samples.federation(cell)
        try:
            # Building with the simplest engine shows whether the method accepts it.
            asked = cell.config.engine
            simple = asked.altered(name="sequential", device=engine.device)
            experiment = assembly.build(cell.config, federation, engine=on_this_machine(simple))
        except UserError as error:
            if cell.method in optional:
                left_out.setdefault(cell.method, str(error))
            else:
                errors |= dict.fromkeys(str(error).splitlines())
            continue
        if not experiment.config.has_classes:
            errors[
                f"a comparison is made by accuracies, and `{federation.dataset.name}` has targets"
                " that are not classes. Train the methods one by one with fl.federate, and compare"
                " the metrics of the runs."
            ] = None
            continue
        used = experiment.config.engine.altered(precision=asked.precision)
        built[place] = experiment.config.altered(engine=used)
        notes |= dict.fromkeys(experiment.notes)
    if errors:
        raise ConfigError("\n".join(errors))
    design = plan.without(design, left_out)
    cells = [cell for cell in cells if cell.method not in left_out]
    about_left_out = [
        f"{label} is left out: {' '.join(reason.splitlines())}"
        for label, reason in left_out.items()
    ]
    if left_out and len(design.methods) == 1:
        raise ConfigError("\n".join([*about_left_out, "No other method is left to compare."]))
    if not force:
        tuned.check(design, cells, built, samples)
    notes |= dict.fromkeys(_about_partitions(design, cells, samples))
    notes |= dict.fromkeys(tuned.about_missing(design))
    repeated = (*about_left_out, *tuned.sentences(design, cells, built, samples))
    notes |= dict.fromkeys(repeated)
    resources = _resources(engine, jobs, len(cells))
    return PreparedComparison(
        design, tuple(cells), built, samples, resources, tuple(notes), repeated
    )


def _about_partitions(design: Design, cells: Sequence[Job], samples: LoadedSamples) -> list[str]:
    """Return a sentence if the partition is to vary between repetitions but does not.

    Raises:
        ConfigError: Nothing else would vary.
    """
    if design.vary == "training" or design.seeds == 1:
        return []
    sentences = []
    firsts = {(cell.data, cell.setting): cell for cell in reversed(cells) if not cell.repetition}
    for cell in cells:
        first = firsts.get((cell.data, cell.setting))
        if cell.repetition != 1 or first is None:
            continue
        del firsts[cell.data, cell.setting]
        one, other = (samples.federation(found).partition.hash() for found in (first, cell))
        if one != other:
            continue
        reason = (
            f"{cell.place}: partition.scheme={cell.config.partition.scheme} makes the same"
            " partition for every seed"
        )
        if design.vary == "partition":
            raise ConfigError(
                f"`vary=partition`: {reason}, so all repetitions would be equal. Use"
                f" `vary=training`."
            )
        sentences.append(f"{reason}, so only the training varies between repetitions.")
    return sentences


def check_cluster(design: Design, jobs: int | None) -> None:
    """Check that a comparison on a running cluster knows how many cells are trained at once.

    Args:
        design: The design, which may name the address of a cluster.
        jobs: Number of cells to train at the same time; None for one per core of this machine.

    Raises:
        ConfigError: It does not.
    """
    address = _value(design.base, "engine.address")
    has_workers = _value(design.base, "engine.name") == "ray"  # a cell connects to it by itself
    if is_elsewhere(address) and not has_workers and jobs is None:
        raise ConfigError(
            f"`address={address}` needs `jobs`, the number of cells that are"
            " trained at the same time: it cannot be derived from the cores of this machine."
        )


def _resources(engine: EngineConfig, jobs: int | None, cells: int) -> Resources:
    """Return the number of cells at the same time, and the resources of each.

    Raises:
        ConfigError: The machine has not enough cores, Ray is missing on a GPU, or the engine starts
            workers of its own.
    """
    asked = jobs
    if jobs is not None:
        check_whole("jobs", jobs, 1)
    threads = engine.threads
    on_gpu = engine.device.startswith("cuda")
    devices = _gpus() if on_gpu else 0
    if engine.name == "ray":
        if jobs is not None and jobs > 1:
            raise ConfigError(
                f"`jobs={jobs}`: with engine.name=ray each cell trains its clients on all"
                f" cores. Leave engine.name out, or use `jobs={1}`."
            )
        jobs = 1
    is_given = engine.name != "ray" and is_elsewhere(engine.address)
    address = engine.address if is_given else None
    if jobs is None and address is not None:
        jobs = cells  # as many as the cluster has room for
    if jobs is None:
        jobs = devices if on_gpu else max(1, available_cores() // threads)
        jobs = max(1, min(jobs, cells))
    if ((on_gpu and jobs > 1) or address is not None) and find_spec("ray") is None:
        if asked is not None or address is not None:
            raise ConfigError(
                f"`jobs={jobs}` needs the package `ray`, which is not installed:"
                " pip install 'flbench[tune]'"
            )
        jobs = 1
    engine = engine.altered(name="sequential", threads=threads)
    gpus = gpu_share(jobs, devices) if address is None else float(on_gpu)
    return Resources(jobs, engine, gpus, RETRIES, address, CELL)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def check_existing(prepared: PreparedComparison, folder: ComparisonFolder) -> None:
    """Check that the cells of a folder have the configurations and the data of the plan.

    Configurations differ if flbench has other defaults than the version that began the comparison.
    Data differ if their files have changed. They are checked if cells are left to train.

    Args:
        prepared: The comparison.
        folder: Its folder.

    Raises:
        ConfigError: A key differs. The message names the first one.
        DataError: The samples of a finished cell differ from those that the others would have.
    """
    begun = [cell for cell in prepared.cells if (folder.run_folder(cell) / "config.yaml").is_file()]
    for cell in begun:
        path = folder.run_folder(cell)
        now, written = (
            leaves(one.tree(), without=(*SEEDS, *CHANGEABLE_ON_RESUME, "output."))
            for one in (prepared.complete(cell), read(path / "config.yaml"))
        )
        for key, value in now.items():
            if key in (SOURCE, CODE) and key not in written:  # written by an earlier version
                continue
            # Where a method is imported from may change.
            if key != SOURCE and written.get(key) != value:
                raise ConfigError(
                    f"`{key}` was {written.get(key)!r} when {path} began, and is now"
                    f" {value!r}. Start a new comparison."
                )
    if all(map(folder.is_done, prepared.cells)):
        return
    for cell in begun:
        prepared.samples.check_unchanged(cell, folder.run_folder(cell))
