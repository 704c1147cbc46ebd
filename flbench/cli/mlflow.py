"""`flbench sync` and `flbench ui`: runs, studies and comparisons in MLflow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flbench.cli import console
from flbench.core.errors import UserError
from flbench.reports.terminal import Silence
from flbench.tracking import follow
from flbench.tracking import ui as mlflow_ui
from flbench.tracking.follow import Synced
from flbench.tracking.send import SentCounts


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
    silence = Silence()
    entries: list[dict[str, Any]] = []

    def tell() -> None:
        silence.end()
        where = paths[min(len(entries), len(paths) - 1)]
        console.notes(
            [
                f"{where}: still sending to MLflow. Requests that are not answered in time, or with"
                " an error that may pass, are repeated."
            ]
        )

    with silence.broken_by(tell):
        for done in follow.sync_all(paths, uri):
            silence.end()
            entries.append(_entry(done))
            if done.sent is not None and not as_json:
                _print(done, done.sent)
    if as_json:
        console.json(entries)
    if errors := [entry["error"] for entry in entries if entry["error"] is not None]:
        raise UserError("\n".join(errors))


def _entry(done: Synced) -> dict[str, Any]:
    """Return what JSON says about a folder."""
    counts = None if done.sent is None else vars(done.sent)
    error = None if done.error is None else str(done.error)
    return {"path": str(done.path), "uri": done.uri, "sent": counts, "error": error}


def _print(done: Synced, sent: SentCounts) -> None:
    """Print how much of a folder was sent."""
    texts = [
        f"{count} {name if count > 1 else name[:-1]}" for name, count in vars(sent).items() if count
    ]
    console.line(f"{done.path} to {done.uri}: {', '.join(texts) or 'nothing new'}")


def ui(*, uri: str | None, port: int) -> None:
    """Serve MLflow's pages until Ctrl-C."""
    mlflow_ui.serve(uri, port, console.text)
