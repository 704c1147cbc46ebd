"""Paths that are not regular files, and texts that cannot be stored in a file."""

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Timer

import pytest
from filelock import FileLock

from flbench.core import files
from flbench.core.errors import MAX_MESSAGE, UserError, shortened


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")

    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(OSError, match=path.name):
            files.read_text(path)


def test_file_above_the_limit_is_not_read(tmp_path):
    file = tmp_path / "x"
    file.write_text("12345")

    assert files.read_text(file, 5) == "12345"
    with pytest.raises(OSError, match="x"):
        files.read_text(file, 4)


def test_a_short_look_at_the_lock_by_another_process_does_not_matter(tmp_path):
    other = FileLock(tmp_path / ".lock", thread_local=False)
    other.acquire()
    Timer(files.LOCK_SECONDS / 5, other.release).start()

    files.lock_folder(tmp_path).release()

    assert not other.is_locked


def test_a_lock_is_free_when_its_process_is_killed(tmp_path):
    code = f"""if True:
        from pathlib import Path
        from flbench.core.files import lock_folder
        lock = lock_folder(Path({str(tmp_path)!r}))
        print("locked", flush=True)
        input()
    """
    process = Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    assert files.is_locked(tmp_path)
    with pytest.raises(UserError, match=tmp_path.name):
        files.lock_folder(tmp_path)

    process.kill()
    process.communicate()

    assert not files.is_locked(tmp_path)
    files.lock_folder(tmp_path).release()


@pytest.mark.parametrize("length", [MAX_MESSAGE - 1, MAX_MESSAGE, MAX_MESSAGE + 1, 10**6])
def test_long_text_loses_its_middle(length):
    text = "begin" + "x" * (length - 8) + "end"

    short = shortened(text)

    assert len(short) <= MAX_MESSAGE
    assert (short == text) == (length <= MAX_MESSAGE)
    assert short.startswith("begin")
    assert short.endswith("end")


@pytest.mark.parametrize("name", ["summary.json.part", ".lock"])
def test_links_of_a_folder_lead_to_no_other_file(name, tmp_path):
    other = tmp_path / "other"
    other.write_text("of somebody else")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(other)

    if name == ".lock":
        with pytest.raises(UserError, match="run"):
            files.lock_folder(folder)
    else:
        files.write(folder / "summary.json", b"{}")

    assert other.read_text() == "of somebody else"


@pytest.fixture
def private(tmp_path):
    """A file of the user, to which links of somebody else lead."""
    file = tmp_path / "private"
    file.write_text("secret")
    return file


@pytest.mark.parametrize(
    "attempt",
    [
        lambda link: FileLock(link).acquire(),
        lambda link: open(link, "ab", opener=files.not_a_link).close(),
        lambda link: open(link, "w", opener=files.not_a_link).close(),
    ],
)
def test_link_is_not_written_to(attempt, private):
    link = private.with_name("link")
    link.symlink_to(private)

    with pytest.raises((OSError, UserError), match="link"):
        attempt(link)

    assert private.read_text() == "secret"
