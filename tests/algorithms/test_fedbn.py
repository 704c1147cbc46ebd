"""FedBN keeps BatchNorm layers that names would not show."""

from tests.support import build


def test_layers_are_known_by_type_not_by_name():
    """A search for "bn" or "norm" would miss ResNet's shortcuts."""
    personal = build("algorithm=fedbn", "model.name=resnet18").algorithm.personal()

    assert "backbone.stage2_block1.shortcut.1.weight" in personal
    assert "backbone.stage2_block1.shortcut.1.running_mean" in personal
    assert "backbone.stage2_block1.shortcut.0.weight" not in personal
    assert len(personal) == 20 * 5
