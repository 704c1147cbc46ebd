"""Helpers of the tests; those that are useful for other packages too are in `flbench.testing`."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

from flbench.analysis import figures
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.experiment import lifecycle
from flbench.reports import picture
from flbench.reports import run as run_report
from flbench.testing import (
    SMALL,
    Silent,
    build,
    config_of,
    reproducible,
    run,
    summary_of,
    write_npz,
)

__all__ = [
    "REAL_DATA",
    "SMALL",
    "Interrupting",
    "Silent",
    "build",
    "config_of",
    "interrupted_run",
    "pictures_in_pages",
    "reproducible",
    "run",
    "summary_of",
    "summary_of_run",
    "write_npz",
]

DRAWING = {
    (picture, "encode"): picture.encode,
    (figures, "drawn"): figures.drawn,
    (figures, "learned"): figures.learned,
    (run_report, "drawn_curves"): run_report.drawn_curves,
}
"""What draws the pictures of pages and reports."""
FEW = ("partition.samples=300", "evaluation.every=99")
REAL_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@cache
def summary_of_run(*overrides: str) -> dict[str, Any]:
    """Return the summary of a run; the same overrides train once in each test process.

    For tests that read the summary alone: models are evaluated after the last round. That a second
    run would give the same digest is a test of its own (flbench/testing/contract.py).
    """
    with TemporaryDirectory() as folder:
        return run(Path(folder), *FEW, *overrides)[1]


@contextmanager
def pictures_in_pages() -> Iterator[None]:
    """Draw the pictures of pages and reports, which conftest.py leaves out."""
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name), function in DRAWING.items():
            patch.setattr(owner, name, function)
        yield


@contextmanager
def benchmark_script(name: str) -> Iterator[ModuleType]:
    """Import a script of benchmarks/, which is not a package; skip the test without a checkout."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    if not folder.exists():
        pytest.skip("this is not a checkout: benchmarks/ is missing")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield import_module(name)
        sys.modules.pop(name, None)


class Interrupting(Silent):
    """Sends SIGINT to this process after two rounds, while nothing is being trained."""

    def on_round_end(self, run, metrics):
        if run.round == 2:
            signal.raise_signal(signal.SIGINT)


def interrupted_run(out: Path, *overrides: str) -> Path:
    """Run an experiment that is interrupted after two rounds; return its folder."""
    config, origins = resolve([from_overrides([*SMALL, f"output.dir={out}", *overrides])])
    with pytest.raises(KeyboardInterrupt):
        lifecycle.run(config, origins, [Interrupting()])
    [folder] = out.glob("*/*")
    return folder
