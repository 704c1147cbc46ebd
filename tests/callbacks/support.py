"""Runs with callbacks, and a simulated crash, after which only files remain."""

from flbench.callbacks import Callback
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.experiment import lifecycle
from tests.support import SMALL, summary_of

QUICK = ("algorithm=fedavg", "model=logistic", "output.checkpoint_every=2")


class CrashError(BaseException):
    """A simulated crash. It is not an `Exception`, so the run is not saved, as after a kill."""


class CrashAfter(Callback):
    def __init__(self, when):
        self.when = when

    def on_round_end(self, run, metrics):
        if run.round == self.when:
            raise CrashError


def config(out, *overrides):
    return resolve([from_overrides([*SMALL, *QUICK, f"output.dir={out}", *overrides])])


def run_with(out, callbacks, *overrides):
    """Run with callbacks; return the run folder and its summary."""
    path = lifecycle.run(*config(out, *overrides), callbacks)
    return path, summary_of(path)


def only_run(out):
    [folder] = out.glob("*/*")
    return folder
