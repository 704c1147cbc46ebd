"""A method that changes the loss, or what is shared, needs at most seven names of flbench."""

import ast
import re
from pathlib import Path

import pytest
import torch

import flbench.algorithms
from flbench.algorithms import ALGORITHMS
from tests.support import build, run, summary_of_run

pytestmark = pytest.mark.slow

README = Path(__file__).resolve().parents[2] / "README.md"

# Level 1: another loss. Confident predictions are penalized (Pereyra et al., 2017).
ENTROPY = '''
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from flbench.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmConfig,
    Communication,
    Paper,
    Context,
)
from flbench.losses import CrossEntropy


@dataclass(frozen=True)
class NegativeEntropy:
    """Mean over the batch of sum_c p_c log p_c, where p are the predicted probabilities."""

    weight: float

    def __call__(self, context: Context) -> Tensor:
        log_p = context.out.logits.log_softmax(dim=1)  # [B, C]
        terms = (log_p.exp() * log_p).sum(dim=1)  # [B]
        mask = context.batch.mask  # [B], False for padding
        return torch.where(mask, terms, 0.0).sum() / mask.sum().clamp_min(1)


class EntropyConfig(AlgorithmConfig):
    """Keys of this method."""

    beta: float = Field(0.1, ge=0, description="factor of the penalty")


@ALGORITHMS.register("entropy")
class EntropyPenalty(Algorithm):
    """Local loss: cross entropy + beta sum_c p_c log p_c; the server averages as FedAvg does."""

    Config = EntropyConfig
    paper = Paper("Regularizing Neural Networks by Penalizing", "Pereyra et al.", "ICLR-W 2017")
    communication = Communication(down="w", up="w", keeps="nothing")

    def terms(self):
        return (CrossEntropy(), NegativeEntropy(weight=self.config.beta))
'''

# Level 2: other parameters and buffers are shared. Every client keeps its first layer.
FIRST_LAYER = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
EXAMPLES = {"entropy": ENTROPY, "firstlayer": FIRST_LAYER}


def names_of_flbench(source: str) -> set[str]:
    """Every name that is imported from flbench; a module imported as a whole counts as one."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flbench":
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names if a.name.split(".")[0] == "flbench"}
    return names


@pytest.fixture
def registered(request):
    """The example of this name, registered for one test."""
    exec(compile(EXAMPLES[request.param], request.param, "exec"), {"__name__": request.param})
    yield request.param
    del ALGORITHMS[request.param]


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


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_needs_at_most_seven_names(name):
    names = names_of_flbench(EXAMPLES[name])

    assert {"ALGORITHMS", "Algorithm"} <= names
    assert "*" not in names
    assert len(names) <= 7


@pytest.mark.parametrize("registered", EXAMPLES, indirect=True)
def test_example_runs(registered, tmp_path):
    path, summary = run(tmp_path, f"algorithm={registered}", "train.rounds=2")

    assert summary["rounds"] == 2
    assert 0 <= summary["last"]["test"]["accuracy"] <= 1
    assert (path / "report.html").exists()


@pytest.mark.parametrize("registered", ["entropy"], indirect=True)
def test_own_loss_with_factor_zero_is_fedavg(registered):
    without = summary_of_run("algorithm.name=entropy", "algorithm.beta=0")
    with_it = summary_of_run("algorithm.name=entropy", "algorithm.beta=1")
    fedavg = summary_of_run("algorithm.name=fedavg")

    assert without["weights_digest"] == fedavg["weights_digest"]
    assert with_it["weights_digest"] != fedavg["weights_digest"]


@pytest.mark.parametrize("registered", ["entropy"], indirect=True)
def test_own_loss_is_the_negative_entropy(registered):
    """It is -ln C for equal logits, and 0 where one class has all the probability."""
    [_, term] = build("algorithm.name=entropy", "algorithm.beta=0.5").algorithm.terms()

    def value(logits, mask):
        out = type("Out", (), {"logits": torch.tensor(logits)})
        batch = type("Batch", (), {"mask": torch.tensor(mask)})
        return term(type("Context", (), {"out": out, "batch": batch}))

    assert term.weight == 0.5
    equal, certain = [0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0]
    assert torch.allclose(value([equal, equal], [True, True]), -torch.tensor(4.0).log())
    assert torch.allclose(value([equal, certain], [True, True]), -torch.tensor(4.0).log() / 2)
    assert torch.allclose(value([certain, equal], [True, False]), torch.tensor(0.0), atol=1e-6)


@pytest.mark.parametrize("registered", ["firstlayer"], indirect=True)
def test_own_split_averages_all_but_the_first_layer(registered):
    algorithm = build("algorithm=firstlayer").algorithm

    first = {"backbone.fc1.weight", "backbone.fc1.bias"}
    assert algorithm.split() == (first, algorithm.setting.net.names("all") - first)

    one = summary_of_run("algorithm=firstlayer", "partition.clients=1", "train.participation=1")
    local = summary_of_run("algorithm=local", "partition.clients=1", "train.participation=1")
    assert one["weights_digest"] == local["weights_digest"]
