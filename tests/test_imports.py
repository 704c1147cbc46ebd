"""Imports go one way, and the rooms that must stay light do."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "flbench"

# A room may import itself, the vocabulary, and the rooms named here.
VOCABULARY = {
    "types",
    "tree",
    "rng",
    "registry",
    "errors",
    "config",
    "layers",
    "wire",
    "yaml_text",
    "files",
}
ROOMS = {
    "types": set(),
    "tree": {"types"},
    "rng": set(),
    "wire": {"tree", "types"},
    "files": {"errors"},
    "losses": VOCABULARY,
    "models": VOCABULARY,
    "data": VOCABULARY,
    "client": VOCABULARY | {"losses", "models"},
    "engine": VOCABULARY | {"losses", "models", "data", "client"},
    "algorithms": VOCABULARY | {"losses", "models", "client"},
    "metrics": VOCABULARY,
    "checkpoint": VOCABULARY,
}
HEAVY = {"lightning", "ray", "mlflow", "optuna", "matplotlib", "torchmetrics"}
MAY_IMPORT = {
    "lightning": {"client/module.py", "engine/sequential.py", "engine/workbench.py"},
    "matplotlib": {"reports/pictures.py", "reports/study_pictures.py"},
    "ray": {
        "engine/ray.py",
        *(
            f"search/{name}.py"
            for name in ("cluster", "queue", "run", "schedulers", "watch", "worker")
        ),
    },
}


def imports(file: Path, *, top_only: bool) -> set[str]:
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(room: str) -> list[Path]:
    single = PACKAGE / f"{room}.py"
    return [single] if single.exists() else sorted((PACKAGE / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_from_rooms_below_it(room):
    for file in files(room):
        for name in imports(file, top_only=True):
            parts = name.split(".")
            if parts[0] == "flbench" and len(parts) > 1:
                assert parts[1] in ROOMS[room] | {room}, f"{file.name} imports {name}"


def test_a_method_never_imports_an_engine_lightning_ray_or_mlflow():
    for file in files("algorithms"):
        for name in imports(file, top_only=False):
            assert not name.startswith(
                ("flbench.engine", "flbench.rounds", "flbench.loop", "flbench.data", *HEAVY)
            ), f"{file}: {name}"
            assert name != "flbench.client.module"


def test_heavy_libraries_are_imported_at_the_top_only_where_they_are_the_matter():
    for file in PACKAGE.rglob("*.py"):
        for name in imports(file, top_only=True):
            library = name.split(".")[0]
            if library in HEAVY:
                place = file.relative_to(PACKAGE).as_posix()
                assert place in MAY_IMPORT.get(library, set()), f"{place} imports {name}"


def test_no_name_of_a_method_is_tested_outside_its_file():
    """No `if algorithm == ...` anywhere."""
    from flbench.algorithms import ALGORITHMS

    names = set(ALGORITHMS.load())
    for file in PACKAGE.rglob("*.py"):
        if "algorithms" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Compare):
                constants = {
                    c.value for c in (node.left, *node.comparators) if isinstance(c, ast.Constant)
                }
                assert not constants & names, f"{file.name}:{node.lineno}"


def test_a_methods_file_is_short():
    for file in (PACKAGE / "algorithms").glob("*.py"):
        if file.stem not in ("base", "registry", "__init__"):
            assert len(file.read_text().splitlines()) <= 150, file.name


def test_support_folders_are_no_packages():
    root = PACKAGE.parent
    for name in ("mlflow", "tune", "configs"):
        assert not (root / name / "__init__.py").exists()
