"""`flbench sync` and `flbench ui`: runs, studies and comparisons in MLflow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flbench.cli import console
from flbench.core.errors import UserError
from flbench.reports.terminal import told
from flbench.tracking import follow
from flbench.tracking import ui as mlflow_ui


def sync(paths: Sequence[Path], *, uri: str | None, as_json: bool) -> None:
    """Send to MLflow the parts of runs, studies and comparisons that it does not have yet.

    Args:
        paths: Their folders. A cell of a comparison is sent to its place below the comparison.
        uri: MLflow server or database; None for the default.
        as_json: Whether to print JSON: a list with `path`, `uri`, `sent`, the number of each kind
            of entry that was sent, and `error`, why something is missing.

    Raises:
        UserError: Something was not sent. The rest, and all other folders, were sent before.
    """
    entries: list[dict[str, Any]] = []
    with told("sending to MLflow", console.notes):
        for done in follow.sync_all(paths, uri):
            counts = None if done.sent is None else vars(done.sent)
            error = None if done.error is None else str(done.error)
            entries.append(
                {"path": str(done.path), "uri": done.uri, "sent": counts, "error": error}
            )
            if counts is not None and not as_json:
                texts = [f"{n} {name if n > 1 else name[:-1]}" for name, n in counts.items() if n]
                console.line(f"{done.path} to {done.uri}: {', '.join(texts) or 'nothing new'}")
    if as_json:
        console.json(entries)
    if errors := [entry["error"] for entry in entries if entry["error"] is not None]:
        raise UserError("\n".join(errors))


def ui(*, uri: str | None, port: int) -> None:
    """Serve MLflow's pages until Ctrl-C."""
    mlflow_ui.serve(uri, port, console.text)
