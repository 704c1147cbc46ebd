import torch

from flbench.core.types import Message
from flbench.experiment.communication import apply_mask, row_bytes, shared_bytes


def test_bytes_without_mask_are_item_size_times_entries():
    message = Message({"w": torch.zeros(2, 3, 4), "n": torch.zeros(2, dtype=torch.int64)})

    assert row_bytes(message).tolist() == [12 * 4 + 8] * 2


def test_bytes_count_only_entries_inside_masks_of_any_depth():
    values = {"p": torch.zeros(2, 3, 5), "s": torch.zeros(2, 3, 3), "w": torch.zeros(2, 7)}
    masks = {
        "p": torch.tensor([[True, False, True], [False, False, False]]),
        "s": torch.ones(2, 3, 3, dtype=torch.bool).triu(1),
        "w": torch.tensor([True, False]),
    }

    assert row_bytes(Message(values, masks)).tolist() == [(10 + 3 + 7) * 4, 3 * 4]


def test_shared_bytes_have_no_client_axis():
    message = Message(
        {"p": torch.zeros(3, 5), "m": torch.zeros(3, dtype=torch.bool)},
        {"p": torch.tensor([1, 0, 1]) > 0},
    )

    assert shared_bytes(message) == 10 * 4 + 3


def test_empty_message_has_no_bytes():
    assert row_bytes(Message()).sum() == 0
    assert shared_bytes(Message()) == 0


def test_apply_mask_zeroes_entries_outside_the_mask_even_nan():
    value = torch.full((2, 2), torch.nan)
    value[0] = 1.0

    masked = apply_mask(Message({"w": value, "free": value}, {"w": torch.tensor([True, False])}))

    assert masked.values["w"].tolist() == [[1, 1], [0, 0]]
    assert masked.values["free"].isnan().any()
