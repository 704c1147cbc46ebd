"""Carries out studies and comparisons: stop signals, MLflow, the trainings, and the report."""

import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from flbench.api.comparisons import PlannedComparison
from flbench.api.progress import Caller
from flbench.calls.process import SIGNALS, preserved
from flbench.comparison import cost, prepare
from flbench.comparison.added import added
from flbench.comparison.design import Design, LabelledLayer
from flbench.comparison.folder import MARKER, ComparisonFolder, design_in, read_design
from flbench.comparison.prepare import PreparedComparison
from flbench.config import trust
from flbench.config.schema import Config
from flbench.config.sources import Layer, folder_of, merge
from flbench.core.documents import read_json
from flbench.core.errors import RunError, UserError
from flbench.core.locked_folder import LockedFolder
from flbench.core.parts import offered
from flbench.core.system_errors import as_flbench_errors
from flbench.core.text import redact, warn
from flbench.core.wording import in_shell
from flbench.jobs import campaign
from flbench.jobs.estimate import Plan
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
FINISHED: Final = "{} is finished: there is nothing to resume."

Folder = TypeVar("Folder", bound=LockedFolder)


class Ending(NamedTuple):
    """How a comparison or a study ended.

    Attributes:
        path: The folder.
        failures: A sentence for each cell that failed.
        error: Why a method has no result; "" if each has one.
        is_reported: Whether there is a report.
        notes: Further sentences for the user, such as those about what was not sent to MLflow.
    """

    path: Path
    failures: Sequence[str] = ()
    error: str = ""
    is_reported: bool = True
    notes: Sequence[str] = ()

    def check(self, caller: Caller) -> None:
        """End a call from Python: tell the notes. Cells that failed are a warning of Python.

        Raises:
            RunError: A method has no result.
        """
        caller.tell(self.notes)
        if self.error:
            raise RunError(self.error)
        if self.failures:
            warn("\n".join(self.failures), stacklevel=4)


