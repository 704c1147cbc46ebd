"""Mutations of intact folders and archives of runs, comparisons and studies.

They are drawn by Hypothesis, and keep the structure of files: one value of a JSON, YAML or CSV
file, one array of an NPZ file, one entry of a header, one member of an archive.
"""

import io
import json
import lzma
import os
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from hypothesis import strategies as st

from flbench.comparison.archive import KNOWN

MODULE: Final = "flbench_fuzz_module"
"""A module that no command may import."""
NAMES: Final = (
    *("<img src=x onerror=alert(1)>", "$\\frac{1}{0$", "a\x1b[31mb\x9b2J", "a\nb", "", "\u202e"),
    *(
        "../../x",
        "/etc/passwd",
        "x" * 3000,
        "\ud800",
        "\0",
        "R&D",
        "👩‍🔬",
        "القلب",
        "=1+1",
        "-",
        " ",
    ),
    *("[x](javascript:y)", "`<b>`", "%s{}{0}", "{{ 7*7 }}", "\\input{x}", "nan", "1e999", "~", "*"),
    *(f"{MODULE}:run", f"{MODULE}.run", f"./{MODULE}.py:run", "os:system", "file:///home/me/x"),
    *("torch:load", "builtins:exec", "http://127.0.0.1:9", "javascript:alert(1)", "@SUM(1)"),
    *("</script><script>alert(1)</script>", '"><svg onload=alert(1)>', "'onmouseover='alert(1)"),
    *("<a href=javascript:alert(1)>x</a>", "]]><!--", "![x](x:y)", "| a | b |", "```", "# x"),
    *("<style>*{}", "\u2066a\u2069", "\u2028", "\ufeff", "a" + "\u0301" * 50, "\x9d0;x\x9c", "\r"),
    *(
        "$(touch x)",
        "; touch x",
        "\\write18{touch x}",
        "^^5cinput",
        "personal",
        "best",
        "..",
        "con",
    ),
)
NUMBERS: Final = (
    *(0, -1, 1, 2**31, 2**63, 10**23, 10**400, -(10**23), 0.5, -0.5, 1e300, -1e300, 1e-320),
    *(float("nan"), float("inf"), float("-inf")),
)
OTHERS: Final = (
    *(None, True, False, [], {}, [[]], [1, 2], ["a"], {"a": 1}, {"": {"": ""}}, [None] * 3000),
    {f"k{index}": index for index in range(300)},
)
DEEP: Final = '{"a":' * 200 + "1" + "}" * 200
"""JSON that is deeper than any that flbench writes."""

SIGNS: Final = "<>\"'&;:/\\()[]{}$`|*_#=+-@%\x1b\x9b\u202e\u2067\n\r\t aé\u0301"
"""Characters that mean something to a page, a terminal, a shell or a table."""

names = st.one_of(st.sampled_from(NAMES), st.text(SIGNS, min_size=1, max_size=12))
RAW: Final = {
    "deep": DEEP,
    "digits": "9" * 5000,
    "twice": '1, "twice": {"a": 1, "a": [2]}',
    "long": json.dumps("x" * 300_000),
    "exponent": "1e99999",
    "many": "[" + "0," * 20_000 + "0]",
}
"""JSON that `json.dumps` does not write."""

values = st.one_of(names, st.sampled_from(NUMBERS), st.sampled_from(OTHERS))
texts = st.one_of(
    names, st.sampled_from(NUMBERS).map(lambda number: str(number)[:500]), st.text(max_size=20)
)
Draw = Callable[..., Any]


def mutate(draw: Draw, folder: Path, secret: Path) -> None:
    """Change something in a folder.

    Args:
        draw: What Hypothesis gives to draw from strategies.
        folder: The folder.
        secret: A file outside of it, to which links lead.
    """
    there = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    there = [path for path in there if path.stat().st_size < 2**20]
    if there:
        file = draw(st.sampled_from(there))
        others = [damage, lambda draw, file: place(draw, file, secret)]
        draw(st.sampled_from([*others, *[BY_SUFFIX.get(file.suffix, damage)] * 4]))(draw, file)


def changed(draw: Draw, tree: Any) -> str:
    """Return a tree as JSON after one value, at any depth, was replaced, removed or renamed."""
    if not isinstance(tree, dict) or not tree:
        return json.dumps(tree)
    section: Any = tree
    while True:
        there = list(section) if isinstance(section, dict) else range(len(section))
        key = draw(st.sampled_from(there))
        below = section[key]
        if not isinstance(below, dict | list) or not below or draw(st.integers(0, 3)) == 0:
            break
        section = below
    what = draw(st.sampled_from((*["replace"] * 3, "remove", "rename", *RAW)))
    if what == "remove":
        del section[key]
    elif what == "rename" and isinstance(section, dict):
        section[draw(names)] = section.pop(key)
    else:
        section[key] = "RAW" if what in RAW else draw(values)
    return json.dumps(tree).replace('"RAW"', RAW.get(what, ""))


