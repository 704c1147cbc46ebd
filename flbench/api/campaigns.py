"""Carries out studies and comparisons: stop signals, MLflow, the trainings, and the report."""

import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from flbench.api.caller import Caller
from flbench.api.comparisons import PlannedComparison
from flbench.calls.process import SIGNALS, preserved
from flbench.comparison import cost, prepare, reuse
from flbench.comparison.added import added
from flbench.comparison.cost import Plan
from flbench.comparison.design import Design, LabelledLayer
from flbench.comparison.folder import MARKER, ComparisonFolder, design_in, read_design
from flbench.comparison.prepare import PreparedComparison
from flbench.config import trust
from flbench.config.schema import Config
from flbench.config.sources import Layer, folder_of, merge
from flbench.core.documents import read_json
from flbench.core.errors import UserError
from flbench.core.locked_folder import LockedFolder
from flbench.core.parts import offered
from flbench.core.system_errors import as_flbench_errors
from flbench.core.text import redact
from flbench.core.wording import in_shell
from flbench.jobs import campaign
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.reports.terminal import open_console
from flbench.results import study_folder
from flbench.tracking import mirror
from flbench.tracking.store import NamedBy
from flbench.workers.pool import LostError

OUT: Final = Path("comparisons")
"""Folder for the folders of comparisons, unless another one is given."""
CHECK: Final = "reading the data and checking the configurations"
"""What is done before the trainings begin, for `Caller.during`."""
REPORT: Final = "writing the report"
MLFLOW: Final = "waiting for what is sent to MLflow"

Folder = TypeVar("Folder", bound=LockedFolder)


class Ending(NamedTuple):
    """How a comparison ended.

    Attributes:
        comparison: The comparison.
        failures: A sentence for each cell that failed.
        lost: Labels of the methods all of whose cells failed.
        is_reported: Whether its report is in the folder.
        notes: Sentences about what was not sent to MLflow.
    """

    comparison: PlannedComparison
    failures: tuple[str, ...]
    lost: tuple[str, ...]
    is_reported: bool
    notes: Sequence[str] = ()


