"""Archives of strangers, within limits, and own archives, which name no folders."""

import io
import lzma
import tarfile
from time import perf_counter

import pytest

from flbench.core import archives
from flbench.core.errors import DataError

KNOWN = ("config.yaml", "summary.json").__contains__


def entry(name, content=b"x", **fields):
    """An entry of an archive, and its content."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def packed(path, *entries, form=tarfile.PAX_FORMAT):
    """Write an archive of these entries."""
    with tarfile.open(path, "w:xz", format=form) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content) if content is not None else None)
    return path


def link(name, target, kind=tarfile.SYMTYPE):
    return entry(name, b"", type=kind, linkname=target)


def unpacked(file, tmp_path):
    """Unpack an archive into a folder; return the folder."""
    folder = tmp_path / "inside" / "folder"
    folder.mkdir(parents=True)
    archives.unpack(file, folder, KNOWN)
    return folder


def everything(tmp_path):
    """All files and links below the test's folder."""
    return {one for one in tmp_path.rglob("*") if one.is_symlink() or not one.is_dir()}


def test_files_of_an_archive_are_written(tmp_path):
    file = packed(
        tmp_path / "a.tar.xz",
        entry("run", b"", type=tarfile.DIRTYPE, mode=0),
        entry("run/config.yaml", b"seed: 1", mode=0o4777),
        entry("run/deeper/summary.json", b"{}"),
    )

    folder = unpacked(file, tmp_path)

    assert (folder / "run" / "config.yaml").read_bytes() == b"seed: 1"
    assert (folder / "run" / "deeper" / "summary.json").read_bytes() == b"{}"
    assert (folder / "run" / "config.yaml").stat().st_mode & 0o7022 == 0


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}

