"""Names from users' files and folders: no escape sequence reaches a terminal, markup is text."""

import csv
import shutil

import pytest
from rich.table import Table

from flbench.cli import app, console
from flbench.experiment.run_folder import RunFolder
from flbench.reports.terminal import open_console

NAME = "\x1b[31m[bold red]=1+1[/bold red] :x: \x9b2J\r"
SHOWN = r"\x1b[31m[bold red]=1+1[/bold red] :x: \x9b2J\r"


def raw(text: str) -> list[str]:
    """Return the control characters of a text."""
    return [sign for sign in text if (ord(sign) < 32 and sign != "\n") or 127 <= ord(sign) < 160]


def renamed(run, folder, name=NAME):
    """Copy a run to a folder of that name, and give its first class the name too."""
    path = shutil.copytree(run, folder / name)
    with (path / "per_class.csv").open(encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    for line in lines:
        line[2] = name if line[1] == "0" else line[2]
    RunFolder(path).write_table("per_class.csv", header, lines)
    return path


def test_names_of_classes_and_folders_are_shown_without_control_characters(
    finished_run, tmp_path, capsys
):
    path = renamed(finished_run, tmp_path)

    code = app.main(["show", str(path)])

    said = capsys.readouterr()
    assert code == 0, said.err
    assert not raw(said.out + said.err)
    assert SHOWN in said.out  # in the table of classes
    assert str(tmp_path / SHOWN) in said.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", NAME],
        ["sync", NAME],
        ["run", "--config", NAME],
        ["run", f"data.path={NAME}"],
        ["run", f"{NAME}=1"],
        ["run", "--algo", NAME],
        ["run", f"--{NAME}"],
        ["ui", "--port", NAME],
        [NAME],
        ["algos", NAME],
        ["data", NAME],
        ["reproduce", NAME],
    ],
)
def test_errors_repeat_no_control_characters(arguments, capsys):
    code = app.main(arguments)

    said = capsys.readouterr()
    assert code == 2
    assert not raw(said.out + said.err)


def test_configuration_file_cannot_add_lines_to_what_is_written(tmp_path, capsys):
    file = tmp_path / "a\nseed: 7\n\x1b[31m.yaml"
    file.write_text("train: {rounds: 3}\n")

    code = app.main(["run", "--print-config", "--config", str(file)])

    said = capsys.readouterr().out
    assert code == 0
    assert not raw(said)
    assert "\nseed: 7" not in said


def test_lines_and_tables_are_printed_as_they_are_but_for_control_characters(capsys):
    table = Table(title=NAME, caption=NAME)
    table.add_column(NAME)
    table.add_row(NAME)

    open_console().print(table)
    console.line(NAME)
    console.notes([NAME])

    said = capsys.readouterr()
    assert (said.out + said.err).count(SHOWN) == 6
    assert not raw(said.out + said.err)


def test_errors_and_configurations_show_no_password(tmp_path, capsys):
    address = "http://ann:s3cret@127.0.0.1:9"
    file = tmp_path / "mine.yaml"
    file.write_text(f"tracking: {{uri: '{address}'}}\n")

    codes = [
        app.main(["run", "--print-config", f"tracking.uri={address}"]),
        app.main(["run", "--print-config", "--config", str(file)]),
        app.main(["run", f"tracking={{uri: [{address}]}}"]),
        app.main(["run", f"tracking.url={address}"]),
        app.main(["ui", "--port", address]),
    ]

    said = capsys.readouterr()
    assert codes == [0, 0, 2, 2, 2]
    assert "s3cret" not in said.out + said.err
    assert said.out.count("uri: http://***@127.0.0.1:9") == 2