def json_value(draw: Draw, file: Path) -> None:
    """Change a value of a JSON file."""
    with suppress(ValueError, RecursionError):  # it is no JSON any more
        file.write_text(changed(draw, json.loads(file.read_text())))


YAML: Final = (
    *("!!python/object/apply:os.system ['touch x']", "&a [*a]", "*a", "!!int x", "0x10", "[" * 100),
    *("|\n  a\n  b", "{a: 1, a: 2}", "{<<: {a: 1}}", "'", "\t", "%YAML 1.1", "1:30"),
)
"""YAML that `json.dumps` does not write."""


def yaml_value(draw: Draw, file: Path) -> None:
    """Change a value of a YAML file, or put YAML of another kind into one of its lines."""
    with suppress(ValueError, RecursionError, yaml.YAMLError):
        if draw(st.booleans()):
            text = changed(draw, yaml.safe_load(file.read_text()))
        else:
            lines = file.read_bytes().decode("utf-8", "replace").split("\n")
            number = draw(st.integers(0, max(0, len(lines) - 2)))
            value = draw(st.one_of(values.map(json.dumps), st.sampled_from(YAML)))
            lines[number] = f"{lines[number].partition(':')[0]}: {value}"
            text = "\n".join(lines)
        file.write_bytes(text.encode("utf-8", "replace"))


def csv_cell(draw: Draw, file: Path) -> None:
    """Replace a cell of a CSV file, or double or remove one of its lines or columns."""
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    number = draw(st.integers(0, max(0, len(lines) - 2)))
    cells = lines[number].split(",")
    place = draw(st.integers(0, len(cells) - 1))
    what = draw(st.sampled_from((*["replace"] * 4, "double", "remove", "column", "longer")))
    if what == "double":
        lines.insert(number, lines[number])
    elif what == "remove":
        del lines[number]
    elif what == "column":  # of all lines
        cut = [line.split(",") for line in lines if line]
        lines = [",".join([*line[:place], *line[place + 1 :]]) for line in cut] + [""]
    elif what == "longer":
        lines[number] += "," + draw(texts)
    else:  # the last one is longer than Python's csv reads
        text = draw(texts)
        cells[place] = draw(st.sampled_from((text, json.dumps(text), "x" * 140_000)))
        lines[number] = ",".join(cells)
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))


HEADERS: Final = (
    "{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999, 99999)}",
    "{'descr': '<i4', 'fortran_order': False, 'shape': (-1, 3)}",
    "{'descr': [('a', '<i4', (99999, 99999))], 'fortran_order': 0, 'shape': (3,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
    "__import__('os')",
    "(" * 5000,
)
"""Headers of NPY files that `numpy.save` does not write."""


def npz_array(draw: Draw, file: Path) -> None:
    """Change an array of an NPZ file, its header or its entry."""
    try:
        with zipfile.ZipFile(file) as old:
            entries = {one.filename: old.read(one) for one in old.infolist()}
    except (ValueError, OSError, zipfile.BadZipFile):
        return
    name = draw(st.sampled_from(sorted(entries)))
    what = draw(st.sampled_from(("array", "pickle", "header", "cut", "bomb", "rename")))
    if what == "array":
        shape = draw(st.sampled_from(((), (0,), (3,), (3, 3), (0, 3), (1, 2, 3), (10**5,))))
        kinds = ("i1", "u8", "f4", "f8", "?", "U3", "S3", "c16", "M8[s]", ">i4", "V3")
        entries[name] = _npy(np.zeros(shape, draw(st.sampled_from(kinds))))
    elif what == "pickle":
        entries[name] = _npy(np.array([{"a": 1}], object))
    elif what == "header":
        new = draw(st.sampled_from(HEADERS)).encode() + b"\n"
        entries[name] = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(new)) + new + bytes(40)
    elif what == "cut":
        entries[name] = entries[name][: draw(st.integers(0, len(entries[name])))]
    elif what == "bomb":
        entries[name] = _npy(np.zeros((2**22, 3), np.int32))
    else:
        entries[draw(names).replace("\0", "") or "x"] = entries.pop(name)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new_file:
        for one, content in entries.items():
            new_file.writestr(one.encode("utf-8", "replace").decode(), content)


