"""flbench compares personalized federated learning methods on non-IID data.

The names of `flbench.api` are the public interface for scripts and notebooks:

    import flbench as fl

    run = fl.run("hfcd", data="digits", partition=fl.Dirichlet(alpha=0.1, clients=20), seed=0)
    run.summary["test"]["accuracy"]

The import of this package is light. A name of the interface, or a subpackage such as
`flbench.algorithms`, loads PyTorch and other libraries when it is first used.
"""

import os.path
import sys

# `python -m flbench` searches the current folder first: a file `typing.py` in it would be imported
# instead of Python's own module. A checkout that is not installed is found there.
if (
    sys.argv[:1] == ["-m"]
    and not sys.flags.safe_path
    and sys.path[0] != os.path.dirname(os.path.dirname(__file__))
):
    del sys.path[0]

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flbench import tuning
    from flbench.algorithms import *  # noqa: F403
    from flbench.api.federating import federate
    from flbench.api.loading import load, runs
    from flbench.api.methods import Method, method, methods
    from flbench.api.partitions import (
        IID,
        ByTarget,
        Dirichlet,
        ExtendedDirichlet,
        FromFile,
        Grouped,
        Natural,
        Partition,
        Pathological,
        Quantity,
        Shards,
        Similarity,
        partition,
    )
    from flbench.api.reporting import Comparison, pack
    from flbench.api.resuming import resume
    from flbench.api.runs import Run
    from flbench.api.settings import RunSettings, Settings, run
    from flbench.api.studies import Study
    from flbench.api.verbs import ComparisonSettings, ablate, compare, report, tune
    from flbench.callbacks import Callback
    from flbench.callbacks.early_stopping import EarlyStopping
    from flbench.core.errors import ConfigError, DataError, RunError, UserError
    from flbench.data.own import Data

_PLACES: Final = {
    "flbench.api.federating": ("federate",),
    "flbench.api.loading": ("load", "runs"),
    "flbench.api.methods": ("Method", "method", "methods"),
    "flbench.api.partitions": (
        *("ByTarget", "Dirichlet", "ExtendedDirichlet", "FromFile", "Grouped", "IID", "Natural"),
        *("Partition", "Pathological", "Quantity", "Shards", "Similarity", "partition"),
    ),
    "flbench.api.reporting": ("Comparison", "pack"),
    "flbench.api.resuming": ("resume",),
    "flbench.api.runs": ("Run",),
    "flbench.api.studies": ("Study",),
    "flbench.api.settings": ("RunSettings", "Settings", "run"),
    "flbench.api.verbs": ("ComparisonSettings", "ablate", "compare", "report", "tune"),
    "flbench.callbacks": ("Callback",),
    "flbench.callbacks.early_stopping": ("EarlyStopping",),
    "flbench.core.errors": ("ConfigError", "DataError", "RunError", "UserError"),
    "flbench.data.own": ("Data",),
}
_MODULE_OF: Final = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "IID", "ByTarget", "Callback", "Comparison", "ComparisonSettings", "ConfigError", "Data",
    "DataError", "Dirichlet", "EarlyStopping", "ExtendedDirichlet", "FromFile", "Grouped",
    "Method", "Natural", "Partition", "Pathological", "Quantity", "Run", "RunError",
    "RunSettings", "Settings", "Shards", "Similarity", "Study", "UserError",
    "__version__", "ablate", "compare", "federate", "load", "method", "methods", "pack",
    "partition", "report", "resume", "run", "runs", "tune", "tuning",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name of the interface, or a subpackage, when it is first used."""
    if name in _MODULE_OF:
        import_module("flbench.core.startup").complete_account()  # before libraries ask for it
        found = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found
    if not name.startswith("_"):
        if find_spec(f"flbench.{name}") is not None:
            return import_module(f"flbench.{name}")
        algorithms = import_module("flbench.algorithms")  # what methods are made of
        if hasattr(algorithms, name):
            return getattr(algorithms, name)
    raise AttributeError(f"module 'flbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the interface beside those of the module."""
    return sorted({*globals(), *__all__})
