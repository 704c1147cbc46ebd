"""`flbench sync` and `flbench ui`: runs, studies and comparisons in MLflow."""

from collections.abc import Sequence
from pathlib import Path

from flbench.cli import console
from flbench.tracking import follow, mlflow_ui


def sync(paths: Sequence[Path], uri: str | None, *, as_json: bool) -> None:
    """Send to MLflow the parts of runs, studies and comparisons that it does not have yet.

    Args:
        paths: Their folders. A cell of a comparison is sent to its place below the comparison.
        uri: MLflow server or database; None for the default.
        as_json: Whether to print JSON: a list with `path`, `uri` and `sent`, the number of each
            kind of entry that was sent.
    """
    for path in paths:
        follow.kind_of(path)  # a wrong path is refused before anything is sent
    entries = []
    for path in paths:
        sent, address = follow.sync(path, uri)
        entries.append({"path": str(path), "uri": address, "sent": vars(sent)})
        if not as_json:
            counts = {name: count for name, count in vars(sent).items() if count}
            texts = [
                f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items()
            ]
            console.line(f"{path} to {address}: {', '.join(texts) or 'nothing new'}")
    if as_json:
        console.json(entries)


def ui(uri: str | None, port: int) -> None:
    """Serve MLflow's pages until Ctrl-C."""
    mlflow_ui.serve(uri, port, console.text)
