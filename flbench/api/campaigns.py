"""What studies and comparisons have around their trainings: supervision, MLflow, interrupts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from flbench.api.caller import Caller
from flbench.calls.process import preserved
from flbench.config.schema import Config
from flbench.core.expected import as_flbench_errors
from flbench.core.locked_folder import LockedFolder
from flbench.core.parts import offered
from flbench.tracking import mirror
from flbench.tracking.mlflow_store import NamedBy
from flbench.workers.supervisor import Supervisor

CHECK: Final = "reading the data and checking the configurations"
"""What is done before the trainings begin, for `Caller.during`."""
REPORT: Final = "writing the report"
MLFLOW: Final = "waiting for what is sent to MLflow"

Folder = TypeVar("Folder", bound=LockedFolder)


@contextmanager
def supervised(caller: Caller, objects: Mapping[str, Any]) -> Iterator[Supervisor]:
    """Context manager in which trainings of a study or a comparison are carried out.

    Args:
        caller: Who started it.
        objects: Objects of the user without an import path, by the name of their section.
    """
    with (
        as_flbench_errors(),
        preserved(),
        offered(objects),
        Supervisor(ends_process=caller.ends_process) as supervisor,
    ):
        yield supervisor


def addressed(folder: Folder, caller: Caller) -> Folder:
    """Return a folder whose messages name what the caller calls to resume it."""
    if caller.how_to_resume is not None:
        folder.resume_command = caller.how_to_resume(folder.path)
    return folder


def note(folder: LockedFolder) -> str:
    """Return the sentence that says how a folder is resumed."""
    return f"Resume with: {folder.resume_command}"


@contextmanager
def mirrored(
    folder: LockedFolder,
    config: Config,
    supervisor: Supervisor,
    caller: Caller,
    named_by: NamedBy,
) -> Iterator[mirror.Mirrors]:
    """Context manager in which a folder is sent to MLflow, and which says how it is resumed.

    At its end, the report of the supervisor is written if there is one, and sent too.

    Args:
        folder: Folder of a study or a comparison.
        config: A configuration of its trainings, for the section `tracking`.
        supervisor: Stops the trainings after a stop signal.
        caller: Who gets notes.
        named_by: Who names the address of MLflow's store.

    Raises:
        KeyboardInterrupt: A stop signal has arrived. Its message says how the folder is resumed.
    """
    supervisor.note = note(folder)
    with mirror.Mirrors(named_by) as mirrors:
        mirrors.open(folder.path, config, lambda sentence: caller.tell([sentence]))
        try:
            with as_flbench_errors(folder.resume_command):
                yield mirrors
        except KeyboardInterrupt as error:
            error.args = (f"interrupted. {supervisor.note}",)
            caller.tell([str(error)])
            raise
        finally:
            with caller.during(REPORT):
                supervisor.write_report()
