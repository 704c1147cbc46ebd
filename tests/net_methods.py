"""The table of nets and methods in the docs. `python -m tests.net_methods` writes it.

A cell is the result of one tiny round and its evaluation. To add a net, add an entry to `NETS`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides
from flbench.core.errors import UserError
from flbench.experiment import assembly
from flbench.experiment.rounds import settings_of
from flbench.testing import fingerprint, played

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "guides" / "nets-and-methods.md"
BEGIN: Final = "<!-- written by `python -m tests.net_methods` -->\n"
TRAINS: Final = "trains"
METHODS: Final = (
    *("local", "fedavg", "ft", "fedper", "fedbn", "ditto", "hfcd", "fedproto", "moon", "fedpc"),
    *("fedala", "dfedavg"),
)
KEYS: Final = (
    "partition.scheme=iid",
    "partition.clients=2",
    "partition.min_samples=1",
    "train.rounds=1",
    "train.local_epochs=1",
    "train.batch_size=4",
    "engine.threads=1",
    "tracking.mlflow=false",
)


@dataclass(frozen=True)
class Net:
    """A row of the table.

    Attributes:
        title: The net as the table names it.
        model: Section `model`.
        data: Function of this module that returns the samples.
    """

    title: str
    model: dict[str, Any] = field(default_factory=dict)
    data: str = "colour"


SMALL_TRANSFORMER: Final = {"name": "transformer", "width": 8, "heads": 2, "layers": 1}
NETS: Final = (
    Net("torchvision vgg11", {"name": "torchvision.models:vgg11"}),
    Net("torchvision mobilenet_v3_small", {"name": "torchvision.models:mobilenet_v3_small"}),
    Net("torchvision efficientnet_b0", {"name": "torchvision.models:efficientnet_b0"}),
    Net("torchvision resnet18", {"name": "torchvision.models:resnet18"}),
    Net(
        "torchvision VisionTransformer (2 layers)",
        {
            "name": "torchvision.models:VisionTransformer",
            "args": {
                "image_size": 32,
                "patch_size": 8,
                "num_layers": 2,
                "num_heads": 2,
                "hidden_dim": 32,
                "mlp_dim": 64,
            },
        },
    ),
    Net("timm mobilenetv3_small_050", {"name": "timm:mobilenetv3_small_050"}),
    Net("cnn1d", {"name": "cnn1d", "channels": [4, 4], "hidden": 8}, "series"),
    Net("gru", {"name": "gru", "hidden": 8}, "tokens"),
    Net("transformer", SMALL_TRANSFORMER, "tokens"),
    Net("transformer with LoRA", {**SMALL_TRANSFORMER, "lora": {"rank": 2}}, "tokens"),
)


def colour() -> tuple[torch.Tensor, torch.Tensor]:
    """Return colour images [40, 3, 32, 32] and labels [40] of two classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    return torch.rand(40, 3, 32, 32, generator=generator) + y[:, None, None, None], y


def series() -> tuple[torch.Tensor, torch.Tensor]:
    """Return series [40, 2, 64] and labels [40] of two classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    return torch.rand(40, 2, 64, generator=generator) + y[:, None, None], y


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of tokens [40, 12] and labels [40] of two classes."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    return torch.randint(0, 6, (40, 12), generator=generator) + 3 * y[:, None], y


def cell(net: Net, method: str) -> str:
    """Return `TRAINS`, or the reason why a net cannot be trained by a method."""
    torch.manual_seed(0)
    model = yaml.safe_dump(net.model, default_flow_style=True, width=10_000).strip()
    source = f"data.source=tests.net_methods:{net.data}"
    kind = {"colour": "images"}.get(net.data, net.data)
    try:
        layer = from_overrides(
            [*KEYS, source, f"data.kind={kind}", f"model={model}", f"algorithm.name={method}"]
        )
        built = assembly.build(resolve([layer])[0])
    except UserError as error:
        return str(error).splitlines()[0]
    state = built.start()
    before = fingerprint(state)
    while state.round < 1:
        state, _ = played(built, state)
    values = [*state.server.values(), *state.clients.values()]
    assert all(value.isfinite().all() for value in values if value.is_floating_point())
    assert fingerprint(state) != before
    settings = settings_of(built.algorithm, state, setup=False)
    built.evaluator(warn=_refuse).evaluate(state, settings, common=False)
    return TRAINS


def _refuse(text: str) -> None:
    """Raise an AssertionError: fine-tuning has diverged."""
    raise AssertionError(text)


def page(cells: dict[tuple[str, str], str]) -> str:
    """Return the part of the page below `BEGIN`: the table, and the reasons below it.

    Args:
        cells: What `cell` returns, by the title of the net and the name of the method.
    """
    reasons = list(dict.fromkeys(text for text in cells.values() if text != TRAINS))
    numbers = {reason: f"[{number}]" for number, reason in enumerate(reasons, start=1)}
    lines = [f"| net | {' | '.join(METHODS)} |", f"|---|{'---|' * len(METHODS)}"]
    for net in NETS:
        row = [numbers.get(text := cells[net.title, one], text) for one in METHODS]
        lines.append(f"| {net.title} | {' | '.join(row)} |")
    lines += [""] + [f"- {number} {reason}" for reason, number in numbers.items()]
    return "\n".join(lines).rstrip() + "\n"


def written() -> dict[tuple[str, str], str]:
    """Return the cells of the page as it is, with reasons in the place of their numbers."""
    lines = PAGE.read_text().partition(BEGIN)[2].splitlines()
    reasons = dict(line[2:].split(" ", 1) for line in lines if line.startswith("- ["))
    found = {}
    methods: list[str] = []
    for line in lines:
        if not line.startswith("|") or line.startswith("|---"):
            continue
        title, *row = [one.strip() for one in line.strip("|").split("|")]
        if title == "net":
            methods = row
        else:
            found |= {
                (title, one): reasons.get(text, text)
                for one, text in zip(methods, row, strict=True)
            }
    return found


def main() -> None:
    """Write the page."""
    cells = {(net.title, method): cell(net, method) for net in NETS for method in METHODS}
    PAGE.write_text(PAGE.read_text().partition(BEGIN)[0] + BEGIN + page(cells))


if __name__ == "__main__":
    main()
