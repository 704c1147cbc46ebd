from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torchvision.transforms import Normalize

from flbench.config.schema import DataConfig, PartitionConfig
from flbench.core.errors import DataError
from flbench.core.rng import Draw
from flbench.core.types import Samples
from flbench.data.dataset import Dataset
from flbench.data.federation import augment, build
from flbench.data.sources import digits


def table(x: np.ndarray, groups: np.ndarray) -> Dataset:
    y = np.arange(len(x), dtype=np.int64) % 2
    return Dataset("table", x.astype(np.float32), y, ("0", "1"), train=len(x), groups=groups)


def federation(normalize: str = "standard", **keys):
    return build(digits(), DataConfig(normalize=normalize), PartitionConfig(clients=5, **keys), 0)


def test_normalization_of_pixels():
    made = federation()
    x = made.inputs(np.sort(np.concatenate(made.partition.parts["train"])), torch.float64)
    assert float(x.mean()) == pytest.approx(0, abs=1e-5)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)
    none = federation("none")
    assert torch.equal(none.inputs(np.arange(9), torch.float32), none.x[:9].float())


def test_given_numbers_normalize_pixels_as_transforms_of_pytorch_do():
    pixels = np.random.default_rng(0).integers(0, 256, size=(40, 3, 4, 4), dtype=np.uint8)
    data = Dataset("rgb", pixels, np.arange(40) % 2, ("a", "b"), train=40)
    given = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    made = build(data, DataConfig(normalize=given), PartitionConfig(scheme="iid", clients=2), 0)
    wanted = Normalize(**given)(made.x.double() / 255)

    torch.testing.assert_close(made.inputs(np.arange(40), torch.float64), wanted, atol=1e-5, rtol=0)
    wrong = DataConfig(normalize={"mean": (0, 1), "std": (1,)})
    with pytest.raises(DataError, match=r"data\.normalize\.mean"):
        build(data, wrong, PartitionConfig(scheme="iid", clients=2), 0)


UNITS = [
    (None, 0.485, 0.229, True),
    (None, 123.675, 58.395, False),
    (1 / 255, 0.485, 0.229, True),
    (1.0, 123.675, 58.395, True),
    (1.0, 0.485, 0.229, False),
]


def test_given_numbers_must_be_in_the_units_of_the_images():
    """Pixels of uint8 are in [0, 1] then; floating-point images stay as they are."""
    pixels = np.random.default_rng(0).integers(0, 256, size=(40, 3, 4, 4), dtype=np.uint8)
    for factor, mean, std, is_right in UNITS:
        x = pixels if factor is None else (pixels * factor).astype(np.float32)
        data = Dataset("rgb", x, np.arange(40) % 2, ("a", "b"), train=40)
        given = DataConfig(normalize={"mean": (mean,), "std": (std,)})
        config = PartitionConfig(scheme="iid", clients=2)
        if is_right:
            made = build(data, given, config, 0)
            assert abs(float(made.inputs(np.arange(40), torch.float32).mean())) < 1
        else:
            with pytest.raises(DataError, match=r"data\.normalize"):
                build(data, given, config, 0)


def test_given_numbers_normalize_columns_also_by_one_number_for_all():
    x = np.random.default_rng(0).normal(size=(40, 3)) + 7
    given = DataConfig(normalize={"mean": (7,), "std": (1e-9, 2, 4)})
    made = build(table(x, np.zeros(40)), given, PartitionConfig(scheme="iid", clients=2), 0)

    wanted = (made.x.double() - 7) / torch.tensor([1e-9, 2, 4], dtype=torch.float64)
    torch.testing.assert_close(made.inputs(np.arange(40), torch.float64), wanted, rtol=1e-5, atol=0)


