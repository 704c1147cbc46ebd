"""`flbench sync` and `flbench ui`: runs and studies in MLflow."""

from collections.abc import Sequence
from pathlib import Path

from flbench.cli import console
from flbench.tracking import follow, mlflow_ui


def sync(paths: Sequence[Path], uri: str | None) -> None:
    """Send to MLflow the parts of runs and studies that it does not have yet.

    Args:
        paths: Run folders and study folders.
        uri: MLflow server or database; None for the default.
    """
    for path in paths:
        follow.kind_of(path)  # a wrong path is refused before anything is sent
    for path in paths:
        sent, address = follow.sync(path, uri)
        counts = {name: count for name, count in vars(sent).items() if count}
        parts = [f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items()]
        console.line(f"{path} to {address}: {', '.join(parts) or 'nothing new'}")


def ui(uri: str | None, port: int) -> None:
    """Serve MLflow's pages until Ctrl-C."""
    mlflow_ui.serve(uri, port, console.text)
