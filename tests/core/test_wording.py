"""Settings that messages print can be copied."""

import ast
import shlex
import subprocess

import pytest
import yaml

from flbench.core.wording import names_setting
from tests.support import config_of

NAMES = [
    *("id", "n,m", "id: p", "it's", 'a "b"', "50 $HOME", "a\\b", "`date`", "#3", "no", "1", "[x]"),
    *("two\nlines", "Größe 😀", "{a}", "*", "!important", "a'b\"c"),
]


@pytest.mark.parametrize("names", [*([name] for name in NAMES), NAMES])
def test_lists_of_names_are_valid_in_python_in_yaml_and_in_a_shell(names):
    words = names_setting("data.drop", names)

    [word] = shlex.split(words)
    shown = word.removeprefix("data.drop=")
    assert ast.literal_eval(shown) == yaml.safe_load(shown) == names
    assert config_of(word).data.drop == tuple(sorted(names))
    command = ["sh", "-c", f"printf %s {words}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == word


def test_names_are_in_double_quotes_unless_a_shell_changes_them_there():
    assert names_setting("data.drop", ["n,m"]) == "\"data.drop=['n,m']\""
    assert names_setting("data.drop", ["$x"]).startswith("'")
