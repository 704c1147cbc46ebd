"""Checks of a comparison against its data and methods, before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from flbench.comparison import design as designs
from flbench.comparison import tuned
from flbench.comparison.design import Design
from flbench.comparison.folder import ComparisonFolder
from flbench.config.resolve import read
from flbench.config.schema import Config, EngineConfig
from flbench.config.sources import leaves
from flbench.core.control_groups import available_cores
from flbench.core.errors import ConfigError, UserError
from flbench.core.own_names import check_whole
from flbench.experiment import assembly
from flbench.experiment.engines import on_this_machine, with_device
from flbench.experiment.lifecycle import CHANGEABLE_ON_RESUME
from flbench.jobs.job import Job
from flbench.jobs.resources import CELL, Resources, gpu_share
from flbench.jobs.samples import LoadedSamples
from flbench.results.differences import SOURCE
from flbench.workers.nesting import is_elsewhere

RETRIES: Final = 2  # new attempts of a cell whose process dies
SEEDS: Final = ("seed", "partition.seed", "partition.sha256")  # what differs between repetitions


@dataclass(frozen=True)
class PreparedComparison:
    """A comparison that can be carried out.

    Attributes:
        design: What the user asked for, without the variants that cannot be trained.
        cells: Its cells, in the order in which they are trained.
        found: Complete configuration of the first repetition, by method, and labels of data and
            setting.
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
        first, asked = self.found[cell.method, (cell.data, cell.setting)], cell.config
        partition = first.partition.altered(seed=asked.partition_seed)
        return first.altered(seed=asked.seed, partition=partition, output=asked.output)


def prepare(
    design: Design,
    samples: LoadedSamples,
    jobs: int | None,
    *,
    force: bool = False,
    address: str | None = None,
    retries: int = RETRIES,
) -> PreparedComparison:
    """Check a design against its data and methods. No file is written.

    Args:
        design: The design.
        samples: Data of the comparison, not yet loaded.
        jobs: Number of cells to train at the same time; None for one per core, or on a cluster for
            as many as there is room for.
        force: Whether the study that has found the parameters may have another setting.
        address: Address of a Ray cluster, or `local`, in place of that of the design; or None.
        retries: New attempts of a cell whose process dies.

    Raises:
        UserError: The comparison cannot be carried out.
    """
    designs.check(design)
    optional = {one.label: one for one in design.methods if one.is_optional}
    left_out: dict[str, str] = {}
    for label, method in optional.items():
        try:
            design.altered(methods=(method,), seeds=1).cells()
        except ConfigError as error:
            left_out[label] = str(error)
    cells = design.without(left_out).cells()
    first = cells[0].config.engine
    first = first if address is None else first.altered(address=address)
    engine = with_device(first, first.address, "`address`")
    notes: dict[str, None] = {}
    built: dict[tuple[str, tuple[str, str]], Config] = {}
    errors: dict[str, None] = {}
    for cell in (one for one in cells if not one.repetition):
        federation = samples.federation(cell)
        try:
            # Building with the simplest engine shows whether the method accepts it.
            asked = cell.config.engine
            simple = asked.altered(name="sequential", device=engine.device)
            experiment = assembly.build(cell.config, federation, engine=on_this_machine(simple))
            if not experiment.config.has_classes:
                raise ConfigError(
                    f"a comparison is made by accuracies, and `{federation.dataset.name}` has"
                    " targets that are not classes. Train the methods one by one, and compare the"
                    " metrics of the runs."
                )
        except UserError as error:
            if cell.method in optional:
                left_out.setdefault(cell.method, str(error))
            else:
                errors |= dict.fromkeys(str(error).splitlines())
            continue
        used = experiment.config.engine.altered(precision=asked.precision)
        config = experiment.config.altered(engine=used)
        built[cell.method, (cell.data, cell.setting)] = config
        notes |= dict.fromkeys(experiment.notes)
    if errors:
        raise ConfigError("\n".join(errors))
    design = design.without(left_out)
    cells = [cell for cell in cells if cell.method not in left_out]
    about_left_out = [
        f"{label} is left out: {' '.join(reason.splitlines())}"
        for label, reason in left_out.items()
    ]
    if left_out and len(design.methods) == 1:
        raise ConfigError("\n".join([*about_left_out, "No other method is left to compare."]))
    repeated = (*about_left_out, *tuned.about(design, cells, built, samples, force=force))
    notes |= dict.fromkeys([*_about_partitions(design, cells, samples), *repeated])
    resources = _resources(engine, jobs, len(cells), retries)
    return PreparedComparison(
        design, tuple(cells), built, samples, resources, tuple(notes), repeated
    )


