"""Methods that must equal one another, bit for bit, and options that must change them."""

from functools import cache

import pytest
import torch
from torch.nn.functional import cross_entropy

from flbench.core.tree import digest
from flbench.experiment.rounds import exchange, settings_of, train
from flbench.testing import after
from tests.algorithms.plain import Plain
from tests.support import build, summary_of_run

pytestmark = pytest.mark.slow

POLICIES = ["average", "local", "drop"]
LENET = ("model.name=lenet5", "train.participation=0.6", "train.optimizer.momentum=0.9")
ONE = "partition.clients=1 train.participation=1"
LINEAR = "adaptive=false agg_weights=samples"
STILL = "train.optimizer.momentum=0"

EQUAL = [
    # a method with keys, the method that it is then, others that it is not, whether bytes are equal
    ("fedprox mu=0", "fedavg", ["fedprox mu=0.1"], True),
    ("hfcd lambda0=0 share=none", "local", ["hfcd"], False),
    ("hfcd lambda0=0 share=full", "fedavg", [], False),
    # Its loss is cross entropy in the first round, because beta(0) = 0.
    ("hfcd loss_form=nested train.rounds=1", "local train.rounds=1", [], False),
    ("hfcd loss_form=separate train.rounds=1", "local train.rounds=1", [], False),
    ("fedproto lam=0", "local", ["fedproto"], False),
    # One client of weight one: the mean returns its model.
    (f"fedavg {ONE}", f"local {ONE}", [], False),
    ("cfl eps1=0 start_round=0 agg_weights=uniform", "fedavg agg_weights=uniform", [], True),
    ("cfl eps1=0 start_round=0 agg_weights=samples", "fedavg agg_weights=samples", [], True),
    ("ditto lam=0", "local", ["ditto"], False),
    ("fedala eta=0", "fedavg", [], True),
    ("fedala eta=0 engine.name=vectorized", "fedavg engine.name=vectorized", [], True),
    ("fedamp start=own similarity=distance pull=0", "local", ["fedamp start=own pull=1"], False),
    ("fedamp start=own similarity=cosine pull=0", "local", [], False),
    (f"fedamp pull=0 {ONE}", f"local {ONE}", [], False),
    ("fedbn allow_no_bn=true model.norm=none", "fedavg model.norm=none", [], True),
    ("fedcac tau=0", "fedavg", ["fedcac"], False),
    ("fedcmd rho=1", "fedavg", [], False),
    ("fedcpmd k_p=2 train.participation=1", "fedper train.participation=1", [], False),
    ("fedper layers=0", "fedavg", ["fedper layers=3", "local"], True),
    ("fedper layers=7", "local", ["fedper layers=3"], False),
    ("ft finetune_epochs=0", "fedavg", ["ft"], True),
    ("ft finetune_epochs=0 finetune=head_first head_epochs=0", "fedavg", [], True),
    *(
        (
            f"ifca clusters=1 {keys}",
            "fedavg agg_weights=uniform",
            [f"ifca clusters=2 {keys}"],
            False,
        )
        for keys in ("agg_weights=uniform share_body=true", "agg_weights=uniform share_body=false")
    ),
    ("lgfedavg layers=0", "local", ["lgfedavg layers=4"], False),
    ("lgfedavg layers=5", "fedavg agg_weights=uniform", ["lgfedavg layers=4"], True),
    (
        "lgfedavg warmup=1 train.rounds=3",
        "fedavg agg_weights=uniform train.rounds=3",
        ["lgfedavg warmup=0.5 train.rounds=3", "lgfedavg warmup=0 train.rounds=3"],
        True,
    ),
    ("moon mu=0", "fedavg", [], True),
    ("dfedavg topology=erdos_renyi edge_probability=0", "local", ["dfedavg"], False),
    ("dfedavg", f"dfedavgm {STILL}", [f"dfedavg {STILL}"], True),  # theta is momentum
    (f"dfedavgm theta=0 {STILL}", f"dfedavg {STILL}", [f"dfedavgm theta=0.5 {STILL}"], True),
    ("dfedsalt rho=0", "dfedalt", ["dfedsalt"], True),
    ("dfedalt rho=0.7", "dfedsalt", [], True),
    (
        "fedpc groups=1 alpha=1 gamma=0",
        "fedper agg_weights=uniform",
        ["fedpc groups=1 alpha=1 gamma=0.1"],
        False,
    ),
    ("fedtgp lam=0", "local", ["fedtgp"], False),
    ("pfedsim rho=1", "fedavg", [], True),
]
NORM = "model.norm=group"
DROP = "train.batchnorm=drop"
EQUAL_WITH = (
    [  # some policies of BatchNorm alone
        (f"apfl {LINEAR} alpha=0 {norm}", f"fedavg {norm}", [f"apfl {LINEAR} {norm}"], False)
        for norm in (NORM, DROP)
    ]
    + [
        (f"apfl {LINEAR} alpha=1 {norm}", f"local {norm}", [f"apfl {LINEAR} {norm}"], False)
        for norm in (NORM, DROP)
    ]
    + [("fedbn train.batchnorm=average", "fedbn train.batchnorm=local", [], True)]
)
FIRST = f"train.rounds=1 {STILL}"
SINGLE = f"model.name=mlp train.batch_size=1 {FIRST}"  # each part of a batch is the batch
SERVERS = [
    # a method, and the one whose server has the same tensors; what clients have besides differs
    ("ditto lam=3", "fedavg"),
    ("ft finetune=head_first finetune_lr=0.5", "fedavg"),
    ("fedavgm beta=0 server_lr=1", "fedavg"),
    ("fedavgm beta=0 server_lr=1 nesterov=false", "fedavg"),
    (f"apfl {LINEAR} alpha=1", "fedavg"),
    ("fedrod gamma=0", "fedavg"),
    ("knnper", "fedavg"),
    (f"scaffold {FIRST}", f"fedavg agg_weights=uniform {FIRST}"),  # all variates are zero
    (f"perfedavg alpha=0 {SINGLE}", f"fedavg agg_weights=uniform {SINGLE}"),
    (
        f"perfedavg alpha=0 version=hessian_free {SINGLE}",
        f"fedavg agg_weights=uniform {SINGLE}",
    ),
]
MLP = "model.name=mlp train.optimizer.lr=0.1"
OPTIONS = [
    ("fedavg", ["agg_weights=uniform"]),
    (f"feddyn alpha=0.1 {MLP}", ["alpha=0.5", "agg_weights=samples"]),
    (f"fedproto {MLP}", ["lam=3", "agg_weights=samples"]),
    # Those that tests/algorithms/test_hfcd_loops.py does not compare with loops
    (
        f"hfcd alpha=0.2 train.rounds=4 {MLP}",
        ["share=full", "distillation=ordinary", "tau=0.5", "alpha=0.95", "gamma=3", "lambda0=2"],
    ),
    (f"moon {MLP}", ["mu=1", "tau=0.1"]),
    (
        "scaffold model.name=mlp train.optimizer.momentum=0",
        ["server_lr=0.5", "agg_weights=samples"],
    ),
]