@contextmanager
def stopped_by_signals(objects: Mapping[str, Any]) -> Iterator[None]:
    """Context manager in which trainings of a study or a comparison are carried out.

    In the main thread, SIGINT and SIGTERM raise KeyboardInterrupt.
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
) -> Iterator[mirror.Mirror]:
    """Context manager in which a folder is sent to MLflow, and which says how it is resumed.

    At its end the report is written, and sent too.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Its message says how the folder is resumed.
        LostError: The workers are lost. Its message says so too.
    """
    again = f"Resume with: {folder.resume_command}"
    with mirror.Mirror(named_by) as mirrors:
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


def said_of(mirrors: mirror.Mirror, path: Path, caller: Caller) -> list[str]:
    """Wait until a folder is sent to MLflow; return what is missing, or where it is seen."""
    with caller.during(MLFLOW):
        missing = mirrors.finish()
    if missing or mirrors.uri is None:
        return missing
    how = "open it" if mirrors.uri.startswith("http") else "flbench ui opens it"
    return [f"{path} is in MLflow, {mirrors.uri}: {how}."]


@dataclass(frozen=True)
class Campaign:
    """Trains the cells of comparisons, for a caller.

    Attributes:
        caller: Who gets progress and notes.
        samples: The data of the cells.
        jobs: Cells at the same time; None for one per core.
        force: Whether the study that has found the parameters may have another setting.
    """

    caller: Caller
    samples: LoadedSamples = field(default_factory=LoadedSamples)
    jobs: int | None = None
    force: bool = False

    def plan(self, design: Design) -> Plan:
        """Check a comparison, and estimate its cost; nothing is written or trained to the end.

        Raises:
            UserError: The comparison cannot be carried out.
        """
        with as_flbench_errors(), preserved(), offered(self.samples.objects):
            made = self.prepared(design, mirror.named_by(design.base.origins))
            return cost.measure(made, made.cells)

    def start(self, design: Design, *, out: Path = OUT, command: Sequence[str]) -> Ending:
        """Check a comparison, make its folder, and carry it out.

        The folder is made in `out`, or, with `OUT`, in `output.dir` if the user gave it. What the
        user called, `command`, is written to comparison.json.

        Raises:
            UserError: The comparison cannot be carried out.
            RunError: A server of Ray was lost.
            KeyboardInterrupt: A stop signal has arrived.
        """
        with stopped_by_signals(self.samples.objects):
            named_by = mirror.named_by(design.base.origins)
            with self.caller.during(CHECK):
                made = self.prepared(design, named_by)
                self._tell_cost(made, made.cells)
            methods = [design.reference or one.label for one in made.design.methods]
            titles = dict.fromkeys(cell.config.data.title for cell in made.cells)
            name = "-".join([*dict.fromkeys(methods[:3]), *titles])
            name = re.sub(r"[^\w=.-]+", "_", name, flags=re.ASCII)[:80]
            created = ComparisonFolder.create(folder_of(out, OUT, design.base), name)
            with closing(addressed(created, self.caller)) as folder:
                printed = [redact(argument) for argument in command]
                folder.save(made.design, made.cells, made.repeated, command=printed)
                return self._carry_out(folder, made, named_by)

    def carry_on(
        self,
        path: Path,
        methods: Sequence[LabelledLayer],
        layers: Sequence[Layer],
        seeds: int | None,
        only: Collection[str] | None = None,
    ) -> Ending:
        """Carry out what is left of a comparison, and what is added to it.

        Args:
            path: Folder of the comparison.
            methods: Methods that are added.
            layers: Keys that may change.
            seeds: Number of repetitions; None for as many as before.
            only: Labels of the methods whose cells are trained; None for all.

        Raises:
            UserError: The path is not the folder of a comparison, or a key must not change.
                Further errors are those of `start`.
        """
        if study_folder.is_study(path):
            raise UserError(
                f"{path} is a study, which keeps its methods. Resume it with: flbench tune --resume"
                f" {in_shell(path)}. Other methods are compared with its parameters by: flbench"
                f" compare METHODS --tuned {in_shell(path)}"
            )
        with (
            stopped_by_signals(self.samples.objects),
            closing(addressed(ComparisonFolder.reopen(path), self.caller)) as folder,
        ):
            before, about = read_design(folder.path)
            trust.check(folder.path / MARKER, design_in(read_json(folder.path / MARKER)))
            design, changed = added(before, methods, layers, seeds, path)
            origins = merge(layers).origins
            named_by = mirror.named_by(origins) if "tracking.uri" in origins else "folder"
            address = changed["engine.address"].value if "engine.address" in changed else None
            # Nothing that has begun is refused afterwards.
            again = replace(self, force=self.force or design.methods == before.methods)
            made = again.prepared(design, named_by, address=address)
            prepare.check_existing(made, folder)
            if design != before:
                folder.save(design, made.cells, made.repeated, **about)
            if only is not None:
                made = replace(made, cells=tuple(one for one in made.cells if one.method in only))
            left = list(folder.unfinished(made.cells))
            if left:
                self._tell_cost(made, left)
            else:
                self.caller.tell([FINISHED.format(path)])
            return self._carry_out(folder, made, named_by, changed)

    def prepared(self, design: Design, named_by: NamedBy, **options: Any) -> PreparedComparison:
        """Check a comparison, and tell the caller the notes about it; see `prepare.prepare`."""
        with preserved():
            made = prepare.prepare(design, self.samples, self.jobs, force=self.force, **options)
        mirror.check(made.cells[0].config.tracking, named_by)
        self.caller.tell(made.notes)
        return made

    def train(
        self, folder: ComparisonFolder, made: PreparedComparison, changed: Layer | None = None
    ) -> Ending:
        """Train what is left of a comparison in a folder that has its comparison.json.

        It is called within `mirrored`.
        """
        cells, resources = made.cells, made.resources
        if not all(map(folder.is_done, cells)):
            at_once = f", {resources.concurrent} at once" if resources.concurrent > 1 else ""
            self.caller.tell([f"{folder.path}: {len(cells)} cells{at_once}."])
        reasons = campaign.carry_out(
            cells,
            folder,
            made.samples,
            resources,
            changed=changed or Layer(),
            shown=self.caller.shown,
        )
        failures = [f"{folder.path / folder.inside / name}: {why}" for name, why in reasons.items()]
        if failures:
            failures.append(
                f"{len(reasons)} of {len(cells)} cells failed. Try them again with:"
                f" {folder.resume_command}"
            )
        done = {cell.method for cell in cells if cell.name not in reasons}
        lost = dict.fromkeys(cell.method for cell in cells if cell.method not in done)
        error = f"All cells of {', '.join(lost)} failed." if lost else ""
        return Ending(folder.path, failures, error, any(map(folder.is_done, cells)))

    def _tell_cost(self, made: PreparedComparison, left: Sequence[Job]) -> None:
        """Tell what the cells that are left will cost."""
        if self.caller.shown:
            with preserved():
                self.caller.tell(cost.measure(made, left).sentences)

    def _carry_out(
        self,
        folder: ComparisonFolder,
        made: PreparedComparison,
        named_by: NamedBy,
        changed: Layer | None = None,
    ) -> Ending:
        """Train what is left of a comparison and report it, while it is sent to MLflow."""
        with mirrored(folder, made.cells[0].config, self.caller, named_by) as mirrors:
            ending = self.train(folder, made, changed)
            if ending.is_reported:
                try:
                    with self.caller.during(REPORT):
                        PlannedComparison(folder.path).write(folder.path)
                except UserError as error:  # the trainings are worth more than their report
                    self.caller.tell([f"there is no report: {error}"])
                    ending = ending._replace(is_reported=False)
        if ending.error:
            others = f" The other methods: fl.load({str(folder.path)!r})."
            lines = [*ending.failures, ending.error + (others if ending.is_reported else "")]
            ending = ending._replace(error="\n".join(lines))
        return ending._replace(notes=said_of(mirrors, folder.path, self.caller))
