"""What studies and comparisons have around their trainings: stop signals and MLflow."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from flbench.api.caller import Caller
from flbench.calls.process import SIGNALS, preserved
from flbench.config.schema import Config
from flbench.core.locked_folder import LockedFolder
from flbench.core.parts import offered
from flbench.core.system_errors import as_flbench_errors
from flbench.reports.terminal import open_console
from flbench.tracking import mirror
from flbench.tracking.mlflow_store import NamedBy
from flbench.workers.pool import LostError

CHECK: Final = "reading the data and checking the configurations"
"""What is done before the trainings begin, for `Caller.during`."""
REPORT: Final = "writing the report"
MLFLOW: Final = "waiting for what is sent to MLflow"

Folder = TypeVar("Folder", bound=LockedFolder)


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