@contextmanager
def stopped_by_signals(objects: Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which trainings of a study or a comparison are carried out.

    In the main thread, SIGINT and SIGTERM raise KeyboardInterrupt.

    Args:
        objects: Objects of the user without an import path, by the name of their section.
    """
    with as_flbench_errors(), preserved(), offered(objects):  # `preserved` restores the handlers
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, signal.default_int_handler)
        yield


def addressed(folder: Folder, caller: Caller) -> Folder:
    """Return a folder whose messages name what the caller calls to resume it."""
    if caller.how_to_resume is not None:
        folder.resume_command = caller.how_to_resume(folder.path)
    return folder


@contextmanager
def mirrored(
    folder: LockedFolder,
    config: Config,
    caller: Caller,
    named_by: NamedBy,
    report: Callable[[], object] = lambda: None,
) -> Iterator[mirror.Mirrors]:
    """Context manager in which a folder is sent to MLflow, and which says how it is resumed.

    At its end the report is written, and sent too.

    Args:
        folder: Folder of a study or a comparison.
        config: A configuration of its trainings, for the section `tracking`.
        caller: Who gets notes.
        named_by: Who names the address of MLflow's store.
        report: Function that writes a report into the folder.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Its message says how the folder is resumed.
        LostError: The workers are lost. Its message says so too.
    """
    again = f"Resume with: {folder.resume_command}"
    with mirror.Mirrors(named_by) as mirrors:
        mirrors.open(folder.path, config, lambda sentence: caller.tell([sentence]))
        try:
            with as_flbench_errors(folder.resume_command):
                yield mirrors
        except LostError as error:
            raise LostError(f"{error} {again}") from error
        except KeyboardInterrupt as error:
            console = open_console(errors=True)
            console.show_cursor()  # which the table of a process that was ended has hidden
            error.args = (f"interrupted. {again}",)
            caller.tell([str(error)])
            raise
        finally:
            with caller.during(REPORT):
                report()


def plan(
    design: Design,
    samples: LoadedSamples,
    jobs: int | None,
    caller: Caller,
    *,
    force: bool = False,
    reused: Sequence[Path] = (),
) -> Plan:
    """Check a comparison, and estimate its cost; nothing is written or trained to the end.

    The arguments and errors are those of `start`.
    """
    with as_flbench_errors(), preserved(), offered(samples.objects):
        named_by = mirror.named_by(design.base.origins)
        made = prepared(design, samples, jobs, caller, named_by, force=force)
        return cost.measure(made, made.cells, *reuse.find(made, made.cells, reused))


def start(
    design: Design,
    samples: LoadedSamples,
    jobs: int | None,
    caller: Caller,
    *,
    out: Path,
    command: Sequence[str],
    force: bool = False,
    reused: Sequence[Path] = (),
) -> Ending:
    """Check a comparison, make its folder, and carry it out.

    Args:
        design: The design.
        samples: Its data, not yet loaded.
        jobs: Cells at the same time; None for one per core.
        caller: Who gets progress and notes.
        out: Folder for the folders of comparisons; with `OUT`, `output.dir` if the user gave it.
        command: What the user called, for comparison.json.
        force: Whether the study that has found the parameters may have another setting.
        reused: Folders of finished runs that are used again as cells.

    Raises:
        UserError: The comparison cannot be carried out.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    with stopped_by_signals(samples.objects):
        named_by = mirror.named_by(design.base.origins)
        with caller.during(CHECK):
            made = prepared(design, samples, jobs, caller, named_by, force=force)
            runs = _reused(made, made.cells, made.cells, reused, caller)
        methods = [design.reference or one.label for one in made.design.methods]
        titles = dict.fromkeys(cell.config.data.title for cell in made.cells)
        name = "-".join([*dict.fromkeys(methods[:3]), *titles])
        name = re.sub(r"[^\w=.-]+", "_", name, flags=re.ASCII)[:80]
        created = ComparisonFolder.create(folder_of(out, OUT, design.base), name)
        with closing(addressed(created, caller)) as folder:
            printed = [redact(argument) for argument in command]
            folder.save(made.design, made.cells, made.repeated, command=printed)
            reuse.take(runs, folder)
            return _carry_out(folder, made, caller, named_by)


def carry_on(
    path: Path,
    methods: Sequence[LabelledLayer],
    layers: Sequence[Layer],
    seeds: int | None,
    samples: LoadedSamples,
    jobs: int | None,
    caller: Caller,
    *,
    force: bool = False,
    reused: Sequence[Path] = (),
) -> Ending:
    """Carry out what is left of a comparison, and what is added to it.

    Args:
        path: Folder of the comparison.
        methods: Methods that are added.
        layers: Layers of values of keys that may change.
        seeds: Number of repetitions; None for as many as before.
        samples: As for `start`, as are the other arguments.
        jobs: See there.
        caller: See there.
        force: See there.
        reused: See there.

    Raises:
        UserError: The path is not the folder of a comparison, or a key must not change. Further
            errors are those of `start`.
    """
    if study_folder.is_study(path):
        raise UserError(
            f"{path} is a study, which keeps its methods. Resume it with: flbench tune --resume"
            f" {in_shell(path)}. Other methods are compared with its parameters by: flbench compare"
            f" METHODS --tuned {in_shell(path)}"
        )
    with (
        stopped_by_signals(samples.objects),
        closing(addressed(ComparisonFolder.reopen(path), caller)) as folder,
    ):
        before, about = read_design(folder.path)
        trust.check(folder.path / MARKER, design_in(read_json(folder.path / MARKER)))
        design, changed = added(before, methods, layers, seeds, path)
        origins = merge(layers).origins
        named_by = mirror.named_by(origins) if "tracking.uri" in origins else "folder"
        address = changed["engine.address"].value if "engine.address" in changed else None
        # Nothing that has begun is refused afterwards.
        force = force or design.methods == before.methods
        made = prepared(design, samples, jobs, caller, named_by, force=force, address=address)
        prepare.check_existing(made, folder)
        left = list(folder.unfinished(made.cells))
        if design != before:
            folder.save(design, made.cells, made.repeated, **about)
        if left:
            new = [cell for cell in left if not (folder.run_folder(cell) / "config.yaml").is_file()]
            reuse.take(_reused(made, left, new, reused, caller), folder)
        else:
            caller.tell([f"{path} is finished: there is nothing to resume."])
        return _carry_out(folder, made, caller, named_by, changed)


def prepared(
    design: Design,
    samples: LoadedSamples,
    jobs: int | None,
    caller: Caller,
    named_by: NamedBy,
    *,
    force: bool = False,
    address: str | None = None,
) -> PreparedComparison:
    """Check a comparison, and tell the caller the notes about it; see `prepare.prepare`."""
    with preserved():
        made = prepare.prepare(design, samples, jobs, force=force, address=address)
    mirror.check(made.cells[0].config.tracking, named_by)
    caller.tell(made.notes)
    return made


def train(
    folder: ComparisonFolder,
    made: PreparedComparison,
    caller: Caller,
    *,
    changed: Layer | None = None,
    write: Callable[[PlannedComparison], object] = lambda found: found.write(found.path),
) -> Ending:
    """Train what is left of a comparison in a folder that has its comparison.json, and report it.

    It is called within `mirrored`.

    Args:
        folder: The folder, locked by this process.
        made: The comparison.
        caller: Who gets progress and notes.
        changed: New values of keys that may change when a cell is resumed.
        write: Function that writes the report.
    """
    cells, concurrent = made.cells, made.resources.concurrent
    if not all(map(folder.is_done, cells)):
        at_once = f", {concurrent} at once" if concurrent > 1 else ""
        caller.tell([f"{folder.path}: {len(cells)} cells{at_once}."])
    reasons = campaign.carry_out(
        cells, folder, made.samples, made.resources, changed=changed or Layer(), shown=caller.shown
    )
    failures = [f"{folder.path / folder.inside / name}: {why}" for name, why in reasons.items()]
    if failures:
        failures.append(
            f"{len(reasons)} of {len(cells)} cells failed. Try them again with:"
            f" {folder.resume_command}"
        )
    done = {cell.method for cell in cells if cell.name not in reasons}
    lost = tuple(dict.fromkeys(cell.method for cell in cells if cell.method not in done))
    comparison, is_reported = PlannedComparison(folder.path), False
    if any(map(folder.is_done, cells)):
        try:
            with caller.during(REPORT):
                write(comparison)
            is_reported = True
        except UserError as error:  # the trainings are worth more than their report
            caller.tell([f"there is no report: {error}"])
    return Ending(comparison, tuple(failures), lost, is_reported)


def _reused(
    made: PreparedComparison,
    left: Sequence[Job],
    new: Sequence[Job],
    reused: Sequence[Path],
    caller: Caller,
) -> dict[str, Path]:
    """Return finished runs for new cells, and tell the caller what all that are left will cost."""
    with preserved():
        runs, notes = reuse.find(made, new, reused)
        if caller.shown:
            caller.tell(cost.measure(made, left, runs, notes).sentences)
    return runs


def _carry_out(
    folder: ComparisonFolder,
    made: PreparedComparison,
    caller: Caller,
    named_by: NamedBy,
    changed: Layer | None = None,
) -> Ending:
    """Train what is left of a comparison, while it is sent to MLflow."""
    with mirrored(folder, made.cells[0].config, caller, named_by) as mirrors:
        ending = train(folder, made, caller, changed=changed)
    with caller.during(MLFLOW):
        return ending._replace(notes=mirrors.finish())
