"""The base of run folders and study folders."""

from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import pytest

from flbench.core import locked_folder
from flbench.core.errors import UserError
from flbench.core.locked_folder import LockedFolder


class Notebook(LockedFolder):
    marker = "index.txt"
    option = "notes.dir"

    @classmethod
    def command_to_resume(cls, path):
        return f"notebook --resume {path}"


@pytest.mark.slow
def test_folders_of_the_same_name_are_different_and_locked(tmp_path):
    one, other = (Notebook.make(tmp_path / "all", "mine", "pages") for _ in range(2))

    assert one.path != other.path
    assert one.path.parent == other.path.parent == tmp_path / "all"
    assert one.path.name.startswith("mine-")
    assert {entry.name for entry in one.path.iterdir()} == {"pages", ".lock"}
    again = Notebook(one.path)
    with pytest.raises(UserError, match="mine-"):
        again.lock()
    one.close()
    again.lock()
    again.close()
    other.close()


@pytest.mark.slow
def test_folders_of_processes_that_start_in_the_same_second_are_different(tmp_path, monkeypatch):
    class Clock:
        @staticmethod
        def now():
            return datetime(2026, 1, 1)

    monkeypatch.setattr(locked_folder, "datetime", Clock)

    def make_all(where):
        made = [Notebook.make(tmp_path, "mine", "pages") for _ in range(400)]
        Path(where).write_text("\n".join(one.path.name for one in made))

    lists = [tmp_path / "one.txt", tmp_path / "other.txt"]
    processes = [get_context("fork").Process(target=make_all, args=(one,)) for one in lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    names = [name for one in lists for name in one.read_text().splitlines()]

    assert len(set(names)) == len(names) == 800


def test_folder_that_cannot_be_made_names_the_option(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(UserError, match=r"`notes\.dir`"):
        Notebook.make(tmp_path / "file", "mine", "pages")
