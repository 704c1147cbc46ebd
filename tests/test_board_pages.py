"""The pages of the board, which `benchmarks/board_pages.py` makes from archives of runs."""

from pathlib import Path

import pandas as pd
import pytest

from tests.support import benchmark_script

ROOT = Path(__file__).resolve().parents[1]
BOARD = ROOT / "docs" / "board"


@pytest.fixture(scope="module")
def pages():
    """The module of the script."""
    with benchmark_script("board_pages") as module:
        yield module


def test_difference_that_rounds_to_zero_has_no_sign(pages):
    row = pd.Series(
        {"difference": 0.0004, "low": -0.02, "high": 0.0208, "p": 0.9, "corrected": 0.9}
    )

    assert str(pages.Gap(row, 1)) == "0.0 [-2.0,&nbsp;+2.1]"
    assert str(pages.Gap(row, -1)) == "0.0 [-2.1,&nbsp;+2.0]"


@pytest.mark.full
def test_page_can_be_made_again_from_the_runs(pages):
    page = pages.page(pages.Setting(BOARD / "digits-path.tar.xz"))

    assert page == (BOARD / "digits-path.md").read_text("utf-8")
