import numpy as np
import pytest
import torch

from flbench.core.rng import Draw, generator, seeded, uniform


def test_generator_same_key_same_stream():
    a, b = generator(1, "batch", 2, 3), generator(1, "batch", 2, 3)

    assert np.array_equal(a.integers(0, 1 << 60, 9), b.integers(0, 1 << 60, 9))


@pytest.mark.parametrize(
    "other", [(2, "batch", 2, 3), (1, "cohort", 2, 3), (1, "batch", 3, 2), (1, "batch", 2)]
)
def test_generator_other_key_other_stream(other):
    assert generator(1, "batch", 2, 3).integers(1 << 60) != generator(*other).integers(1 << 60)


@pytest.mark.parametrize(
    ("participation", "size"), [(0.1, 1), (0.25, 3), (0.5, 5), (1.0, 10), (0.001, 1)]
)
def test_uniform_cohort_has_the_rounded_size(participation, size):
    ids = Draw(0, (4,), 10).cohort(participation)

    assert len(ids) == size
    assert ids.tolist() == sorted(set(ids.tolist()))


def test_order_is_a_permutation_and_changes_with_epoch_and_round():
    draw = Draw(0, (4,), 10)

    assert sorted(draw.sample_order(1, 0, 50)) == list(range(50))
    assert not np.array_equal(draw.sample_order(1, 0, 50), draw.sample_order(1, 1, 50))
    assert not np.array_equal(draw.sample_order(1, 0, 50), Draw(0, (5,), 10).sample_order(1, 0, 50))


def test_noise_keys_belong_to_samples_not_to_positions():
    draw = Draw(0, (4,), 10)
    rows = np.array([7, 3, 9])

    assert np.array_equal(draw.noise_keys(1, 0, rows)[::-1], draw.noise_keys(1, 0, rows[::-1]))
    assert len(set(draw.noise_keys(1, 0, np.arange(10_000)).tolist())) == 10_000


def test_keys_of_many_clients_are_those_of_each():
    draw = Draw(3, (4,), 9)
    rows = np.arange(24).reshape(2, 3, 4)
    clients, epochs = np.array([7, 2]), np.array([[0, 0, 1], [2, 0, 0]])

    keys = draw.noise_keys(clients[:, None, None], epochs[:, :, None], rows)

    for k, t in np.ndindex(2, 3):
        one = draw.noise_keys(int(clients[k]), int(epochs[k, t]), rows[k, t])
        assert np.array_equal(keys[k, t], one)


def test_uniform_noise_is_even_and_independent_between_units():
    keys = torch.from_numpy(Draw(0, (0,), 1).noise_keys(0, 0, np.arange(20_000)))

    a, b = uniform(keys, 0), uniform(keys, 1)

    # The mean of n = 20,000 uniform numbers has the standard deviation 1 / sqrt(12 n) = 0.002; the
    # test allows five of them.
    assert abs(float(a.mean()) - 0.5) < 0.01
    assert float(a.min()) >= 0.0
    assert float(a.max()) < 1.0
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 5 / 20_000**0.5


def test_uniform_noise_is_vmap_safe():
    keys = torch.arange(12).reshape(3, 4)

    assert torch.equal(
        torch.vmap(lambda k: uniform(k, 2))(keys), uniform(keys.reshape(-1), 2).reshape(3, 4)
    )


def test_the_default_type_that_code_sets_within_a_seed_ends_with_it():
    with seeded(0):
        torch.set_default_dtype(torch.float64)
    assert torch.get_default_dtype() == torch.float32
