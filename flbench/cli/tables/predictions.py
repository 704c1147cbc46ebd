"""The table of `flbench predict`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flbench.cli.console import line, titled_table, whole_table
from flbench.core.text import one_line

MOST_ROWS: Final = 100  # that are printed; --out and --json give all


def print_predictions(rows: Sequence[Mapping[str, Any]], card: Mapping[str, Any]) -> None:
    """Print the predicted class of each sample.

    Args:
        rows: `file`, `row` (None if the file is one sample), `class`, and `probability` or `score`.
        card: The model's card.
    """
    name = card.get("client_name", card["client"])
    who = "the global model" if card["client"] is None else f"client {one_line(str(name))}"
    table = titled_table(f"{card['method']} on {card['dataset']}, {who}, round {card['round']}")
    has_rows = any(row["row"] is not None for row in rows)
    last = "score" if rows and "score" in rows[0] else "probability"
    for title in ("file", *(["row"] if has_rows else []), "class", last):
        table.add_column(title, justify="right" if title in ("row", last) else "left")
    for row in rows[:MOST_ROWS]:
        number = [str("" if row["row"] is None else row["row"])] if has_rows else []
        table.add_row(row["file"], *number, row["class"], f"{row[last]:.4f}")
    whole_table(table)
    if len(rows) > MOST_ROWS:
        line(f"and {len(rows) - MOST_ROWS:,} more; --out FILE.csv writes all of them.")
    if last == "score":
        line(f"The scores are {card['output']['scores']}, not probabilities.")
