"""Which classes are rare, and which are easily confused."""

import csv
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from flbench.core.errors import ConfigError

SHARE: Final = 0.2  # of the classes are rare by `lowest`, and confusable
UNDER: Final = 0.05  # of all samples: rare by `share`


def rare_classes(counts: Tensor, rule: Literal["lowest", "share"]) -> tuple[list[int], list[str]]:
    """Return the rare classes, ascending, and notes on degenerate cases.

    Args:
        counts: [C] training samples over all clients.
        rule: `lowest`: the ceil(0.2 C) classes with fewest samples, ties by class id (HFCD's
            formula); `share`: the classes with less than 5 % of all samples (HFCD's text).
    """
    classes = len(counts)
    if rule == "share":
        found = torch.nonzero(counts < UNDER * counts.sum()).flatten().tolist()
        note = {0: "no class has", classes: "all classes have"}
        notes = [f"{note[len(found)]} under 5 % of all samples"] if len(found) in note else []
        return found, [f"rare classes: {text}." for text in notes + _without_samples(found, counts)]
    number = -(-classes // 5)
    order = torch.argsort(counts, stable=True)
    found = sorted(order[:number].tolist())
    notes = []
    if number < classes and counts[order[number - 1]] == counts[order[number]]:
        same = counts.min() == counts.max()
        equal = "all classes are equally frequent" if same else "there are ties"
        notes.append(f"{equal}, so class ids decided which {number} of {classes} count as rare")
    return found, [f"rare classes: {text}." for text in notes + _without_samples(found, counts)]


def _without_samples(rare: list[int], counts: Tensor) -> list[str]:
    """Return the note that rare classes without a training sample deserve."""
    empty = [k for k in rare if counts[k] == 0]
    shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
    return [f"nobody has training samples of the classes {shown}"] if empty else []


def confusable_classes(confusion: Tensor) -> list[int]:
    """Return the ceil(0.2 C) classes whose samples are most often taken for others.

    In ascending order; ties by id.

    Args:
        confusion: [C, C] validation counts of a reference run, rows are true classes.
    """
    support = confusion.sum(dim=1).double()
    wrong = torch.where(support > 0, 1 - confusion.diagonal().double() / support.clamp_min(1), -1.0)
    return sorted(torch.argsort(-wrong, stable=True)[: -(-len(confusion) // 5)].tolist())


def read_confusion(path: Path, classes: int) -> Tensor:
    """Return the validation confusion matrix [C, C] of a run folder or its `confusion.csv`.

    Raises: ConfigError if the file is missing, not such a table, or of other classes.
    """
    file = path / "confusion.csv" if path.is_dir() else path
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row["split"] == "validation":
                    matrix[int(row["true"]), int(row["predicted"])] += int(row["count"])
    except OSError as error:
        raise ConfigError(
            f"`evaluation.confusable`: {file} cannot be read: {error.strerror}."
        ) from error
    except (KeyError, ValueError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`evaluation.confusable`: {file} is not the confusion.csv of a run with {classes}"
            f" classes ({error})."
        ) from error
    if not int(matrix.sum()):
        raise ConfigError(
            f"`evaluation.confusable`: {file} has no validation counts; the reference run needs a"
            " validation part."
        )
    return matrix
