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
        kinds += [yaml_line, *[yaml_value] * 3]
    elif file.suffix == ".npz":
        kinds += [npz_array] * 4
    elif file.suffix == ".safetensors":
        kinds += [tensor] * 4
    kind = draw(st.sampled_from(kinds))
    said = kind(draw, file, secret)
    return f"{kind.__name__} of {file.relative_to(folder)}: {said}"


def json_value(draw: Draw, file: Path, _: Path) -> str:
    """Replace, remove or add a value of a JSON file, at any depth."""
    try:
        tree = json.loads(file.read_text())
    except (ValueError, RecursionError):
        return "no JSON any more"
    said, text = _json_value(draw, tree)
    file.write_text(text)
    return said


def _json_value(draw: Draw, tree: Any) -> tuple[str, str]:
    """Change a value of a tree; return what was changed, and the tree as JSON."""
    if not isinstance(tree, dict) or not tree:
        return "nothing", json.dumps(tree)
    section, keys = _somewhere(draw, tree)
    key = keys[-1]
    what = draw(st.sampled_from((*["replace"] * 3, "remove", "rename", *RAW)))
    if what == "remove":
        del section[key]
    elif what == "rename" and isinstance(section, dict):
        section[draw(names)] = section.pop(key)
    elif what in RAW:
        section[key] = "RAW"
    else:
        section[key] = draw(values)
    text = json.dumps(tree).replace('"RAW"', RAW.get(what, ""))
    return f"{what} {'.'.join(map(str, keys))}", text


def _somewhere(draw: Draw, tree: Any) -> tuple[Any, list[Any]]:
    """Return a section of a tree, and the path of one of its values."""
    section, keys = tree, []
    while True:
        there = list(section) if isinstance(section, dict) else range(len(section))
        keys.append(draw(st.sampled_from(there)))
        below = section[keys[-1]]
        if not isinstance(below, dict | list) or not below or draw(st.integers(0, 3)) == 0:
            return section, keys
        section = below


def csv_cell(draw: Draw, file: Path, _: Path) -> str:
    """Replace a cell of a CSV file, or double or remove one of its lines or columns."""
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    number = draw(st.integers(0, max(0, len(lines) - 2)))
    cells = lines[number].split(",")
    place = draw(st.integers(0, len(cells) - 1))
    kinds = (*["replace"] * 4, "double", "remove", "column", "longer", "quoted", "field")
    what = draw(st.sampled_from(kinds))
    if what == "double":
        lines.insert(number, lines[number])
    elif what == "remove":
        del lines[number]
    elif what == "column":  # of all lines
        cut = [line.split(",") for line in lines if line]
        lines = [",".join([*line[:place], *line[place + 1 :]]) for line in cut] + [""]
    elif what == "longer":
        lines[number] += "," + draw(texts)
    else:
        cells[place] = draw(texts)
        if what == "quoted":
            cells[place] = '"' + cells[place].replace('"', '""') + '"'
        elif what == "field":  # longer than Python's csv reads
            cells[place] = "x" * 140_000
        lines[number] = ",".join(cells)
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    return f"{what} line {number}, cell {place}"


def yaml_line(draw: Draw, file: Path, _: Path) -> str:
    """Replace the value in a line of a YAML file, or put YAML of another kind there."""
    lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    number = draw(st.integers(0, max(0, len(lines) - 2)))
    key = lines[number].partition(":")[0]
    value = draw(st.one_of(values.map(json.dumps), st.sampled_from(YAML)))
    lines[number] = f"{key}: {value}"
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    return f"line {number}: {lines[number][:60]!r}"


YAML: Final = (
    *("!!python/object/apply:os.system ['touch x']", "&a [*a]", "*a", "!!int x", "0x10", "[" * 100),
    *("|\n  a\n  b", "{a: 1, a: 2}", "{<<: {a: 1}}", "'", "\t", "%YAML 1.1", "1:30"),
)
"""YAML that `json.dumps` does not write."""