def _npy(array: Any) -> bytes:
    """Return an array as an NPY file."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=True)
    return content.getvalue()


def tensor(draw: Draw, file: Path) -> None:
    """Change the header of a safetensors file: a value, one of the metadata, or its length."""
    content = file.read_bytes()
    try:
        length = struct.unpack("<Q", content[:8])[0]
        tree = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError, struct.error, MemoryError):
        return
    metadata = tree.get("__metadata__") if isinstance(tree, dict) else None
    if metadata and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(metadata)))
        with suppress(TypeError, ValueError, RecursionError):
            metadata[key] = changed(draw, json.loads(metadata[key]))
        text = json.dumps(tree)
    else:
        text = changed(draw, tree)
    header = text.encode("utf-8", "replace")
    claimed = draw(st.sampled_from([*[len(header)] * 6, 0, 2**31, 2**63]))
    file.write_bytes(struct.pack("<Q", claimed) + header + content[8 + length :])


def damage(draw: Draw, file: Path) -> None:
    """Cut a file, or change some of its bytes."""
    content = bytearray(file.read_bytes())
    what = draw(st.sampled_from(("cut", "bytes", "insert", "all")))
    where = draw(st.integers(0, max(0, len(content) - 1)))
    new = draw(st.binary(max_size=8))
    end = {"cut": len(content), "bytes": where + len(new), "insert": where, "all": len(content)}
    content[0 if what == "all" else where : end[what]] = new
    file.write_bytes(content)


BY_SUFFIX: Final = {
    ".json": json_value,
    ".csv": csv_cell,
    ".yaml": yaml_value,
    ".npz": npz_array,
    ".safetensors": tensor,
}


def place(draw: Draw, file: Path, secret: Path) -> None:
    """Put something else in the place of a file, or give its folder another name."""
    what = draw(st.sampled_from(("link", "none", "folder", "pipe", "sparse", "loop", "rename")))
    if what == "rename":
        name = draw(names).replace("\0", "?").replace("/", "?").encode("utf-8", "replace").decode()
        target = file.parent.with_name(name.strip(" .")[:60] or "x")
        if not target.exists():
            file.parent.rename(target)
    elif what == "sparse":
        os.truncate(file, 64 * 2**30)
    else:
        file.unlink()
        if what in ("link", "loop"):
            file.symlink_to(secret if what == "link" else file.name)
        elif what != "none":
            (os.mkfifo if what == "pipe" else Path.mkdir)(file)


def archive(draw: Draw, folder: Path, target: Path) -> None:
    """Write the files of a folder into an archive, with some of its entries or bytes changed."""
    form = draw(st.sampled_from((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)))
    found = sorted(one for one in folder.rglob("*") if one.is_file() and not one.is_symlink())
    found = [one for one in found if one.name in KNOWN and one.stat().st_size < 2**22]
    chosen = draw(st.integers(-len(found), len(found)))  # half of the archives have intact entries
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form, errors="replace") as new:
        for number, one in enumerate(found):
            entry = tarfile.TarInfo(one.relative_to(folder.parent).as_posix())
            bytes_of = one.read_bytes()
            entry.size = len(bytes_of)
            times = _entry(draw, entry, form) if number == chosen else 1
            for _ in range(times):
                with suppress(ValueError, OverflowError, TypeError):  # the form cannot hold it
                    whole = io.BytesIO(bytes_of) if entry.size <= len(bytes_of) else None
                    new.addfile(entry, whole)
    bytes_of_all = bytearray(content.getvalue())
    if draw(st.integers(0, 5)) == 0 and bytes_of_all:  # mostly bytes of headers
        where = draw(st.integers(0, len(bytes_of_all) // 512 - 1)) * 512 + draw(st.integers(0, 511))
        new_bytes = draw(st.binary(min_size=1, max_size=4))
        bytes_of_all[where : where + len(new_bytes)] = new_bytes
    target.write_bytes(lzma.compress(bytes(bytes_of_all), preset=0))


PAX_KEYS: Final = (
    *("path", "linkpath", "size", "mtime", "uid", "hdrcharset", "x", "GNU.sparse.major"),
    *("GNU.sparse.size", "GNU.sparse.map", "GNU.sparse.name", "GNU.sparse.realsize"),
)


def _entry(draw: Draw, entry: tarfile.TarInfo, form: int) -> int:
    """Change an entry of an archive; return how often it is written."""
    what = draw(st.sampled_from(("type", "name", "size", "pax", "twice", "mode")))
    where = Path(entry.name)
    if what == "type":
        entry.type = bytes([draw(st.sampled_from(b"\x00012345679gxLKSDMNVX\xff"))])
        entry.linkname = draw(st.sampled_from(("/etc/passwd", "../../secret", "x", entry.name)))
    elif what == "name":
        name = draw(names).replace("\0", "").encode("utf-8", "replace").decode()[:90]
        forms = (
            *(f"{name}/{where.name}", f"../{where.name}", f"/tmp/{where.name}", f"./{where}"),
            *(f"{where.parent}/{name}", "a/" * 40 + where.name, f"{where}/{where.name}"),
        )
        entry.name = draw(st.sampled_from(forms))
    elif what == "size":
        entry.size = draw(st.sampled_from((0, 1, entry.size // 2, 2**33 - 1, 2**20)))
    elif what == "pax" and form == tarfile.PAX_FORMAT:
        key = draw(st.sampled_from(PAX_KEYS))
        entry.pax_headers = {key: str(draw(texts)).encode("utf-8", "replace").decode()}
    elif what == "mode":
        entry.mode, entry.mtime, entry.uid = 0o7777, 2**33, 2**21
    return 2 if what == "twice" else 1


def copied(intact: Path, folder: Path) -> Path:
    """Copy an intact folder to another place, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(intact, folder)
