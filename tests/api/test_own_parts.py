"""Parts of the user: by import path, as functions, as objects, and on resume."""

import pickle

import cloudpickle
import pytest

import flbench as fl
from flbench.losses.own import OwnTerm
from flbench.losses.similarity import masked_mean
from tests.api import own_parts

PLACE = "tests.api.own_parts:"
X, Y = own_parts.arrays()
BY_PATH = {
    "data": {"source": f"{PLACE}arrays"},
    "partition": {"scheme": f"{PLACE}every_kth"},
    "model": f"{PLACE}Two",
    "train": {"terms": [{"name": f"{PLACE}confidence", "size": 0.5}]},
    "evaluation": {"metrics": {"error": {"source": f"{PLACE}error_rate"}}},
}
BY_FUNCTION = {
    "data": own_parts.arrays,
    "partition": own_parts.every_kth,
    "model": own_parts.Two,
    "train": {"terms": [{"name": own_parts.confidence, "size": 0.5}]},
    "evaluation": {"metrics": {"error": own_parts.error_rate}},
}


def term(sign=1.0):
    """The term of `own_parts`, as a function that cannot be imported."""

    def confidence(context, *, size=1.0):
        logs = context.out.logits.log_softmax(dim=1)  # [B, C]
        return sign * size * masked_mean((logs.exp() * logs).sum(dim=1), context.batch.mask)

    return confidence


def objects(width=16, shift=0, labels=Y, sign=1.0, scale=1):
    """The parts of `own_parts` as objects without an import path, or changed ones."""
    return {
        "data": (X, labels),
        "partition": lambda y, clients, rng: own_parts.every_kth(y, clients, rng, shift),
        "model": lambda shape, classes: own_parts.Two(shape, classes, width),
        "train": {"terms": [{"name": term(sign), "size": 0.5}]},
        "evaluation": {"metrics": {"error": lambda c: scale * own_parts.error_rate(c)}},
    }


def trained(out, parts, size=0.5, **keys):
    """A run of two rounds."""
    terms = [{**one, "size": size} for one in parts["train"]["terms"]]
    scheme = parts["partition"]
    scheme = scheme["scheme"] if isinstance(scheme, dict) else scheme
    keys |= parts | {"train": {"rounds": 2, "local_epochs": 1, "terms": terms}}
    keys["partition"] = {"scheme": scheme, "clients": 3, "samples": 90, "min_samples": 5}
    output = {"dir": out, "checkpoint_every": 1}
    return fl.run("fedper", engine={"threads": 1}, output=output, progress=False, **keys)


class StopAfterOne(fl.Callback):
    def on_round_end(self, run, metrics):
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def by_path(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("path"), BY_PATH)


@pytest.mark.slow
def test_functions_are_written_as_their_paths_with_hashes(by_path, tmp_path):
    by_function = trained(tmp_path, BY_FUNCTION)
    config = by_function.config

    assert config.hash() == by_path.config.hash()
    assert by_function.digest == by_path.digest
    assert by_function.digest != trained(tmp_path, BY_FUNCTION, size=1.0).digest
    assert by_path.path.parent.name == "arrays-every_kth"
    written = (config.data.source, config.partition.scheme, config.model.name)
    assert written == tuple(f"{PLACE}{name}" for name in ("arrays", "every_kth", "Two"))
    hashes = [config.data.sha256, config.partition.sha256, config.model.sha256]
    hashes += [config.train.terms[0].sha256, config.evaluation.metrics["error"].sha256]
    assert [len(one) for one in hashes] == [64] * 5
    assert by_path.model(client=0) is not None


@pytest.mark.slow
def test_resume_asks_for_objects_and_refuses_others(by_path, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, objects(), callbacks=StopAfterOne())
    (path,) = tmp_path.glob("*/*/")
    others = objects(width=8, shift=1, labels=(Y + 1) % 10, sign=-1.0, scale=2)

    for name, other in others.items():
        given = objects()
        mine = given.pop(name)
        with pytest.raises(fl.ConfigError, match=f"{name}="):
            fl.resume(path, progress=False, **given)
        with pytest.raises((fl.ConfigError, fl.DataError), match=name):
            fl.resume(path, progress=False, **given, **{name: other})
        with pytest.raises(fl.ConfigError, match=rf"^`{name}\b.*{by_path.path.name}"):
            fl.resume(by_path.path, progress=False, **{name: mine})
    resumed = fl.resume(path, progress=False, **objects())
    assert resumed.digest == by_path.digest
    assert resumed.model(client=0) is not None


def test_two_terms_of_one_name_are_refused(tmp_path):
    both = {"terms": [term(), term(2.0)]}
    with pytest.raises(fl.ConfigError, match="`confidence`"):
        fl.run("fedavg", train=both, output={"dir": tmp_path}, progress=False)


def test_a_term_without_a_path_travels_to_worker_processes():
    made = OwnTerm("object:confidence", term(), (("size", 2.0),), 0.5)

    found = pickle.loads(cloudpickle.dumps(made))

    assert (found.path, found.arguments, found.weight) == (made.path, made.arguments, 0.5)
    assert found.function.__name__ == "confidence"
