"""`train.terms` in the local loss of methods: where the terms are, and functions of the user."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flbench.algorithms import Algorithm
from flbench.client.program import LocalProgram, Phase, Statistic
from flbench.config.sources import Layer
from flbench.core.errors import ConfigError, shortened
from flbench.core.registry import ALGORITHMS
from flbench.core.tree import is_finite
from flbench.core.types import Stage
from flbench.experiment import lifecycle
from flbench.experiment.local_terms import ExtendedCrossEntropy
from flbench.losses import CrossEntropy, Focal, LabelSmoothing, LogitAdjustment, Proximal
from flbench.losses.class_counts import COUNTS
from flbench.testing import after, build, run
from flbench.testing.setting import Silent
from tests.losses.support import case

MODULE = '''
"""Terms of a user."""

import torch

from flbench.losses import similarity
from flbench.losses.class_counts import COUNTS
from flbench.losses.cross_entropy import mean_cross_entropy


def scaled(context, *, factor=1.0):
    logits, batch = context.out.logits, context.batch
    return factor * mean_cross_entropy(logits, batch.y, batch.mask)


def balanced(context):
    logits, batch = context.out.logits, context.batch
    counts = context.ctx[COUNTS].to(logits.dtype).clamp_min(1)
    return mean_cross_entropy(logits + counts.log(), batch.y, batch.mask)


def matrix(context):
    return context.out.logits


def nothing(context):
    return None


def padded(context):
    return context.out.logits.gather(1, context.batch.y[:, None]).mean()


def square(context):
    return context.out.logits.square().mean()


def broken(context):
    return context.out.logit


def by_hand(context):
    value = scaled(context)
    return value if value.item() > 0 else -value


number = 3
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a module of the user, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_terms", raising=False)
    file = tmp_path / "own_terms.py"
    file.write_text(MODULE)
    yield file
    sys.modules.pop("own_terms", None)


def test_the_guides_term_is_accepted(own):
    """The page's own module, with the page's arguments, under the vectorized engine too."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "guides" / "rare-classes.md"
    text = guide.read_text("utf-8")
    [code] = re.findall(r"```python title=\"my_terms.py\"\n(.*?)```", text, re.DOTALL)
    [entry] = re.findall(r"'(train\.terms=\[\{name: my_terms:.*?\])'", text)
    own.with_name("my_terms.py").write_text(code)

    state = after(build("algorithm=fedavg", entry, "engine=vectorized"), rounds=1)

    assert is_finite(state.server)


def phases(built, stage=0):
    state = replace(built.start(), stage=stage)
    return [s for s in built.algorithm.local_program(state).steps if isinstance(s, Phase)]


def test_a_term_joins_the_cross_entropy_and_other_terms_stay():
    built = build("algorithm=fedprox", "train.terms=[{name: focal, weight: 0.5}]")
    [phase] = phases(built)
    extended, proximal = phase.terms

    assert extended == ExtendedCrossEntropy(
        CrossEntropy(), (CrossEntropy(), Focal(gamma=2.0, weight=0.5))
    )
    assert isinstance(proximal, Proximal)
    c = case()
    expected = CrossEntropy()(c.context()) + 0.5 * Focal(gamma=2.0)(c.context())
    assert torch.equal(extended(c.context()), expected)


def test_a_term_instead_takes_the_place_of_the_cross_entropy_with_its_factor():
    terms = "[{name: logit_adjustment, instead: true, weight: 2}, {name: label_smoothing}]"
    built = build("algorithm=fedpc", "algorithm.alpha=0.3", f"train.terms={terms}")
    extended = phases(built, stage=1)[0].terms[0]

    assert extended.weight == 0.3  # of FedPC's own cross entropy
    c = case()
    expected = 2 * LogitAdjustment(tau=1.0)(c.context()) + LabelSmoothing(epsilon=0.1)(c.context())
    assert torch.allclose(extended(c.context()), expected, rtol=0, atol=1e-15)


def test_the_terms_of_fednh_and_apfl_read_the_logits_of_their_cross_entropy():
    """With epsilon = 0 label smoothing is cross entropy, of whatever logits it is given."""
    for method in ("fednh", "apfl"):
        keys = (f"algorithm={method}", "engine.precision=64-true")
        plain, same = (
            after(build(*keys, *more), rounds=1)
            for more in ((), ("train.terms=[{name: label_smoothing, epsilon: 0, instead: true}]",))
        )
        for name, value in plain.server.items():
            assert torch.allclose(value, same.server[name], rtol=0, atol=1e-12)


def test_the_client_counts_its_training_samples_once_before_it_trains():
    built = build("algorithm=fedrep", "train.local_epochs=2", "train.terms=[balanced_softmax]")
    first, *others = built.algorithm.local_program(built.start()).steps

    assert f"{first.name}.counts" == COUNTS
    assert first.samples.part == "train"
    assert not any(isinstance(step, Statistic) and step.name == first.name for step in others)
    assert len(phases(built)) == 2


