"""`benchmarks/new_clients_page.py`: the sentences of the page follow from the figures."""

import pandas as pd
import pytest

from tests.support import benchmark_script


@pytest.fixture(scope="module")
def script():
    """The module of the script."""
    with benchmark_script("new_clients_page") as module:
        yield module


@pytest.fixture(scope="module")
def federation(script):
    """Four methods, one of which has not finished all repetitions."""
    accuracies = {
        "local": (0.1, 0.5),
        "ft": (0.4, 0.8),
        "fedper": (0.2, 0.7),
        "pfedfda": (0.9, 0.9),
    }
    rows = [
        {
            "method": method,
            "epochs": epochs,
            "n": 1 if method == "fedprox" else 2,
            "mean": mean,
            "seen": mean + 0.05,
            "gap": -0.05,
            "worst10": 0.1,
            "received_bytes": 2000.0,
            "steps": 3.0 * epochs,
        }
        for method, pair in {**accuracies, "fedprox": (0.3, 0.8)}.items()
        for epochs, mean in zip((0, 5), pair, strict=True)
    ]
    return script.Federation("har", pd.DataFrame(rows), 9, "All runs have one version.")


def test_sentences_follow_from_the_figures(federation):
    first, second, third = federation.sentences()

    assert "with 1 of 2 methods" in first
    assert "50.0 % that `local` reaches after 5 epochs" in first
    assert "2 of 2 methods are above `local`, and 1 above the 80.0 %" in second
    assert "`pfedfda` 90.0, `fedper` 70.0" in second
    assert "Kendall's tau 1.00" in third
    assert "-5.0 points in the median over the methods (-5.0 to -5.0)" in third
