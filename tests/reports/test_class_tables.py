"""Tables of classes show the rarest of many classes."""

from flbench.reports.tables import MOST_CLASSES, class_score, shown_classes


def rows(supports):
    return [{"class": str(k), "train_support": str(n)} for k, n in enumerate(supports)]


def test_all_of_a_few_classes_are_shown():
    few = rows(range(MOST_CLASSES))

    assert shown_classes(few) == (few, "")


def test_rarest_of_many_classes_are_shown_in_their_order():
    many = rows([5] * 30 + [1] * (MOST_CLASSES - 10) + [9] * 40 + [2] * 10)

    shown, about = shown_classes(many)

    wanted = [row for row in many if row["train_support"] in ("1", "2")]
    assert shown == wanted
    assert f"the {MOST_CLASSES} classes with the fewest training samples; 70 more" in about


def test_class_without_test_samples_has_neither_recall_nor_f1():
    line = {"test_support": "0", "precision": "0", "recall": "0", "f1": "0"}

    assert [class_score(line, key) for key in ("precision", "recall", "f1")] == [0.0, None, None]
    assert class_score(line | {"test_support": "3"}, "recall") == 0.0
