"""Methods that must equal one another, bit for bit, and the bytes that they must cost."""

import pytest
import torch

from flbench.models.base import net_leaves
from flbench.testing import after, with_method
from tests.support import build, summary_of_run

pytestmark = pytest.mark.slow

POLICIES = ["average", "local", "drop"]
LENET = ("model.name=lenet5", "train.participation=0.6", "train.optimizer.momentum=0.9")


def digest(*overrides: str) -> str:
    return summary_of_run(*LENET, *overrides)["weights_digest"]


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_fedprox_without_pull_is_fedavg(policy):
    """Weights are equal to the bit."""
    norm = f"train.batchnorm={policy}"
    fedavg = digest(norm, "algorithm=fedavg")

    assert digest(norm, "algorithm=fedprox", "algorithm.mu=0") == fedavg
    assert digest(norm, "algorithm=fedprox", "algorithm.mu=0.1") != fedavg


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_hfcd_without_strength_is_local_only(policy):
    """The loss is cross entropy in round 0 if beta(0) = 0, and in all rounds if lambda0 = 0."""
    norm = f"train.batchnorm={policy}"
    local = digest(norm, "algorithm=local")

    assert digest(norm, "algorithm=hfcd", "algorithm.lambda0=0", "algorithm.share=none") == local
    assert digest(norm, "algorithm=hfcd") != local


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_hfcd_that_shares_everything_without_strength_is_fedavg(policy):
    norm = f"train.batchnorm={policy}"
    fedavg = digest(norm, "algorithm=fedavg")

    assert digest(norm, "algorithm=hfcd", "algorithm.lambda0=0", "algorithm.share=full") == fedavg


@pytest.mark.one_of("policy")
@pytest.mark.parametrize("policy", POLICIES)
def test_fedproto_without_pull_is_local_only(policy):
    norm = f"train.batchnorm={policy}"
    local = digest(norm, "algorithm=local")

    assert digest(norm, "algorithm=fedproto", "algorithm.lam=0") == local
    assert digest(norm, "algorithm=fedproto") != local


@pytest.mark.parametrize("form", ["nested", "separate"])
def test_hfcd_first_round_is_cross_entropy_exactly(form):
    one = ("train.rounds=1",)

    assert digest("algorithm=hfcd", f"algorithm.loss_form={form}", *one) == digest(
        "algorithm=local", *one
    )


def test_fedavg_with_one_client_is_that_client():
    """One client of weight one: the mean returns its model bit for bit."""
    keys = ("partition.clients=1", "train.participation=1")

    assert digest("algorithm=fedavg", *keys) == digest("algorithm=local", *keys)


def test_fedavg_of_one_step_is_a_step_on_the_weighted_mean_gradient():
    """One full-batch step each.

    Averaging weights equals stepping along the sample-weighted gradient.
    """
    overrides = (
        "algorithm=fedavg",
        "model.name=mlp",
        "train.participation=1",
        "train.batch_size=1024",
    )
    built = build(*overrides, "engine.precision=64-true")

    state = after(built, 1)

    net = build(*overrides).net.double()
    sizes = built.federation.sizes.double()
    federation = built.federation.to(torch.device("cpu"), torch.float64)
    loss = sum(
        share
        * torch.nn.functional.cross_entropy(
            net(federation.inputs(rows, torch.float64)).logits, federation.y[torch.from_numpy(rows)]
        )
        for share, rows in zip(
            sizes / sizes.sum(), federation.partition.parts["train"], strict=True
        )
    )
    loss.backward()
    for name, leaf in net_leaves(net).items():
        assert torch.allclose(state.server[name], leaf - 0.01 * leaf.grad, rtol=0, atol=1e-12), name


def test_uniform_weights_differ_from_sample_weights():
    assert digest("algorithm=fedavg", "algorithm.agg_weights=uniform") != digest("algorithm=fedavg")


def test_batchnorm_policies_differ_only_where_statistics_are():
    found = {
        policy: digest("algorithm=fedavg", f"train.batchnorm={policy}")
        for policy in ("average", "local", "drop")
    }

    assert len(set(found.values())) == 3
    plain = [
        digest("algorithm=fedavg", "model.norm=none", f"train.batchnorm={policy}")
        for policy in ("average", "drop")
    ]
    assert plain[0] == plain[1]


def test_batchnorm_local_keeps_statistics_with_the_client():
    built = build(*with_method("fedavg", "train.batchnorm=local"))

    state = after(built, 2)

    statistics = built.algorithm.setting.net.statistics
    assert statistics
    assert set(state.clients) == statistics
    assert not statistics & set(state.server)


def test_local_only_never_sampled_clients_stay_at_the_start_and_are_counted():
    summary = summary_of_run("algorithm=local", "train.participation=0.2", "train.rounds=2")
    full = summary_of_run(
        "algorithm=local",
        "algorithm.budget=full",
        "train.participation=0.2",
        "train.rounds=2",
    )

    assert summary["clients_never_trained"] >= 3
    assert full["clients_never_trained"] == 0
    assert full["client_trainings"] == 10


# Bytes


def traffic(tmp_path, *overrides: str, rounds: int = 2) -> tuple[float, float]:
    """Bytes up and down per client and round.

    The first round's dispatch is the seeded start and free.
    """
    summary = summary_of_run(f"train.rounds={rounds}", "train.participation=1", *overrides)
    bytes_ = summary["communication"]
    return bytes_["up_bytes"] / (5 * rounds), bytes_["down_bytes"] / (5 * (rounds - 1))


def test_fedavg_sends_all_weights_and_statistics_both_ways(tmp_path):
    """LeNet-5 on 16x16 grey images, 10 classes: counted by hand below.

    44 statistics, 2 counters of 8 bytes.
    """
    weights = (
        (25 * 6 + 6)
        + 12
        + (6 * 25 * 16 + 16)
        + 32
        + (16 * 120 + 120)
        + (120 * 84 + 84)
        + (84 * 10 + 10)
    )
    expected = 4 * weights + 4 * 44 + 2 * 8

    assert traffic(tmp_path, "algorithm=fedavg", "model.name=lenet5") == (expected, expected)
    assert (
        traffic(tmp_path, "algorithm=fedavg", "model.name=lenet5", "train.batchnorm=local")
        == (4 * weights,) * 2
    )


def held_classes(*overrides: str) -> torch.Tensor:
    return (build(*overrides).federation.counts > 0).sum(dim=1).double()


def test_fedproto_sends_prototypes_counts_and_ids_of_held_classes(tmp_path):
    up, down = traffic(tmp_path, "algorithm=fedproto")

    held, d = held_classes("algorithm=fedproto"), 64
    assert up == pytest.approx(float((held * (4 * d + 8)).mean()))
    assert down == 4 * 10 * d + 10


def test_hfcd_sends_a_similarity_for_each_pair_of_held_classes(tmp_path):
    up, down = traffic(tmp_path, "algorithm=hfcd")

    held, d = held_classes("algorithm=hfcd"), 64
    pairs = held * (held - 1) / 2
    assert up == pytest.approx(float((held * (4 * d + 8) + 4 * pairs).mean()))
    assert down == 4 * 10 * d + 10 + 4 * 100


def test_hfcd_that_shares_its_weights_pays_for_them(tmp_path):
    up, _ = traffic(tmp_path, "algorithm=hfcd")
    with_net, _ = traffic(tmp_path, "algorithm=hfcd", "algorithm.share=full")

    net = 64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10
    assert with_net - up == pytest.approx(4 * net)
