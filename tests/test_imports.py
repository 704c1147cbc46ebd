"""Heavy libraries are imported where they are used; `lint-imports` checks the layers."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "flbench"

HEAVY = {"lightning", "ray", "mlflow", "optuna", "matplotlib", "torchmetrics"}
MAY_IMPORT = {
    "lightning": {"core/lightning.py"},
    "torchmetrics": {"core/lightning.py"},
    "matplotlib": {
        *("reports/data_figures.py", "reports/run.py", "reports/picture.py"),
        "tuning/study_figures.py",
        "analysis/figures.py",
    },
    "ray": {
        *("workers/actor_pool.py", "workers/ray_session.py"),
        *(f"tuning/{name}.py" for name in ("search", "ray_tune")),
    },
}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imports(file: Path, *, top_only: bool) -> set[str]:
    tree = tree_of(file)
    nodes = tree.body if top_only else ast.walk(tree)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.slow
def test_heavy_libraries_are_imported_at_the_top_only_where_they_are_the_matter():
    for file in PACKAGE.rglob("*.py"):
        for name in imports(file, top_only=True):
            library = name.split(".")[0]
            if library in HEAVY:
                place = file.relative_to(PACKAGE).as_posix()
                assert place in MAY_IMPORT.get(library, set()), f"{place} imports {name}"


@pytest.mark.slow
def test_no_name_of_a_method_is_tested_outside_its_file():
    """No `if algorithm == ...` anywhere."""
    from flbench.algorithms import ALGORITHMS

    names = set(ALGORITHMS.load())
    for file in PACKAGE.rglob("*.py"):
        if "algorithms" in file.parts:
            continue
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Compare):
                constants = {
                    c.value for c in (node.left, *node.comparators) if isinstance(c, ast.Constant)
                }
                assert not constants & names, f"{file.name}:{node.lineno}"


@pytest.mark.slow
@pytest.mark.processes
def test_the_vectorized_engine_needs_no_lightning():
    """Importing Lightning takes a second of each worker process."""
    modules = "flbench.experiment.assembly, flbench.experiment.lifecycle, flbench.tuning.trial"
    code = f"import sys, flbench.engine.vectorized, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "torch" in loaded
    assert not loaded & {"lightning", "torchmetrics", "torchvision"}


@pytest.mark.slow
@pytest.mark.processes
def test_lightning_is_imported_without_packages_of_metrics_that_are_not_used():
    """TorchMetrics imports them for BERTScore, images and speech: a second of each process."""
    code = """if True:
        import sys, flbench.core.lightning
        print(*sys.modules)
        from torchmetrics.functional.image.arniqa import resnet50
        import torchvision
        assert resnet50.__wrapped__ is torchvision.models.resnet50.__wrapped__
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert {"lightning", "torchmetrics.text"} <= loaded
    assert not loaded & {"transformers", "torchvision", "scipy.signal"}
