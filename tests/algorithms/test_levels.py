"""A method imports from the modules that the guide teaches."""

import ast
import re
from pathlib import Path

import flbench.algorithms

FOLDER = Path(flbench.algorithms.__file__).parent
NO_METHODS = {"__init__", "base", "catalogue", "registry", "setting"}
METHODS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NO_METHODS)


def test_a_method_imports_from_the_modules_that_the_guide_teaches(subtests):
    for name in METHODS:
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        modules = {node.module for node in imports if str(node.module).startswith("flbench")}
        of_variants = {f"flbench.algorithms.{other}" for other in METHODS}

        others = {
            module
            for module in modules - of_variants - {"flbench.algorithms", "flbench.client.batchnorm"}
            if not re.fullmatch(r"flbench\.(losses|algorithms\.shared)(\.\w+)?", module)
        }
        with subtests.test(method=name):
            assert re.search(r"^import flbench\.algorithms as fl$", text, re.M)
            assert others == set()