def _about_partitions(design: Design, cells: Sequence[Job], samples: LoadedSamples) -> list[str]:
    """Return a sentence if the partition is to vary between repetitions but does not."""
    if design.vary == "training" or design.seeds == 1:
        return []
    hashes: dict[str, list[str]] = {}  # of the first two repetitions, by place
    for cell in cells:
        # All methods of a repetition have one partition.
        if cell.method == cells[0].method and cell.repetition < 2:
            partition = samples.federation(cell).partition
            hashes.setdefault(cell.place, []).append(partition.hash())
    scheme = cells[0].config.partition.scheme
    same = [
        f"{place}: partition.scheme={scheme} makes the same partition for every seed"
        for place, (first, second) in hashes.items()
        if first == second
    ]
    if same and design.vary == "partition":
        raise ConfigError(
            f"`vary=partition`: {same[0]}, so all repetitions would be equal. Use `vary=training`."
        )
    return [f"{sentence}, so only the training varies between repetitions." for sentence in same]


def _resources(engine: EngineConfig, jobs: int | None, cells: int, retries: int) -> Resources:
    """Return the number of cells at the same time, and the resources of each."""
    import torch

    if jobs is not None:
        check_whole("jobs", jobs, 1)
    on_gpu = engine.device.startswith("cuda")
    devices = torch.cuda.device_count() if on_gpu else 0
    asked, address = jobs, None
    if engine.name == "ray":
        if jobs is not None and jobs > 1:
            raise ConfigError(
                f"`jobs={jobs}`: with engine.name=ray each cell trains its clients on all"
                " cores. Leave engine.name out, or use `jobs=1`."
            )
        jobs = 1
    elif is_elsewhere(engine.address):
        address, jobs = engine.address, jobs or cells
    elif jobs is None:
        jobs = devices if on_gpu else max(1, available_cores() // engine.threads)
        jobs = max(1, min(jobs, cells))
    if ((on_gpu and jobs > 1) or address is not None) and find_spec("ray") is None:
        if asked is not None or address is not None:
            raise ConfigError(
                f"`jobs={jobs}` needs the package `ray`, which is not installed:"
                " pip install 'flbench[tune]'"
            )
        jobs = 1
    gpus = gpu_share(jobs, devices) if address is None else float(on_gpu)
    return Resources(jobs, engine.altered(name="sequential"), gpus, retries, address, CELL)


def check_existing(prepared: PreparedComparison, folder: ComparisonFolder) -> None:
    """Check that the cells of a folder have the configurations and the data of the design.

    Configurations differ if flbench has other defaults than the version that began the comparison.
    Data differ if their files have changed. They are checked if cells are left to train.

    Raises:
        ConfigError: A key differs. The message names the first one.
        DataError: The samples of a finished cell differ from those that the others would have.
    """
    begun = [cell for cell in prepared.cells if (folder.run_folder(cell) / "config.yaml").is_file()]
    for cell in begun:
        path = folder.run_folder(cell)
        now, was = (
            leaves(one.tree(), without=(*SEEDS, *CHANGEABLE_ON_RESUME, "output."))
            for one in (prepared.complete(cell), read(path / "config.yaml"))
        )
        for key in now | was:  # where a method is imported from may change
            if now.get(key) != was.get(key) and key != SOURCE:
                raise ConfigError(
                    f"`{key}` was {was.get(key)!r} when {path} began, and is now"
                    f" {now.get(key)!r}. Start a new comparison."
                )
    if not all(map(folder.is_done, prepared.cells)):
        for cell in begun:
            prepared.samples.check_unchanged(cell, folder.run_folder(cell))
