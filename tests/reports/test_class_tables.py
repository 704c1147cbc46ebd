"""Tables of classes show the rarest of many classes."""

import pandas as pd

from flbench.reports.run import MOST_CLASSES, classes

SCORES = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rare": False, "confusable": False}


def table(supports):
    rows = [{"name": str(k), "train_support": n, "test_support": 1} for k, n in enumerate(supports)]
    return pd.DataFrame(rows).assign(**SCORES)


def test_rarest_of_many_classes_are_shown_in_their_order():
    few, many = range(MOST_CLASSES), [5] * 30 + [1] * (MOST_CLASSES - 10) + [9] * 40 + [2] * 10

    wanted = [str(k) for k, n in enumerate(many) if n in (1, 2)]
    assert [row["name"] for row in classes(table(many)).rows] == wanted
    assert [row["name"] for row in classes(table(few)).rows] == list(map(str, few))
