"""Places and lines of exceptions and warnings of the user's code."""

import pytest

from flbench.core import text
from flbench.core.errors import MethodError
from flbench.core.user_code_errors import as_errors, note_of, placed


def test_an_exception_of_the_users_code_names_its_place():
    with (
        pytest.raises(
            MethodError, match=r"no loss \(.*test_user_code_errors.py:\d+\) at client 3 in round 7"
        ),
        as_errors(),
        placed(lambda: "client 3 in round 7"),
    ):
        raise ValueError("no loss")


def test_notes_name_lines_of_the_user_alone():
    assert note_of(UserWarning("a"), __file__, 7) == f"a ({__file__}:7)"
    for other in (pytest.__file__, text.__file__, "<string>"):
        assert note_of("a", other, 7) == "a"


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("not enough memory"), OSError(28, "")]
)
def test_a_lack_of_memory_or_space_is_no_fault_of_the_users_code(error):
    with pytest.raises(type(error)), as_errors():
        raise error