@cache
def ended(words: str, *more: str):
    """Return an experiment, its last state, and what its rounds cost.

    Args:
        words: A method and its keys; those without a section are the method's.
        more: Further keys.
    """
    method, *keys = words.split()
    keys = [key if "." in key.partition("=")[0] else f"algorithm.{key}" for key in keys]
    short = ("train.rounds=2", "partition.samples=300")
    built = build(*LENET, *short, f"algorithm.name={method}", *more, *keys)
    algorithm, state, costs = built.algorithm, built.start(), []
    while state.round < built.config.train.rounds:
        settings = settings_of(algorithm, state, setup=algorithm.stages()[state.stage].setup)
        over = exchange(algorithm, state, train(algorithm, built.engine, state, settings))
        state = over.state
        costs.append(over.costs)
    return built, state, costs


@cache
def trained(words: str, *more: str) -> tuple[str, float, float]:
    """Return the digest of the models that clients are evaluated with, and bytes up and down."""
    built, state, costs = ended(words, *more)
    models = list(built.evaluator(print).deployed(state, settings_of(built.algorithm, state)))
    assert all(value.isfinite().all() for model in models for value in model.values())
    assert not any(one["diverged"] for one in costs)
    up, down = (sum(one.get(f"{way}_bytes", 0) for one in costs) for way in ("up", "down"))
    return digest(models), up, down


def assert_equal(one, other, differing, with_bytes, *more):
    found, expected = trained(one, *more), trained(other, *more)

    assert found[0] == expected[0]
    assert found == expected or not with_bytes
    others = {trained(words, *more)[0] for words in differing}
    assert len(others | {expected[0]}) == len(differing) + 1


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("row", EQUAL, ids=lambda row: row[0])
def test_methods_are_equal(policy, row):
    assert_equal(*row, f"train.batchnorm={policy}")


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("words", "other"), SERVERS)
def test_servers_are_equal(policy, words, other):
    found, expected = (ended(one, f"train.batchnorm={policy}")[1] for one in (words, other))

    assert expected.server
    for tree in ("server", "clients"):
        for name, value in getattr(expected, tree).items():
            assert torch.equal(getattr(found, tree)[name], value), name


@pytest.mark.parametrize("row", EQUAL_WITH, ids=lambda row: row[0])
def test_methods_are_equal_with_some_norms(row):
    assert_equal(*row)


@pytest.mark.parametrize(("words", "options"), OPTIONS, ids=lambda one: str(one).split()[0])
def test_every_option_changes_the_models(words, options):
    found = {trained(words)[0], *(trained(f"{words} {option}")[0] for option in options)}

    assert len(found) == len(options) + 1


def test_fedavg_of_one_step_is_a_step_on_the_weighted_mean_gradient():
    """One full-batch step each.

    Averaging weights equals stepping along the sample-weighted gradient.
    """
    keys = ("model.name=mlp", "train.batch_size=1024", "engine.precision=64-true")
    built = build("algorithm=fedavg", "train.participation=1", *keys)
    plain, shares = Plain(built), built.federation.sizes.double()
    leaves = {name: leaf.requires_grad_() for name, leaf in plain.start().items()}

    for i, share in enumerate(shares / shares.sum()):
        x, y = plain.samples(i)
        (share * cross_entropy(plain.outputs(leaves, x, train=True).logits, y)).backward()

    state = after(built, 1)
    for name, leaf in leaves.items():
        assert torch.allclose(state.server[name], leaf - 0.01 * leaf.grad, rtol=0, atol=1e-12), name


def test_batchnorm_policies_differ_only_where_statistics_are():
    found = {policy: trained("fedavg", f"train.batchnorm={policy}")[0] for policy in POLICIES}

    assert len(set(found.values())) == 3
    plain = [trained("fedavg model.norm=none", f"train.batchnorm={one}")[0] for one in POLICIES]
    assert plain[0] == plain[2]


def test_local_only_never_sampled_clients_stay_at_the_start_and_are_counted():
    summary = summary_of_run("algorithm=local", "train.participation=0.2", "train.rounds=2")
    full = summary_of_run(
        "algorithm=local", "algorithm.budget=full", "train.participation=0.2", "train.rounds=2"
    )

    assert summary["clients_never_trained"] >= 3
    assert full["clients_never_trained"] == 0
    assert full["client_trainings"] == 10
