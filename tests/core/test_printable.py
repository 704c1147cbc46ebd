"""Text for terminals."""

import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from flbench.core.printable import one_line, printable


def test_escape_sequences_become_visible():
    assert printable("a\x1b[31mb\x9b2Jc\rd\x07") == r"a\x1b[31mb\x9b2Jc\rd\x07"
    assert printable("abc\u202etxt.exe\udc80") == r"abc\u202etxt.exe\udc80"


def test_usual_text_stays():
    text = "Zoë\tnäïve\n北京 \U0001f600 C:\\n [red]x[/red] -5"

    assert printable(text) == text


@given(st.text(alphabet=st.characters(codec=None), max_size=50))
@settings(deadline=None)
def test_no_control_character_and_no_lone_surrogate_is_left(text):
    found = printable(text)

    assert all(sign in "\t\n" or unicodedata.category(sign) not in ("Cc", "Cs") for sign in found)
    found.encode()
    assert "\n" not in one_line(text)