REFUSED = {
    "folder above": [entry("../config.yaml")],
    "folder above, within": [entry("run/../../config.yaml")],
    "link": [link("config.yaml", "/etc/passwd")],
    "link to a folder, and a file below it": [link("run", "/tmp"), entry("run/config.yaml")],
    "hard link": [entry("config.yaml"), link("summary.json", "config.yaml", tarfile.LNKTYPE)],
    "pipe": [entry("config.yaml", b"", type=tarfile.FIFOTYPE)],
    "device": [entry("config.yaml", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "sparse": [entry("config.yaml", b"0\n" + bytes(510), pax_headers=SPARSE)],
    "another kind": [entry("config.yaml", type=b"V")],
    "long header": [entry("config.yaml", pax_headers={"comment": "x" * 2**21})],
    "unknown file": [entry("run/uuid.py")],
    "known name of a folder alone": [entry("config.yaml/evil.py")],
    "the folder itself": [entry(".")],
    "twice": [entry("config.yaml"), entry("./config.yaml")],
    "a file as a folder": [entry("config.yaml"), entry("config.yaml/summary.json")],
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_run_has_is_refused(case, tmp_path):
    file = packed(tmp_path / "a.tar.xz", *REFUSED[case])
    before = everything(tmp_path)

    with pytest.raises(DataError, match=r"a\.tar\.xz"):
        unpacked(file, tmp_path)

    inside = tmp_path / "inside" / "folder"
    new = everything(tmp_path) - before
    assert all(one.is_relative_to(inside) and not one.is_symlink() for one in new)
    assert {one.name for one in new} <= {"config.yaml"}


def test_absolute_path_is_written_below_the_folder(tmp_path):
    file = packed(tmp_path / "a.tar.xz", entry(f"{tmp_path}/config.yaml"))

    folder = unpacked(file, tmp_path)

    assert (folder / f"{tmp_path}/config.yaml".lstrip("/")).is_file()
    assert not (tmp_path / "config.yaml").exists()


def test_link_that_gnu_tar_hides_behind_a_long_name_is_refused(tmp_path):
    name = "/".join(["d" * 200] * 3) + "/config.yaml"
    file = packed(tmp_path / "a.tar.xz", link(name, "../" * 40 + "etc"), form=tarfile.GNU_FORMAT)

    with pytest.raises(DataError, match=r"a\.tar\.xz"):
        unpacked(file, tmp_path)


@pytest.mark.parametrize("limit", ["content", "entries", "file"])
def test_sizes_and_numbers_have_limits(limit, tmp_path, monkeypatch):
    zeros = bytes(2**20)
    entries = [entry(f"{k}/config.yaml", zeros) for k in range(5)]
    file = packed(tmp_path / "a.tar.xz", *entries)
    assert file.stat().st_size * archives.LARGEST_RATIO < 5 * len(zeros)
    name, value = {
        "content": ("SMALL", 2**20),
        "entries": ("MOST_FILES", 3),
        "file": ("LARGEST_FILE", 2**20 - 1),
    }[limit]
    monkeypatch.setattr(archives, name, value)

    with pytest.raises(DataError, match=r"a\.tar\.xz"):
        unpacked(file, tmp_path)

    assert sum(one.stat().st_size for one in everything(tmp_path / "inside")) < 4 * len(zeros)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no archive",
        lzma.compress(b"no tar" * 500),
        lzma.compress(b""),
        lzma.compress(
            b"", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**30, "mode": lzma.MODE_FAST,
                           "mf": lzma.MF_HC3}]
        ),
    ],
    ids=["empty", "text", "no tar", "nothing", "gibibyte of memory"],
)  # fmt: skip
def test_damaged_archive_is_an_error_or_empty(content, tmp_path):
    file = tmp_path / "a.tar.xz"
    file.write_bytes(content)

    with pytest.raises(DataError, match=r"a\.tar\.xz"):
        unpacked(file, tmp_path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_archive_that_ends_early_is_an_error(share, tmp_path):
    file = packed(tmp_path / "a.tar.xz", entry("config.yaml", bytes(range(256)) * 100))
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(DataError, match=r"a\.tar\.xz"):
        unpacked(file, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file:///home/ann/mlruns/x", "file:x"),
        ("sqlite:////home/ann/runs.db?timeout=9", "sqlite:runs.db?timeout=9"),
        ("/home/ann smith/my data/x.npz: row 3", "x.npz: row 3"),
        ("see '/home/ann/data/x'.", "see 'x'."),
        ("PYTHONPATH=/home/ann/a:/home/ann/b", "PYTHONPATH=b"),
        ("(~/private/x), ~ann/private/y", "(x), y"),
        ("//home//ann//x", "x"),
        *((same, same) for same in ("http://127.0.0.1:5000/a/b", "s3://bucket/a/b")),
        *((same, same) for same in ("a/b/c.yaml:3", "../x/y", "1/2", "3 of /")),
    ],
)
def test_paths_lose_their_folders(text, said):
    assert archives.without_folders({"key": [text]}) == {"key": [said]}
    assert "ann" not in str(archives.without_folders({text: text}))


def test_words_of_commands_may_have_spaces():
    command = "/opt/env/bin/flbench run '--config=/home/ann/a b/x.yaml' data.root=/home/ann/d"

    found = archives.without_folders({"command": command})

    assert found == {"command": "flbench run --config=x.yaml data.root=d"}


@pytest.mark.parametrize("piece", ["a.", "/", "/a", " ", "~a", "a:/", "'/", "/a b", "file://"])
def test_long_texts_do_not_take_long(piece):
    begin = perf_counter()

    archives.without_folders(piece * 20_000)

    assert perf_counter() - begin < 5


def test_file_after_a_large_one_is_read(tmp_path):
    large = bytes(3 * 2**20 + 5)
    file = packed(
        tmp_path / "a.tar.xz", entry("a/config.yaml", large), entry("b/config.yaml", b"end")
    )

    assert (unpacked(file, tmp_path) / "b" / "config.yaml").read_bytes() == b"end"
