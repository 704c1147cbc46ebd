"""What Ray Tune needs for a study: its environment, and the resources that it reserves."""

import logging
import os
import re
from pathlib import Path
from typing import Any, Final

import ray
from ray import tune

from flbench.jobs.resources import Resources
from flbench.workers.actor_pool import why_lost

# Environment variables of Ray Tune. The study folder holds all that a resumed study needs, so that
# Ray Tune's own loggers and checkpoints of the search are not needed.
QUIET: Final = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the handler would make Ctrl-C look like a normal end
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # flbench prints a sentence for each of them
}


def quiet() -> None:
    """Set the environment of Ray Tune, which does not log which trials have failed either."""
    os.environ.update(QUIET | os.environ)
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)


def bundles(resources: Resources) -> Any:
    """Return the resources that Ray reserves for one trial."""
    return tune.PlacementGroupFactory([{"CPU": resources.cpus, "GPU": resources.gpus}])


def reason_of(trial: Any) -> str:
    """Return one line with the error of a trial's last failure.

    Ray Tune pickles the errors of actors and of their tasks. Of others, such as those of its memory
    monitor, it writes the text alone.
    """
    try:
        # Ray Tune's accessor reads a copy of this file that is written later.
        error = ray.cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except (OSError, TypeError):  # no file, or no path of one
        try:
            text = Path(trial.error_file).read_text("utf-8", "replace")
        except (OSError, TypeError):
            return "Ray Tune gives no reason."
        return why_lost(re.split(r"^Failure # .*$", text, flags=re.MULTILINE)[-1])
    if isinstance(error, ray.exceptions.RayError) and not isinstance(
        error, ray.exceptions.RayTaskError
    ):
        return why_lost(error)
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {next(iter(str(cause).strip().splitlines()), 'no message')}"