def yaml_value(draw: Draw, file: Path, _: Path) -> str:
    """Replace, remove or rename a value of a YAML file, at any depth."""
    try:
        tree = yaml.safe_load(file.read_text())
    except (ValueError, RecursionError, yaml.YAMLError):
        return "no YAML any more"
    if not isinstance(tree, dict) or not tree:
        return "nothing"
    section, keys = _somewhere(draw, tree)
    what = draw(st.sampled_from((*["replace"] * 4, "remove", "rename", "add")))
    if what == "remove":
        del section[keys[-1]]
    elif what == "rename" and isinstance(section, dict):
        section[draw(names)] = section.pop(keys[-1])
    elif what == "add" and isinstance(section, dict):
        section[draw(names)] = draw(values)
    else:
        section[keys[-1]] = draw(values)
    text = json.dumps(tree) if draw(st.booleans()) else yaml.safe_dump(tree, allow_unicode=True)
    file.write_bytes(text.encode("utf-8", "replace"))
    return f"{what} {'.'.join(map(str, keys))}"


HEADERS: Final = (
    "{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999, 99999)}",
    "{'descr': '<i4', 'fortran_order': False, 'shape': (-1, 3)}",
    "{'descr': [('a', '<i4', (99999, 99999))], 'fortran_order': 0, 'shape': (3,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
    "__import__('os')",
    "(" * 5000,
)
"""Headers of NPY files that `numpy.save` does not write."""


def npz_array(draw: Draw, file: Path, _: Path) -> str:
    """Change an array of an NPZ file, its header or its entry."""
    try:
        with zipfile.ZipFile(file) as old:
            entries = {one.filename: old.read(one) for one in old.infolist()}
    except (ValueError, OSError, zipfile.BadZipFile):
        return "no NPZ any more"
    if not entries:
        return "nothing"
    name = draw(st.sampled_from(sorted(entries)))
    kinds = ("array", "pickle", "header", "cut", "bomb", "name", "add")
    what = draw(st.sampled_from(kinds))
    content = entries[name]
    if what == "array":
        shape = draw(st.sampled_from(((), (0,), (3,), (3, 3), (0, 3), (1, 2, 3), (10**5,))))
        kind = draw(
            st.sampled_from(("i1", "u8", "f4", "?", "U3", "S3", "c16", "M8[s]", ">i4", "V3"))
        )
        content = _npy(np.zeros(shape, kind) + (kind == "i1"))
    elif what == "pickle":
        content = _npy(np.array([{"a": 1}], object))
    elif what == "header":
        new = draw(st.sampled_from(HEADERS))
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(new) + 1) + new.encode() + b"\n"
        content += bytes(40)
    elif what == "cut":
        content = content[: draw(st.integers(0, len(content)))]
    elif what == "bomb":
        content = _npy(np.zeros((2**22, 3), np.int32))
    target = name
    if what in ("name", "add"):
        target = draw(names).replace("\0", "") or "x"
        if what == "name":
            del entries[name]
    entries[target] = content
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new_file:
        for one, bytes_of in entries.items():
            new_file.writestr(one.encode("utf-8", "replace").decode(), bytes_of)
    return f"{what} of {name}"


