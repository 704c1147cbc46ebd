"""Tables of text, which the console, Markdown files and HTML pages print."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Final

from flbench.core.text import in_cell, in_markdown, one_line
from flbench.metrics import names as metric_names
from flbench.results.reading import VALIDATION

MOST_CLIENTS: Final = 100  # rows of the table of clients
MOST_CLASSES: Final = 100  # rows of the table of classes
PROBABILITY_TITLES: Final = dict(
    zip(metric_names.PROBABILITY, ("macro AUROC", "ECE", "NLL", "Brier score"), strict=True)
)
"""Titles of metrics of predicted probabilities, by name."""
RANKING_TITLES: Final = dict(zip(metric_names.RANKING, ("AUROC", "average precision"), strict=True))
"""Column headers of the metrics for two classes; tables have them if their runs do."""
CLIENT_TITLES: Final = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
}
"""Column headers of the metrics of a client."""


@dataclass(frozen=True)
class Block:
    """A table of text.

    Attributes:
        title: Heading of the table.
        header: Heading of each column.
        rows: Cells of each row.
        about: Explanation below the heading; "" for none.
        texts: Indices of the columns that are aligned to the left.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    about: str = ""
    texts: Collection[int] = (0,)


def markdown(block: Block, level: int = 2) -> str:
    """Return a table as Markdown, with its heading and explanation.

    Args:
        block: The table.
        level: Level of the heading.
    """
    parts = [
        f"{'#' * level} {in_markdown(block.title)}",
        in_markdown(block.about),
        grid(block.header, block.rows),
    ]
    return "\n\n".join(part for part in parts if part)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return header and rows, which are plain text, as a table of Markdown.

    >>> print(grid(("name", "value"), [("a", "1")]))
    | name | value |
    | --- | --- |
    | a | 1 |
    """
    shown = [list(map(in_cell, line)) for line in (header, *rows)]
    lines = [shown[0], ["---"] * len(header), *shown[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def share(value: object) -> str:
    """Format a metric with four decimals; a dash for anything but a number."""
    return f"{value:.4f}" if isinstance(value, float | int) else "-"


def p_value(value: float | None) -> str:
    """Format a p-value; a dash for None and NaN.

    >>> p_value(0.04321), p_value(0.00001), p_value(None)
    ('0.0432', '< 0.0001', '-')
    """
    if value is None or isnan(value):
        return "-"
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def score(value: object, *, has_classes: bool) -> str:
    """Format a metric of a run; a dash for anything but a number.

    Args:
        value: The metric.
        has_classes: Whether the run classifies, so that its metrics are shares. Other metrics, such
            as errors in the units of the targets, have four digits instead of four decimals.

    >>> score(0.00001234, has_classes=False), score(0.00001234, has_classes=True)
    ('1.234e-05', '0.0000')
    """
    return f"{value:.4g}" if isinstance(value, float) and not has_classes else share(value)


def target_text(target: Mapping[str, Any]) -> str:
    """Describe when a run reached a target accuracy, and at which cost.

    Args:
        target: Entry `target` of summary.json.

    >>> target_text({"accuracy": 0.8, "split": "test", "round": None})
    'test accuracy (there is no validation part) never reached 0.8'
    """
    split = target.get("split", "validation")  # summaries of version 0.1 have no `split`
    what = "test accuracy (there is no validation part)" if split == "test" else f"{split} accuracy"
    if target["round"] is None:
        return f"{what} never reached {target['accuracy']:g}"
    names = {"up_bytes": "up", "down_bytes": "down", "peer_bytes": "between clients"}
    sent = target["communication"]
    costs = [f"{size(sent[kind])} {where}" for kind, where in names.items() if sent[kind]]
    after = f", after {' and '.join(costs)}" if costs else ""
    return f"{what} reached {target['accuracy']:g} in round {target['round']}{after}"


def clients_block(
    clients: Sequence[Mapping[str, str]], scores: Sequence[str] = tuple(CLIENT_TITLES)
) -> Block | None:
    """Return the table of the metrics of clients with names, after the last round.

    They are test metrics, and the validation value of the first of them if the file has it.

    Args:
        clients: Rows of clients.csv; empty if the clients have no names.
        scores: Metrics of the clients; see `flbench.results.reading.client_scores`.

    Returns:
        The table of the first `MOST_CLIENTS` clients; None if the clients have no names.
    """
    rows = [row for row in clients if row["moment"] == "last"]
    if not rows:
        return None
    more = len(rows) - MOST_CLIENTS
    has_classes = set(scores) <= set(CLIENT_TITLES)
    titles = {name: CLIENT_TITLES.get(name, name.replace("_", " ")) for name in scores}
    of_scores = RANKING_TITLES | PROBABILITY_TITLES
    titles |= {name: title for name, title in of_scores.items() if name in rows[0]}
    first = next(iter(titles), "")
    if (validation := f"{VALIDATION}{first}") in rows[0]:
        titles = {first: titles[first], validation: f"validation {titles[first]}", **titles}
    return Block(
        "Clients, last round, test",
        ("client", "name", "train", "test", *titles.values()),
        tuple(
            (
                row["client"],
                one_line(row["name"]),
                *(row["train_size"], row["test_size"]),
                *(
                    score(float(row[key]) if row[key] else None, has_classes=has_classes)
                    for key in titles
                ),
            )
            for row in rows[:MOST_CLIENTS]
        ),
        f"{more:,} more clients are in clients.csv." if more > 0 else "",
        texts=(1,),
    )


def shown_classes(
    classes: Sequence[Mapping[str, str]],
) -> tuple[Sequence[Mapping[str, str]], str]:
    """Return the rows of per_class.csv that tables show, and a sentence about the others.

    Args:
        classes: Rows of per_class.csv of one moment.

    Returns:
        The rows of the `MOST_CLASSES` classes with the fewest training samples, in their order;
        and the sentence, "" if these are all classes.
    """
    if len(classes) <= MOST_CLASSES:
        return classes, ""
    by_support = sorted(range(len(classes)), key=lambda k: int(classes[k]["train_support"]))
    shown = [classes[k] for k in sorted(by_support[:MOST_CLASSES])]
    return shown, (
        f"These are the {MOST_CLASSES} classes with the fewest training samples;"
        f" {len(classes) - MOST_CLASSES:,} more classes are in per_class.csv."
    )


def class_score(line: Mapping[str, str], key: str) -> float | None:
    """Return a score of a class; None for recall and F1 of a class without test samples.

    Args:
        line: Row of per_class.csv, which has 0 for them.
        key: `precision`, `recall` or `f1`.
    """
    is_missing = key != "precision" and not int(line["test_support"])
    return None if is_missing else float(line[key])


def cohort_block(cohort: Mapping[str, Any]) -> Block:
    """Return the table of the accuracy of the clients of the last rounds.

    Args:
        cohort: Entry `cohort` of summary.json.
    """
    splits = [split for split in ("validation", "test") if cohort[split]]
    moments = dict.fromkeys(moment for split in splits for moment in cohort[split])
    first, last = cohort["first_round"], cohort["last_round"]
    rounds = f"round {last}" if first == last else f"rounds {first} to {last}"
    return Block(
        f"Accuracy of the clients of {rounds}, mean over groups of clients and rounds",
        ("moment", *splits),
        tuple(
            (moment, *(share(cohort[split].get(moment)) for split in splits)) for moment in moments
        ),
        "Only the clients that took part in a round are evaluated. This is another statistic than"
        " the accuracy of all clients with what is deployed to them.",
    )


def new_clients_block(summary: Mapping[str, Any], moment: str, metric: str) -> Block | None:
    """Return the table of the clients that join after the training; None without such clients.

    Args:
        summary: Content of summary.json.
        moment: `last` or `best`: the round whose models are shown.
        metric: A test metric, such as `accuracy_mean`.
    """
    about = summary.get("new_clients")
    if not about:
        return None
    test, lines = summary[moment]["test"], []
    for epochs in about["epochs"]:
        new, seen = (test.get(f"{who}@{epochs}", {}) for who in ("new", "seen"))
        values = (new.get(metric), seen.get(metric), new.get(f"gap_{metric}"))
        shown = ("-" if value is None else f"{value:.4f}" for value in values)
        received = size(about["received_bytes"][str(epochs)])
        lines.append((str(epochs), *shown, received, f"{about['steps'][str(epochs)]:.1f}"))
    return Block(
        "Clients that join later",
        ("epochs", "new clients", "clients that trained", "gap", "bytes to join", "steps"),
        tuple(lines),
        f"Test {metric.replace('_', ' ')} of {about['clients']} clients that trained in no round,"
        " after epochs on their own training parts; 0 is the model that the server would send."
        " Beside them the clients that trained, after as many further epochs from their own models."
        f" Models are those of the {moment} round.",
    )


def size(count: float) -> str:
    """Format a number of bytes with a unit.

    >>> size(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
