"""Groups of classes: rare classes and confusable classes."""

import csv
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from flbench.core import files
from flbench.core.errors import ConfigError
from flbench.core.wording import listed
from flbench.metrics.names import are_balanced

RARE_SHARE: Final = 0.05  # rule `share`: classes with less than this share of all samples


def rare_classes(counts: Tensor, rule: Literal["lowest", "share"]) -> tuple[list[int], list[str]]:
    """Return the rare classes.

    Args:
        counts: Training samples [C] by class, over all clients.
        rule: `lowest`: the classes with at most as many samples as the 20 % quantile of `counts`
            (formula in the paper of HFCD). Classes with equally many samples are all rare or all
            not rare, so there may be more than ceil(0.2 C) of them; classes with the most samples
            are never rare. `share`: the classes with less than 5 % of all samples (text of that
            paper).

    Returns:
        The ids in ascending order, and notes on degenerate cases: balanced classes, among which
        none is rare (see `are_balanced`), ties, and classes without samples.

    >>> rare_classes(torch.tensor([50, 3, 40, 60, 70]), "lowest")
    ([1], [])
    >>> rare_classes(torch.tensor([50, 3, 40, 3, 70]), "lowest")[0]
    [1, 3]
    >>> rare_classes(torch.tensor([50, 45, 40, 60, 55]), "lowest")[0]  # balanced
    []
    """
    classes = len(counts)
    balanced = are_balanced(counts.tolist())
    if rule == "share":
        found = torch.nonzero(counts < RARE_SHARE * counts.sum()).flatten().tolist()
        note = {0: "no class has", classes: "all classes have"}
        notes = [f"{note[len(found)]} under 5 % of all samples"] if len(found) in note else []
        if found and balanced:
            found, notes = [], [_no_rare_class(counts)]
        return found, [f"rare classes: {text}." for text in notes + _without_samples(found, counts)]
    if balanced:
        return [], [f"rare classes: {_no_rare_class(counts)}."]
    number = -(-classes // 5)  # ceil(0.2 C)
    quantile = counts.sort().values[number - 1]
    found = torch.nonzero((counts <= quantile) & (counts < counts.max())).flatten().tolist()
    notes = []
    if len(found) > number:
        notes.append(
            f"{len(found)} of {classes} classes count as rare, more than a fifth, because classes"
            " are equally frequent"
        )
    return found, [f"rare classes: {text}." for text in notes + _without_samples(found, counts)]


def _no_rare_class(counts: Tensor) -> str:
    """Return a note on balanced classes."""
    least, most = int(counts.min()), int(counts.max())
    each = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return (
        f"there is no rare class, because classes are about equally frequent ({each} training"
        " samples each), so there are no metrics of rare classes"
    )


def _without_samples(rare: list[int], counts: Tensor) -> list[str]:
    """Return a note that names the rare classes without any training sample, if there are any."""
    empty = [k for k in rare if counts[k] == 0]
    shown = listed(map(str, empty), 10)
    return [f"no client has training samples of the classes {shown}"] if empty else []


def confusable_classes(confusion: Tensor) -> list[int]:
    """Return the ceil(0.2 C) classes with the largest share of wrongly classified samples.

    Among classes with equal shares, those with smaller ids are taken. Classes without samples come
    last.

    Args:
        confusion: Confusion matrix [C, C] on validation samples; rows are true classes.

    Returns:
        The ids in ascending order.

    >>> confusable_classes(torch.tensor([[9, 1], [5, 5]]))
    [1]
    """
    support = confusion.sum(dim=1).double()
    wrong = torch.where(support > 0, 1 - confusion.diagonal().double() / support.clamp_min(1), -1.0)
    return sorted(torch.argsort(-wrong, stable=True)[: -(-len(confusion) // 5)].tolist())


def read_confusion(path: Path, classes: int) -> Tensor:
    """Read the validation confusion matrix of a run.

    Args:
        path: A run folder, or its file `confusion.csv`.
        classes: Number of classes C.

    Returns:
        The matrix [C, C] int64; rows are true classes.

    Raises:
        ConfigError: The file cannot be read, is not the confusion.csv of a run with C classes, or
            has no validation counts.
    """
    file = path / "confusion.csv" if path.is_dir() else path
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    try:
        files.check_regular(file)
        with file.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row["split"] == "validation":
                    matrix[int(row["true"]), int(row["predicted"])] += int(row["count"])
    except OSError as error:
        raise ConfigError(
            f"`evaluation.confusable`: {file} cannot be read: {error.strerror}. Name the folder of"
            " a finished run, or its confusion.csv."
        ) from error
    except (KeyError, ValueError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`evaluation.confusable`: {file} is not the confusion.csv of a run with {classes}"
            f" classes ({error}). Name a run on the same data set."
        ) from error
    if not int(matrix.sum()):
        raise ConfigError(
            f"`evaluation.confusable`: {file} has no validation counts; the reference run needs a"
            " validation part (the second share of partition.split)."
        )
    return matrix