def test_standard_normalization_is_that_of_scikit_learn_and_constant_columns_are_zero():
    """One value in all training parts leaves no scale, whatever a validation row has."""
    rng = np.random.default_rng(0)
    x = np.empty((500, 150))
    x[:, :100] = 10 ** rng.uniform(0, 7, 100)
    x[:, 0] = 1670.889
    x[:, 100:] = rng.normal(size=(500, 50)) * 10 ** rng.uniform(-3, 3, 50) + rng.uniform(-9, 9, 50)
    data, config = table(x, np.zeros(500)), PartitionConfig(scheme="iid", clients=1)
    rows = build(data, DataConfig(), config, 0).partition.parts
    data.x[rows["validation"][0][0], :100] *= 1.001

    made = build(data, DataConfig(), config, 0)

    scaler = StandardScaler().fit(data.x[rows["train"][0]].astype(float))
    found = made.inputs(np.arange(500), torch.float64).numpy()
    np.testing.assert_allclose(
        found[:, 100:], scaler.transform(data.x.astype(float))[:, 100:], atol=2e-4
    )
    assert not found[:, :100].any()
    own = build(data, DataConfig(normalize="client"), config, 0)
    assert torch.equal(own.scale[0], made.scale)
    assert torch.equal(own.offset[0], made.offset)


def hospitals() -> tuple[np.ndarray, Dataset]:
    """Three clients with other scales, missing values, a constant column and one without values.

    Sums over the constant column are rounded. One of its samples has another value.
    """
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], [400, 1400, 8])
    x = rng.normal(size=(len(groups), 4))
    x = x * np.array([1, 10, 1e-9])[groups, None] + 5 * groups[:, None] * (groups < 2)[:, None]
    x[::7, 0] = np.nan
    x[groups == 1, 1] = 3.2
    x[groups == 2, 2] = np.nan
    x[np.flatnonzero(groups == 1)[-1], 1] = 3.3
    return groups, table(x, groups)


def test_normalization_by_client_is_that_of_its_own_training_part():
    """Compared with NumPy, client by client; a client alone has the same inputs."""
    groups, data = hospitals()
    config = PartitionConfig(scheme="natural", min_samples=1)
    made = build(data, DataConfig(normalize="client"), config, 0)

    for client in range(3):
        parts = [made.partition.parts[part][client] for part in ("train", "validation", "test")]
        train = data.x[parts[0]].astype(float)
        known = ~np.isnan(train).all(axis=0)
        mean = np.array([np.nanmean(train[:, k]) if known[k] else 0.0 for k in range(4)])
        full = np.where(np.isnan(train), mean, train)
        differ = np.array([len(set(column)) > 1 for column in train.T]) & known
        for rows in parts:
            filled = np.where(np.isnan(data.x[rows]), mean, data.x[rows])
            wanted = np.zeros_like(filled)
            np.divide(filled - mean, full.std(axis=0), out=wanted, where=differ)
            found = made.inputs(rows, torch.float32)
            np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-5)
        assert not made.inputs(np.concatenate(parts), torch.float32).isnan().any()

    other = data.x.copy()
    other[groups != 0] *= 3
    apart = build(replace(data, x=other), DataConfig(normalize="client"), config, 0)
    rows = np.flatnonzero(groups == 0)
    assert torch.equal(apart.inputs(rows, torch.float32), made.inputs(rows, torch.float32))
    pooled = [
        build(replace(data, x=x), DataConfig(), config, 0).inputs(rows, torch.float32)
        for x in (data.x, other)
    ]
    assert not torch.equal(*pooled)


def test_standard_deviation_of_a_client_is_exact_beside_a_large_mean():
    x = 1e7 + np.random.default_rng(2).integers(0, 3, size=(500, 1))
    data = table(x, np.zeros(500, dtype=np.int64))
    config = PartitionConfig(scheme="natural", min_samples=1)

    made = build(data, DataConfig(normalize="client"), config, 0)

    train = data.x[made.partition.parts["train"][0]].astype(float)
    assert float(1 / made.scale[0]) == pytest.approx(train.std(), rel=1e-6)