def _npy(array: Any) -> bytes:
    """Return an array as an NPY file."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=True)
    return content.getvalue()


def tensor(draw: Draw, file: Path, _: Path) -> str:
    """Change the header of a safetensors file: a tensor, the metadata, or its length."""
    content = file.read_bytes()
    try:
        length = struct.unpack("<Q", content[:8])[0]
        tree = json.loads(content[8 : 8 + length])
        metadata = tree.get("__metadata__", {})
    except (ValueError, AttributeError, RecursionError, struct.error, MemoryError):
        return "no safetensors any more"
    data = content[8 + length :]
    what = draw(st.sampled_from(("header", "header", "metadata", "offsets", "shape", "length")))
    tensors = sorted(name for name in tree if name != "__metadata__")
    said, text = "nothing", json.dumps(tree)
    if what == "header":
        said, text = _json_value(draw, tree)
    elif what == "metadata" and isinstance(metadata, dict) and metadata:
        key = draw(st.sampled_from(sorted(metadata)))
        try:
            said, metadata[key] = _json_value(draw, json.loads(metadata[key]))
        except (TypeError, ValueError, RecursionError):
            metadata[key] = str(draw(values))
        text = json.dumps(tree)
    elif what in ("offsets", "shape") and tensors:
        one = tree[draw(st.sampled_from(tensors))]
        if isinstance(one, dict):
            numbers = st.sampled_from((0, 1, 4, 8, 2**31, 2**62, 2**64, -1, len(data)))
            key = "data_offsets" if what == "offsets" else "shape"
            one[key] = draw(st.lists(numbers, max_size=4))
        text = json.dumps(tree)
    header = text.encode("utf-8", "replace")
    claimed = (
        draw(st.sampled_from((0, 1, 2**31, 2**63, 10**8))) if what == "length" else len(header)
    )
    file.write_bytes(struct.pack("<Q", claimed) + header + data)
    return f"{what}: {said}"


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
        name = draw(names).replace("\0", "?").replace("/", "?").encode("utf-8", "replace").decode()
        target = file.parent.with_name(name.strip(" .")[:60] or "x")
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


def archive(draw: Draw, folder: Path, target: Path) -> str:
    """Write the files of a folder into an archive, with some of its entries or bytes changed."""
    form = draw(st.sampled_from((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)))
    found = sorted(one for one in folder.rglob("*") if one.is_file() and not one.is_symlink())
    found = [one for one in found if one.name in KNOWN and one.stat().st_size < 2**22]
    chosen = draw(st.integers(-len(found), len(found)))  # half of the archives have intact entries
    content, said = io.BytesIO(), "nothing"
    with tarfile.open(fileobj=content, mode="w", format=form, errors="replace") as new:
        for number, one in enumerate(found):
            entry = tarfile.TarInfo(one.relative_to(folder.parent).as_posix())
            bytes_of = one.read_bytes()
            entry.size = len(bytes_of)
            if number == chosen:
                said = _entry(draw, entry, form)
            _add(new, entry, bytes_of)
            if number == chosen and "twice" in said:
                _add(new, entry, bytes_of)
    changed = bytearray(content.getvalue())
    if draw(st.integers(0, 5)) == 0 and changed:
        said += " and bytes"
        for _ in range(draw(st.integers(1, 3))):  # mostly of headers
            where = draw(st.integers(0, len(changed) // 512 - 1)) * 512 + draw(st.integers(0, 511))
            new_bytes = draw(st.binary(min_size=1, max_size=4))
            changed[where : where + len(new_bytes)] = new_bytes
    target.write_bytes(lzma.compress(bytes(changed), preset=0))
    return said


PAX_KEYS: Final = (
    *("path", "linkpath", "size", "mtime", "uid", "hdrcharset", "x", "GNU.sparse.major"),
    *("GNU.sparse.size", "GNU.sparse.map", "GNU.sparse.name", "GNU.sparse.realsize"),
)


def _add(new: tarfile.TarFile, entry: tarfile.TarInfo, content: bytes) -> None:
    with suppress(ValueError, OverflowError, TypeError):  # the form cannot hold this entry
        new.addfile(entry, io.BytesIO(content) if entry.size <= len(content) else None)


def _entry(draw: Draw, entry: tarfile.TarInfo, form: int) -> str:
    """Change an entry of an archive; return what was changed."""
    what = draw(st.sampled_from(("type", "name", "size", "pax", "twice", "mode")))
    where = Path(entry.name)
    if what == "type":
        kinds = b"\x00012345679gxLKSDMNVX\xff"
        entry.type = bytes([draw(st.sampled_from(kinds))])
        entry.linkname = draw(st.sampled_from(("/etc/passwd", "../../secret", "x", entry.name)))
    elif what == "name":
        name = draw(names).replace("\0", "").encode("utf-8", "replace").decode()
        entry.name = draw(
            st.sampled_from(
                (
                    *(f"{name[:90]}/{where.name}", f"../{where.name}", f"/tmp/{where.name}"),
                    *(f"{where.parent}/{name[:90]}", "a/" * 40 + where.name, f"./{where}"),
                    *(f"{where}/{where.name}", f"{where.parent}/../../{where.name}"),
                )
            )
        )
    elif what == "size":
        entry.size = draw(st.sampled_from((0, 1, entry.size // 2, 2**33 - 1, 2**20)))
    elif what == "pax" and form == tarfile.PAX_FORMAT:
        key = draw(st.sampled_from(PAX_KEYS))
        entry.pax_headers = {key: str(draw(texts)).encode("utf-8", "replace").decode()}
    elif what == "mode":
        entry.mode, entry.mtime, entry.uid = 0o7777, 2**33, 2**21
    return f"{what} of {where.name}"


def copied(intact: Path, folder: Path) -> Path:
    """Copy an intact folder to another place, which is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(intact, folder)
