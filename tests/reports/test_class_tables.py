"""Tables of classes show the rarest of many classes."""

from flbench.reports.run import MOST_CLASSES, class_score, classes

SCORES = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "rare": False, "confusable": False}


def rows(supports):
    return [
        {"name": str(k), "train_support": n, "test_support": 1, **SCORES}
        for k, n in enumerate(supports)
    ]


def test_all_of_a_few_classes_are_shown():
    table = classes(rows(range(MOST_CLASSES)))

    assert [row["name"] for row in table.rows] == list(map(str, range(MOST_CLASSES)))


def test_rarest_of_many_classes_are_shown_in_their_order():
    many = rows([5] * 30 + [1] * (MOST_CLASSES - 10) + [9] * 40 + [2] * 10)

    table = classes(many)

    wanted = [row["name"] for row in many if row["train_support"] in (1, 2)]
    assert [row["name"] for row in table.rows] == wanted


def test_class_without_test_samples_has_neither_recall_nor_f1():
    line = {"test_support": 0, "precision": 0.0, "recall": 0.0, "f1": 0.0}

    assert [class_score(line, key) for key in ("precision", "recall", "f1")] == [0.0, None, None]
    assert class_score(line | {"test_support": 3}, "recall") == 0.0
