"""`flbench new-method`: a package with a method that works, to start from."""

import keyword
import re
from pathlib import Path
from string import Template
from typing import Final

from flbench.cli import console
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


def new_method(name: str, *, out: Path | None) -> None:
    """Write the package of a new method into a new folder."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    is_word = keyword.iskeyword(name) or keyword.iskeyword(class_name)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or is_word:
        raise UserError(
            f"`{name}`: the name of a method has lower-case letters, digits and underscores, begins"
            " with a letter, and is no word of Python."
        )
    if name in ALGORITHMS.names():
        raise UserError(
            f"`{name}`: there is a method of this name, which `flbench algos {name}` describes."
            " Choose another name."
        )
    project = f"flbench-{name.replace('_', '-')}"
    folder = Path(project) if out is None else out
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} is there already. Give another --out.")
    values = {"name": name, "Name": class_name, "project": project}
    for path, template in FILES.items():
        text = "" if template is None else (TEMPLATES / template).read_text("utf-8")
        file = folder / Template(path).substitute(values)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(values), encoding="utf-8")
        console.line(str(file))
    console.line("\nThe method works as it is. README.md says what to change. To try it:\n")
    source = f"flbench_{name}/{name}.py:{class_name}"
    tried = f"flbench run {source}", f"flbench tune {source}", "pytest"
    for command in (f"cd {in_shell(folder)}", *tried):
        console.line(f"  {command}")
