"""Loss terms given to the Python interface as functions."""

import pickle

import cloudpickle
import pytest

import flbench as fl
from flbench.losses.own import OwnTerm
from flbench.losses.similarity import masked_mean
from tests.api.own_parts import confidence

FEW = fl.Dirichlet(alpha=1.0, clients=3, samples=120)


def short(out, *terms, **keys):
    """A run of two rounds with loss terms."""
    train = {"rounds": 2, "terms": list(terms), **keys.pop("train", {})}
    return fl.run(
        "fedavg",
        partition=FEW,
        train=train,
        engine={"threads": 1},
        output={"dir": out, "checkpoint_every": 1},
        progress=False,
        **keys,
    )


def without_path(sign=1.0):
    """The term of `own_parts`, as a function that cannot be imported."""

    def confidence(context, *, size=1.0):
        logs = context.out.logits.log_softmax(dim=1)  # [B, C]
        return sign * size * masked_mean((logs.exp() * logs).sum(dim=1), context.batch.mask)

    return confidence


class StopAfterOne(fl.Callback):
    def on_round_end(self, run, metrics):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_function_path_and_entry_give_the_same_weights(tmp_path):
    by_path = short(tmp_path, {"name": "tests.api.own_parts:confidence", "size": 0.5})
    by_function = short(tmp_path, {"name": confidence, "size": 0.5})
    by_object = short(tmp_path, {"name": without_path(), "size": 0.5})

    assert by_function.config.train.terms == by_path.config.train.terms
    assert by_object.config.train.terms[0].name == "object:confidence"
    assert by_path.digest == by_function.digest == by_object.digest
    assert by_path.digest != short(tmp_path, without_path()).digest


@pytest.mark.slow
def test_resume_asks_for_the_function_and_refuses_another(tmp_path):
    uncut = short(tmp_path, without_path())
    with pytest.raises(KeyboardInterrupt):
        short(tmp_path, without_path(), callbacks=StopAfterOne())
    (path,) = (folder for folder in uncut.path.parent.iterdir() if folder != uncut.path)

    with pytest.raises(fl.ConfigError, match=r"`confidence` .* must be given again: fl\.resume"):
        fl.resume(path, progress=False)

    def confidence(context):
        return context.out.logits.mean() * 0

    with pytest.raises(fl.ConfigError, match="SHA-256 of the source of `object:confidence`"):
        fl.resume(path, progress=False, train={"terms": [confidence]})
    again = fl.resume(path, progress=False, train={"terms": [without_path()]})
    assert again.digest == uncut.digest
    with pytest.raises(fl.ConfigError, match=r"`train\.terms` is an object, but .* did not begin"):
        fl.resume(short(tmp_path).path, train={"terms": [without_path()]})


def test_two_functions_of_one_name_are_refused(tmp_path):
    with pytest.raises(fl.ConfigError, match="`confidence`"):
        short(tmp_path, without_path(), without_path(2.0))


def test_function_without_a_path_travels_to_worker_processes():
    term = OwnTerm("object:confidence", without_path(), (("size", 2.0),), 0.5)

    found = pickle.loads(cloudpickle.dumps(term))

    assert (found.path, found.arguments, found.weight) == (term.path, term.arguments, 0.5)
    assert found.function.__name__ == "confidence"