def test_terms_are_in_the_training_of_a_client_that_joins():
    built = build("algorithm=pfedhn", "algorithm.join_rounds=1", "train.terms=[focal]")
    state = after(built, rounds=1)
    [phase] = [
        step
        for step in built.algorithm.joining(state, torch.arange(2)).program.steps
        if isinstance(step, Phase)
    ]

    assert isinstance(phase.terms[0], ExtendedCrossEntropy)


def test_terms_are_in_a_fine_tuning_before_an_evaluation():
    built = build("algorithm=ft", "train.terms=[{name: focal, instead: true}]")
    tuning = built.algorithm.deployed(built.start(), torch.arange(2))["personal"].program
    trained = [step for step in tuning.steps if isinstance(step, Phase)]

    assert trained
    assert all(isinstance(phase.terms[0], ExtendedCrossEntropy) for phase in trained)


def test_stacked_clients_train_as_one_after_the_other():
    keys = ("algorithm=fedper", "engine.precision=64-true", "partition.alpha=0.1")
    terms = "train.terms=[{name: balanced_softmax, instead: true}, class_balanced]"
    one, many = (
        after(build(*keys, terms, f"engine={engine}")) for engine in ("sequential", "vectorized")
    )

    for name, value in one.clients.items():
        assert torch.allclose(value, many.clients[name], rtol=0, atol=1e-10)


def test_a_method_without_cross_entropy_is_refused(monkeypatch):
    class Averages(Algorithm):
        name = "averages"
        paper = ALGORITHMS.find("fedavg").paper
        communication = ALGORITHMS.find("fedavg").communication

        def stages(self):
            return (Stage("pull", 3),)

        def program(self, state):
            keeps, sends = self.split()
            pull = Proximal(self.setting.net.parameters)
            return LocalProgram((self.phase(pull),), keeps, sends)

    monkeypatch.setitem(ALGORITHMS, "averages", Averages)

    assert build("algorithm=averages").algorithm.name == "averages"
    with pytest.raises(ConfigError, match="averages"):
        build("algorithm=averages", "train.terms=[focal]")


def test_a_function_of_the_user_trains_like_the_term_that_it_computes(own):
    keys = ("algorithm=fedavg", "engine.precision=64-true")
    ours, theirs = (
        after(build(*keys, f"train.terms=[{{name: {name}, weight: 0.7, instead: true}}]"))
        for name in ("balanced_softmax", "own_terms:balanced")
    )

    for name, value in ours.server.items():
        assert torch.allclose(value, theirs.server[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["matrix", "nothing", "broken"])
def test_a_function_that_cannot_be_trained_is_refused(own, name):
    with pytest.raises(ConfigError):
        build("algorithm=fedavg", f"train.terms=[{{name: own_terms:{name}}}]")


@pytest.mark.parametrize("name", ["padded", "square"])
def test_a_function_of_padding_is_refused(own, name):
    """In a stack of clients; the sequential engine has no rows of padding in training."""
    term = f"train.terms=[{{name: own_terms:{name}}}]"
    build("algorithm=fedavg", term, "engine.name=sequential")

    with pytest.raises(ConfigError, match=name):
        build("algorithm=fedavg", term, "engine.name=vectorized")


def test_a_function_that_vmap_cannot_run_is_refused_by_the_vectorized_engine_alone(own):
    term = "train.terms=[{name: own_terms:by_hand}]"
    build("algorithm=fedavg", term)

    with pytest.raises(ConfigError, match=r"own_terms\.py:\d+"):
        build("algorithm=fedavg", term, "engine.name=vectorized")


@pytest.mark.slow
def test_a_run_keeps_path_and_hash_and_is_not_resumed_with_another_source(own, tmp_path):
    entry = "train.terms=[{name: own_terms:scaled, factor: 2}]"
    path, _ = run(tmp_path / "runs", "algorithm=fedavg", entry)
    written = (path / "config.yaml").read_text()
    before = build("algorithm=fedavg", entry).config.train.terms[0].sha256

    assert "own_terms:scaled" in written
    assert before in written

    (path / "summary.json").unlink()
    own.write_text(MODULE + "\n# another one\n")
    with pytest.raises(ConfigError, match="own_terms"):
        lifecycle.resume(path, Layer({}), [Silent()])

    sys.modules.pop("own_terms")  # as in another process
    with pytest.raises(ConfigError) as refusal:
        lifecycle.resume(path, Layer({}), [Silent()])

    after_change = build("algorithm=fedavg", entry).config.train.terms[0].sha256
    assert before in shortened(str(refusal.value))
    assert after_change in shortened(str(refusal.value))
    assert before != after_change
