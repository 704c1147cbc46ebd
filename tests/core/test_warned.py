"""Warnings of code of the user: once, with a place, in this process and from others."""

import pickle
import warnings

import pytest

from flbench.core import text
from flbench.core.raised import note_of, placed
from flbench.core.warned import Warned, at, first_of_each, recorded, with_places


def strange(text="a strange loss"):
    warnings.warn(text, UserWarning, stacklevel=1)


@pytest.fixture
def shown(monkeypatch):
    """What is shown, as pairs of text and category; filters that show each warning."""
    found = []
    monkeypatch.setattr(
        warnings, "showwarning", lambda message, kind, *_: found.append((str(message), kind))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield found


def test_a_warning_is_shown_for_the_first_client_alone(shown):
    with with_places():
        for client in (3, 5):
            with placed(lambda client=client: f"client {client} in round 1"):
                strange()
                strange(f"a loss of {client}")

    assert [text for text, _ in shown] == [
        "a strange loss (client 3 in round 1)",
        "a loss of 3 (client 3 in round 1)",
        "a loss of 5 (client 5 in round 1)",
    ]


def test_another_run_shows_it_again_and_warnings_without_a_place_stay_as_they_are(shown):
    for _ in range(2):
        with with_places(), at(lambda: "client 0 in round 2"):
            strange()
            text.warn("a note of flbench")
    with with_places():
        strange()

    texts = [text for text, _ in shown]
    assert texts == [*["a strange loss (client 0 in round 2)", "a note of flbench"] * 2, texts[-1]]
    assert texts[-1] == "a strange loss"


def test_filters_see_the_text_without_the_place(shown):
    with with_places(), at(lambda: "client 0 in round 2"):
        warnings.filterwarnings("ignore", message="a strange loss$")
        strange()
        strange("another")

    assert [text for text, _ in shown] == ["another (client 0 in round 2)"]


def test_recorded_warnings_are_issued_again_in_another_process(shown):
    class Own(UserWarning):
        """A category that no other process can import."""

    with recorded() as found:
        warnings.simplefilter("always")
        for client in (4, 2):
            with at(lambda client=client: f"client {client} in round 9"):
                strange()
                warnings.warn("of an own class", Own, stacklevel=1)
    arrived = pickle.loads(pickle.dumps(found))
    assert shown == []

    with with_places():
        for one in first_of_each([*arrived, *arrived]):
            one.issue()

    assert shown == [
        ("a strange loss (client 4 in round 9)", UserWarning),
        ("of an own class (client 4 in round 9)", UserWarning),
    ]


def test_a_warning_that_filters_make_an_error_is_raised():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"^strange$"):
            Warned(UserWarning, "strange", __file__, 3, None).issue()


def test_notes_name_lines_of_the_user_alone():
    assert note_of(UserWarning("a"), __file__, 7) == f"a ({__file__}:7)"
    for other in (pytest.__file__, text.__file__, "<string>"):
        assert note_of("a", other, 7) == "a"