def test_normalization_by_client_of_images_and_in_worker_processes():
    made = federation("client", pool="merged")

    for client, rows in enumerate(made.partition.parts["train"]):
        x = made.inputs(rows, torch.float64)
        assert float(x.mean()) == pytest.approx(0, abs=1e-5)
        assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-5)
        rest = made.partition.parts["test"][client]
        pixels = made.dataset.x[rows].astype(float)
        wanted = (made.dataset.x[rest] - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(made.inputs(rest, torch.float64), wanted, atol=1e-5)
    sent = made.without_samples().with_samples(made.x.numpy()).to(torch.device("cpu"), x.dtype)
    assert torch.equal(sent.inputs(rest, torch.float64), made.inputs(rest, torch.float64))


def test_normalization_by_client_is_not_defined_for_a_common_test_set():
    with pytest.raises(DataError, match=r"pool=merged"):
        federation("client")


def test_common_test_set_exists_only_if_no_client_holds_its_samples():
    assert len(federation().common) == 297
    assert len(federation(pool="merged").common) == 0


def test_rows_ranges_of_one_order_are_disjoint_and_redrawn_only_by_round():
    made = federation()
    first, second = Draw(0, (0,), 5), Draw(0, (1,), 5)

    low, high = (made.rows(Samples("train", a, b), 2, first) for a, b in ((0.0, 0.2), (0.2, 1.0)))

    everything = made.partition.parts["train"][2]
    assert sorted([*low, *high]) == everything.tolist()
    assert np.array_equal(low, made.rows(Samples("train", 0.0, 0.2), 2, second))
    redrawn = Samples("train", 0.0, 0.5, redraw="round")
    assert not np.array_equal(made.rows(redrawn, 2, first), made.rows(redrawn, 2, second))


def test_a_fifth_of_few_samples_is_at_least_one_of_two():
    made, draw = federation(), Draw(0, (0,), 5)
    for samples, low in ((1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (8, 2), (10, 2)):
        parts = {"train": [np.arange(samples)], "validation": [], "test": []}
        few = replace(made, partition=replace(made.partition, parts=parts))
        ends = ((0.0, 0.2), (0.2, 1.0))
        first, second = (few.rows(Samples("train", a, b), 0, draw) for a, b in ends)
        assert len(first) == low
        assert sorted([*first, *second]) == list(range(samples))


def test_common_rows_with_a_limit_are_stratified_and_the_same_for_all_clients():
    made = federation()
    draw = Draw(0, (0,), 5)

    some = made.rows(Samples("common", limit=100), 0, draw)

    assert len(some) == 100
    assert made.common_rows(100) is made.common_rows(100)  # a draw for each client takes seconds
    assert np.array_equal(some, made.rows(Samples("common", limit=100), 4, draw))
    shares = np.bincount(made.dataset.y[some], minlength=10) / 100
    whole = np.bincount(made.dataset.y[made.common], minlength=10) / 297
    assert np.abs(shares - whole).max() <= 0.011


def test_missing_table_values_come_from_the_clients_own_training_part():
    groups = np.repeat([0, 1], 50)
    x = np.stack([np.where(groups == 0, 1.0, 5.0), np.arange(100.0)], axis=1)
    x[7, 0] = x[77, 0] = np.nan

    made = build(
        table(x, groups), DataConfig(), PartitionConfig(scheme="natural", min_samples=1), 0
    )

    assert made.x[7, 0] == 1.0
    assert made.x[77, 0] == 5.0
    assert made.notes
    x[groups == 0, 0] = np.nan  # no value at this client: that of the others
    config = PartitionConfig(scheme="natural", min_samples=1)
    assert (build(table(x, groups), DataConfig(), config, 0).x[:, 0] == 5.0).all()


def words_of(*clients: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """A column with the positions of words of each client, and the clients."""
    groups = np.repeat(np.arange(len(clients)), [len(words) for words in clients])
    return np.concatenate([np.array(words, dtype=np.float32) for words in clients]), groups


def encoded(codes: np.ndarray, groups: np.ndarray, words: tuple[str, ...]):
    """The federation of a column of words followed by a column of numbers."""
    data = table(np.stack([codes, np.arange(len(codes))], axis=1), groups)
    data = replace(data, columns=("colour", "size"), words=(words, ()))
    return build(data, DataConfig(), PartitionConfig(scheme="natural", min_samples=1), 0)


def test_words_become_one_column_each_at_all_clients():
    codes, groups = words_of([0, 1] * 10, [2] * 20)

    made = encoded(codes, groups, ("blue", "green", "red"))

    expected = np.eye(3)[codes.astype(int)]
    assert np.array_equal(made.x[:, :3].numpy(), expected)
    assert made.x[:, 3].tolist() == list(range(40))
    assert made.shape == (4,)


def test_words_are_those_of_training_parts_and_others_are_zero():
    codes, groups = words_of([0] * 20, [0] * 20)
    parts = encoded(codes, groups, ("blue", "red")).partition.parts
    unseen = np.concatenate([parts["validation"][0], parts["test"][1]])
    codes[unseen] = 1

    made = encoded(codes, groups, ("blue", "red"))

    assert made.shape == (2,)
    assert made.x[:, 0].tolist() == [float(code == 0) for code in codes]
    codes[parts["train"][1][0]] = 1
    assert encoded(codes, groups, ("blue", "red")).shape == (3,)


def test_missing_words_are_the_shares_of_the_words_in_the_clients_training_part():
    codes, groups = words_of([0, 0, 0, 1] * 10, [1] * 40)
    codes[[5, 50]] = np.nan

    made = encoded(codes, groups, ("blue", "red"))

    mine = codes[made.partition.parts["train"][0]]
    share = float((mine == 0).sum() / (~np.isnan(mine)).sum())
    assert made.x[5, :2].tolist() == pytest.approx([share, 1 - share])
    assert made.x[50, :2].tolist() == [0, 1]


def test_validation_and_test_values_never_enter_the_imputation():
    groups = np.zeros(100, dtype=np.int64)
    x = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    config = PartitionConfig(scheme="natural", min_samples=1)
    parts = build(table(x, groups), DataConfig(), config, 0).partition.parts
    x[parts["train"][0][0], 0] = np.nan
    changed = x.copy()
    changed[parts["test"][0], 0] += 1000
    changed[parts["validation"][0], 0] -= 1000

    filled = [
        build(table(v, groups), DataConfig(), config, 0).x[parts["train"][0][0], 0]
        for v in (x, changed)
    ]

    assert filled[0] == filled[1]


def test_augmentation_depends_on_keys_not_on_positions_or_batches():
    x = torch.rand(8, 3, 12, 12)
    keys = torch.arange(8) * 7919

    whole = augment(x, keys, ("crop", "flip"))

    order = torch.tensor([5, 2, 7, 0, 1, 3, 4, 6])
    assert torch.equal(augment(x[order], keys[order], ("crop", "flip")), whole[order])
    assert torch.equal(
        torch.cat(
            [
                augment(a, k, ("crop", "flip"))
                for a, k in zip(x.split(3), keys.split(3), strict=True)
            ]
        ),
        whole,
    )
    assert not torch.equal(whole, x)


def test_augmentation_of_an_image_is_a_shifted_and_maybe_flipped_copy():
    x = torch.arange(1.0, 145.0).reshape(1, 1, 12, 12)

    for key in range(40):
        seen = augment(x, torch.tensor([key * 104729]), ("crop", "flip"))
        inside = seen[seen > 0]
        assert set(inside.tolist()) <= set(x.flatten().tolist())
        assert len(inside.unique()) == len(inside)
        assert len(inside) >= 8 * 8


def test_flips_happen_half_of_the_time():
    x = torch.arange(4000 * 2.0).reshape(4000, 1, 1, 2)

    flipped = (augment(x, torch.arange(4000) * 7919, ("flip",)) != x).flatten(1).any(dim=1)

    # Five standard deviations of the mean of 4,000 fair coin flips.
    assert abs(float(flipped.double().mean()) - 0.5) < 5 * 0.5 / 4000**0.5


def floats(shift: float = 5.0) -> Dataset:
    x = np.random.default_rng(0).normal(size=(200, 2, 4, 4)) * np.array([1, 9])[:, None, None]
    y = np.arange(200) % 2
    return Dataset("floats", (x + shift).astype(np.float32), y, ("0", "1"), train=200)


def test_float_images_are_normalized_per_channel():
    config = PartitionConfig(clients=2, scheme="iid")
    made = build(floats(), DataConfig(), config, 0)
    train = np.sort(np.concatenate(made.partition.parts["train"]))

    x = made.inputs(train, torch.float64)

    assert x.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert x.std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx([1, 1], abs=1e-5)
