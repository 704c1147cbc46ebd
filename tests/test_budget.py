"""The budgets of `pyproject.toml`: lines of each package, and of what a run imports."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUDGET = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["flbench"]

RUN = """
import json, sys
import flbench as fl
fl.run("fedavg", model={"name": "mlp"}, partition={"clients": 3, "samples": 90},
       train={"rounds": 1}, engine={"name": "sequential", "workers": 1},
       tracking={"mlflow": False}, output={"dir": sys.argv[1]})
assert "sklearn" not in sys.modules  # with SciPy it takes a second, and nothing uses it
files = [one.__file__ for name, one in sys.modules.items() if name.partition(".")[0] == "flbench"]
print(json.dumps(files))
"""


def lines(file):
    return len(Path(file).read_text("utf-8").splitlines())


def table(budget, found):
    """Return a line for each number that is above or below its budget."""
    names = [name for name in budget | found if found.get(name, 0) != budget.get(name, 0)]
    return "\n".join(f"{name:12} {found.get(name, 0)} of {budget.get(name, 0)}" for name in names)


def test_no_package_has_more_lines_than_its_budget():
    found = {"top": sum(map(lines, (ROOT / "flbench").glob("*.py")))}
    for folder in sorted((ROOT / "flbench").iterdir()):
        if files := list(folder.rglob("*.py")):
            found[folder.name] = sum(map(lines, files))
    budget = BUDGET["lines"]
    assert all(found[name] <= budget.get(name, 0) for name in found), "\n" + table(budget, found)


@pytest.mark.slow
def test_a_run_imports_no_more_than_its_budget(tmp_path):
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=tmp_path, check=True,
                          stdout=subprocess.PIPE, text=True)  # fmt: skip
    files = json.loads(done.stdout.splitlines()[-1])
    found = {"modules": len(files), "lines": sum(map(lines, files))}
    assert all(found[name] <= BUDGET["run"][name] for name in found), "\n" + table(
        BUDGET["run"], found
    )
