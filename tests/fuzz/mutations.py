"""Mutations of intact folders of runs, comparisons and studies, drawn by Hypothesis."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

MODULE: Final = "flbench_fuzz_module"
"""A module that no command may import."""
NAMES: Final = (
    *(
        "<img src=x onerror=alert(1)>",
        "$\\frac{1}{0$",
        "a\x1b[31mb\x9b2J",
        "a\nb",
        "",
        " ",
        "\u202e",
    ),
    *("../../x", "/etc/passwd", "x" * 3000, "\ud800", "\0", "R&D", "Zoë", "👩‍🔬", "القلب", "=1+1"),
    *("[x](javascript:y)", "`<b>`", "%s{}{0}", "{{ 7*7 }}", "\\input{x}", "nan", "1e999", "-"),
    *(f"{MODULE}:run", f"{MODULE}.run", "os:system", "subprocess:run", "file:///home/me/x"),
)
NUMBERS: Final = (
    *(0, -1, 1, 2**31, 2**63, 10**23, 10**400, -(10**23), 0.5, -0.5, 1e300, -1e300, 1e-320),
    *(float("nan"), float("inf"), float("-inf")),
)
OTHERS: Final = (None, True, False, [], {}, [[]], [1, 2], ["a"], {"a": 1}, {"": {"": ""}})
DEEP: Final = '{"a":' * 200 + "1" + "}" * 200
"""JSON that is deeper than any that flbench writes."""

values = st.one_of(st.sampled_from(NAMES), st.sampled_from(NUMBERS), st.sampled_from(OTHERS))
texts = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NUMBERS).map(lambda number: str(number)[:500]),
    st.text(max_size=20),
)
Draw = Callable[..., Any]


def mutate(draw: Draw, folder: Path, secret: Path) -> str:
    """Change something in a folder; return what was changed.

    Args:
        draw: What Hypothesis gives to draw from strategies.
        folder: The folder.
        secret: A file outside of it, to which links lead.
    """
    there = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    there = [path for path in there if path.stat().st_size < 2**20]
    if not there:
        return "nothing"
    file = draw(st.sampled_from(there))
    kinds = [damage, place]
    if file.suffix == ".json":
        kinds += [json_value] * 4
    elif file.suffix == ".csv":
        kinds += [csv_cell] * 4
    elif file.suffix == ".yaml":
        kinds += [yaml_value] * 4
    kind = draw(st.sampled_from(kinds))
    said = kind(draw, file, secret)
    return f"{kind.__name__} of {file.relative_to(folder)}: {said}"


def json_value(draw: Draw, file: Path, _: Path) -> str:
    """Replace, remove or add a value of a JSON file, at any depth."""
    try:
        tree = json.loads(file.read_text())
    except ValueError:
        return "no JSON any more"
    if not isinstance(tree, dict) or not tree:
        return "nothing"
    section, keys = tree, []
    while True:
        key = draw(
            st.sampled_from(sorted(section) if isinstance(section, dict) else range(len(section)))
        )
        keys.append(str(key))
        below = section[key]
        if not isinstance(below, dict | list) or not below or draw(st.integers(0, 3)) == 0:
            break
        section = below
    what = draw(st.sampled_from(("replace", "replace", "replace", "remove", "rename", "deep")))
    if what == "remove":
        del section[key]
    elif what == "rename" and isinstance(section, dict):
        section[draw(st.sampled_from(NAMES))] = section.pop(key)
    elif what == "deep":
        section[key] = "DEEP"
    else:
        section[key] = draw(values)
    file.write_text(json.dumps(tree).replace('"DEEP"', DEEP))
    return f"{what} {'.'.join(keys)}"


def csv_cell(draw: Draw, file: Path, _: Path) -> str:
    """Replace a cell of a CSV file, or double or remove one of its lines."""
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    number = draw(st.integers(0, max(0, len(lines) - 2)))
    cells = lines[number].split(",")
    place = draw(st.integers(0, len(cells) - 1))
    what = draw(st.sampled_from(("replace", "replace", "replace", "double", "remove")))
    if what == "double":
        lines.insert(number, lines[number])
    elif what == "remove":
        del lines[number]
    else:
        cells[place] = draw(texts).replace("\ud800", "?")
        lines[number] = ",".join(cells)
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    return f"{what} line {number}, cell {place}"


def yaml_value(draw: Draw, file: Path, _: Path) -> str:
    """Replace the value in a line of a YAML file."""
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    number = draw(st.integers(0, max(0, len(lines) - 2)))
    key = lines[number].partition(":")[0]
    value = draw(values)
    lines[number] = f"{key}: {json.dumps(value)}"
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    return f"line {number}: {lines[number][:60]!r}"


def damage(draw: Draw, file: Path, _: Path) -> str:
    """Cut a file, or change some of its bytes."""
    content = bytearray(file.read_bytes())
    what = draw(st.sampled_from(("cut", "bytes", "insert", "empty", "random")))
    where = draw(st.integers(0, max(0, len(content) - 1)))
    if what == "cut":
        del content[where:]
    elif what == "bytes":
        new = draw(st.binary(min_size=1, max_size=8))
        content[where : where + len(new)] = new
    elif what == "insert":
        content[where:where] = draw(st.binary(min_size=1, max_size=8))
    else:
        content = bytearray(draw(st.binary(max_size=40)) if what == "random" else b"")
    file.write_bytes(content)
    return f"{what} at {where}"


def place(draw: Draw, file: Path, secret: Path) -> str:
    """Put something else in the place of a file, or give its folder another name."""
    what = draw(st.sampled_from(("link", "none", "folder", "pipe", "sparse", "loop", "rename")))
    if what == "rename":
        name = draw(st.sampled_from([one for one in NAMES if one.strip() and "/" not in one]))
        name = name.replace("\0", "?").replace("\ud800", "?")[:60]
        target = file.parent.with_name(name)
        if not target.exists():
            file.parent.rename(target)
        return f"{what} {name!r}"
    if what == "sparse":
        os.truncate(file, 64 * 2**30)
        return what
    file.unlink()
    if what == "link":
        file.symlink_to(secret)
    elif what == "loop":
        file.symlink_to(file.name)
    elif what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    return what


def copied(intact: Path, folder: Path) -> Path:
    """Copy an intact folder to another place, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(intact, folder)
