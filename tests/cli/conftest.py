"""Fixtures of the tests of commands."""

import pytest

from flbench.cli import app


@pytest.fixture
def flbench(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; return exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object) -> tuple[int, str, str]:
        code = app.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command
