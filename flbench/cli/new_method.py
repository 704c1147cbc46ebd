"""`flbench new-method`: a package with a method that works, to start from."""

import keyword
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Final

from flbench.cli import console
from flbench.core import files
from flbench.core.errors import UserError
from flbench.core.registry import ALGORITHMS
from flbench.core.wording import in_shell

TEMPLATES: Final = Path(__file__).with_name("method_package")
FILES: Final = {
    "flbench_$name/__init__.py": None,
    "flbench_$name/$name.py": "method.py.txt",
    "flbench_$name/$name.yaml": "space.yaml.txt",
    "tests/test_$name.py": "test_method.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
}
"""Files of the package, and the template of each; None for an empty file."""


def new_method(name: str, folder: Path | None, *, as_json: bool) -> None:
    """Write the package of a new method.

    Args:
        name: Name of the method.
        folder: Folder of the package; None for `flbench-NAME` in the current folder.
        as_json: Whether JSON is printed.

    Raises:
        UserError: The name cannot be used, or the folder has files already.
    """
    class_name = _class_of(name)
    if folder is None:
        folder = Path(f"flbench-{name.replace('_', '-')}")
    _check_empty(folder)
    values = {"name": name, "Name": class_name, "project": f"flbench-{name.replace('_', '-')}"}
    written = _write(folder, values)
    source = f"flbench_{name}/{name}.py:{class_name}"
    if as_json:
        console.json({"folder": str(folder), "files": written, "source": source})
        return
    for path in written:
        console.line(str(folder / path))
    commands = [f"flbench run {source}", f"flbench tune {source}", "pytest"]
    console.line("\nThe method works as it is. README.md says what to change. To try it:\n")
    if folder.resolve() != Path.cwd().resolve():
        commands.insert(0, f"cd {in_shell(folder)}")
    for command in commands:
        console.line(f"  {command}")


def _class_of(name: str) -> str:
    """Return the name of the class of a method.

    Raises:
        UserError: The name cannot be that of a new method.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(
            f"`{name}`: the name of a method has lower-case letters, digits and underscores,"
            " and begins with a letter."
        )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if keyword.iskeyword(name) or keyword.iskeyword(class_name):
        raise UserError(f"`{name}`: this is a word of Python. Choose another name.")
    if name in ALGORITHMS.names():
        raise UserError(
            f"`{name}`: there is a method of this name, which `flbench algos {name}` describes."
            " Choose another name."
        )
    return class_name


def _check_empty(folder: Path) -> None:
    """Raise a UserError if a folder is a file, or has files that are not hidden."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: this is not a folder. Give another one by --out.")
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if found:
        raise UserError(
            f"{folder}: the folder is not empty, it has {found[0]}. Nothing was written."
            " Give another one by --out."
        )


def _write(folder: Path, values: dict[str, str]) -> list[str]:
    """Write the files, and return their paths below the folder; an error leaves none of them."""
    was_there = folder.is_dir()
    written: list[str] = []
    try:
        for path, content in _contents(values):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                opened.write(content)
            written.append(path)
    except OSError:
        for path in written:
            files.discard(folder / path)
        if not was_there:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return written


def _contents(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of the files and their contents."""
    for path, template in FILES.items():
        text = "" if template is None else (TEMPLATES / template).read_text("utf-8")
        yield Template(path).substitute(values), Template(text).substitute(values)
