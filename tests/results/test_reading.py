"""What a run folder says about its classes while the run is unfinished."""

import numpy as np
import pytest

from flbench.core.errors import DataError
from flbench.results import reading


def unfinished(folder, counts=None, rule="lowest"):
    """Write the folder of a run that has just begun; counts [N, C] are its training samples."""
    (folder / "config.yaml").write_text(f"algorithm: fedavg\nevaluation: {{rare: {rule}}}\n")
    (folder / "metrics.csv").write_text("round,split,protocol,metric,value\n")
    if counts is not None:
        np.savez(folder / "partition.npz", train_counts=np.array(counts))
    return folder


@pytest.mark.parametrize(
    ("counts", "rule", "rare"),
    [
        ([[5, 0, 5], [0, 6, 0]], "lowest", False),  # balanced over all clients
        ([[5, 0, 5], [0, 2, 0]], "lowest", True),
        ([[50, 0, 50], [0, 20, 0]], "share", False),  # the fewest are 17 % of the samples
        ([[50, 0, 50], [0, 2, 0]], "share", True),
    ],
)
def test_unfinished_run_knows_its_rare_classes_from_the_partition(tmp_path, counts, rule, rare):
    run = reading.read(unfinished(tmp_path, counts, rule))

    assert not run.finished
    assert run.has_rare_classes is rare


def test_unfinished_run_without_a_partition_shows_rare_classes(tmp_path):
    assert reading.read(unfinished(tmp_path)).has_rare_classes


def test_damaged_partition_of_an_unfinished_run_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"partition.npz is damaged: .*train_counts"):
        reading.read(unfinished(tmp_path, counts=[1, 2]))


def test_counts_of_a_small_file_do_not_fill_the_memory(tmp_path, monkeypatch):
    """Zeros of one byte are compressed, and each would take eight bytes here."""
    monkeypatch.setattr(reading, "MOST_COUNTS", 1000)
    counts = np.zeros((1001, 1), np.int8)
    folder = unfinished(tmp_path)
    np.savez_compressed(folder / "partition.npz", train_counts=counts)

    with pytest.raises(DataError, match=r"partition.npz is damaged: .*1,001 entries"):
        reading.read(folder)
