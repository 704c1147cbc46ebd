"""What a name is, and how names look in Markdown and LaTeX."""

import pytest

from flbench.core.errors import RunError, UserError
from flbench.core.own_names import LONGEST, as_written, checked
from flbench.core.text import in_latex, in_markdown

USUAL = (
    "Zoë",
    "القلب",
    "לב",
    "北京",
    "👩‍🔬 lab",
    "R&D",
    "a_b",
    "$x$",
    "<=50K",
    "two words",
    "x" * 60,
)


@pytest.mark.parametrize("name", USUAL)
def test_names_of_all_alphabets_and_signs_are_names(name):
    assert checked(name, "x") == name
    assert as_written(name, "x") == name


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", None, 3, ["a"], "a\nb", "a\tb", "\x1b[31m", "a\x7f", "\u202eb", "\ud800", "\0"),
        "x" * (LONGEST + 1),
    ],
)
def test_other_values_are_no_names(name):
    with pytest.raises(ValueError, match="the method"):
        checked(name, "the method")


def test_name_of_a_class_is_read_as_flbench_writes_it():
    assert as_written("a\x1b\nb", "x") == "a\\x1b\nb"
    with pytest.raises(ValueError, match="x"):
        as_written("x" * 1001, "x")


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>",
        "</script><script>alert(1)</script>",
        "[x](javascript:alert(1))",
        "![x](http://127.0.0.1/x.png)",
        "`code` <b>`",
        "`<b>`",
        "a | b",
        "&lt;script&gt;",
        "<!-- ",
        "a\n\n# heading",
        "[a]: http://127.0.0.1",
        "http://127.0.0.1/x",
        "\\<b>",
    ],
)
def test_markdown_shows_a_text_as_it_is(text):
    """Python's Markdown, which makes the site, makes no element of a text and shows it whole."""
    markdown = pytest.importorskip("markdown")
    written = in_markdown(text)
    page = markdown.markdown(f"| {written} |\n| --- |\n| {written} |", extensions=["tables"])
    for harmless in ("table", "thead", "tbody", "tr", "th", "td", "code"):
        page = page.replace(f"<{harmless}>", "").replace(f"</{harmless}>", "")
    assert "<" not in page
    assert page.count("\n") < 20


def test_usual_names_and_numbers_are_not_changed():
    for text in ("hfcd tau=1", "worst10_accuracy", "0.5000 [0.4000, 0.6000]", "-0.1 (12 %)", "-"):
        assert in_markdown(text) == text
    assert in_markdown("Give `--seeds 3`.") == "Give `--seeds 3`."


def test_latex_shows_a_text_as_it_is():
    assert in_latex("50 % of a_b {#1}") == r"50 \% of a\_b \{\#1\}"
    assert in_latex("\\input{/etc/passwd}\n\n^^41") == (
        r"\textbackslash{}input\{/etc/passwd\} \textasciicircum{}\textasciicircum{}41"
    )
    assert in_latex("[1em]*") == "{[}1em]{*}"  # after the end of a row


@pytest.mark.parametrize("kind", [UserError, RunError])
def test_error_repeats_no_control_characters(kind):
    error = kind("/tmp/a\x1b[31m\x9b2J is damaged\nhttp://ann:x7@host")

    assert str(error) == "/tmp/a\\x1b[31m\\x9b2J is damaged\nhttp://***@host"
    assert f"{error}" == str(error)
