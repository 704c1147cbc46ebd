"""Figures are shown by notebooks, whether or not pyplot has been imported."""

from io import BytesIO

import numpy as np
from IPython.core.formatters import DisplayFormatter
from matplotlib.image import imread

from flbench.reports import figures


def test_a_notebook_shows_a_figure_as_a_picture():
    figure = figures.partition_table(np.arange(12).reshape(4, 3), ["a", "b", "c"], "mine")

    data, metadata = DisplayFormatter().format(figure)

    height, width = imread(BytesIO(data["image/png"])).shape[:2]
    shown = metadata["image/png"]
    assert abs(width - 2 * shown["width"]) <= 2
    assert abs(height - 2 * shown["height"]) <= 2
