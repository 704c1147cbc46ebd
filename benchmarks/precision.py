"""Compares the accuracy of `engine.precision` 32-true, tf32 and bf16-mixed over ten repetitions.

    python benchmarks/precision.py DATA_DIR OUT_DIR [NAME ...]

DATA_DIR has fashionmnist.npz. A setting of SETTINGS is a comparison of `fl.compare` in
OUT_DIR/NAME, whose report is printed. Where PyTorch sees no GPU, TF32 is emulated on the CPU.
"""

import sys
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import flbench as fl
from flbench.engine import base

DIGITS: Final = {"data.name": "digits", "model.name": "mlp", "train.rounds": 40}
FASHION: Final = {
    "data.name": "fashionmnist",
    "partition.samples": 2000,
    "model.name": "lenet5",
    "train.rounds": 10,
}
SETTINGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "digits-fedavg": ("fedavg", DIGITS),
    "digits-ditto": ("ditto", DIGITS),
    "digits-hfcd": ("hfcd", {**DIGITS, "train.rounds": 10}),
    "fashion-fedavg": ("fedavg", FASHION),
}
PRECISIONS: Final = {"float32": "32-true", "TF32": "tf32", "bf16": "bf16-mixed"}
PRODUCTS: Final = {
    **dict.fromkeys(("mm", "bmm", "convolution"), slice(0, 2)),
    **dict.fromkeys(("addmm", "baddbmm"), slice(1, 3)),
    "convolution_backward": slice(0, 3),
}
"""Which arguments of an operation are factors."""


class Rounding(TorchDispatchMode):
    """Rounds the factors of all products as TF32 does: 10 bits of mantissa, ties away from zero.

    The products are added up in float32. Gradients are computed by the same operations.
    """

    is_on = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation with rounded factors."""
        name, given = func.overloadpacket.__name__, list(args)
        if not self.is_on or name not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        given[PRODUCTS[name]] = map(_rounded, args[PRODUCTS[name]])
        found = func(*given, **(kwargs or {}))
        if name == "convolution_backward" and args[-1][2]:
            # The gradient of the bias is a sum of what has not been rounded.
            found = (*found[:2], args[0].sum(dim=(0, *range(2, args[0].dim()))))
        return found


def _rounded(value: Tensor) -> Tensor:
    """Return a tensor rounded to 10 bits of mantissa if its type is float32."""
    if value.dtype != torch.float32:
        return value
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def main() -> None:
    """Compare the precisions in the settings that the command line names."""
    data, out, *names = sys.argv[1:]
    rounding = Rounding()

    def emulated(config: Any, device: torch.device) -> None:
        rounding.is_on = config.precision == "tf32"  # cells are trained one after the other

    if not torch.cuda.is_available():
        base.check_precision = emulated
        rounding.__enter__()
    for name in names or SETTINGS:
        method, settings = SETTINGS[name]
        methods = [f"{label}: {method} engine.precision={key}" for label, key in PRECISIONS.items()]
        keys = {**settings, "data.root": data, "train.optimizer.lr": 0.1, "engine.workers": 1}
        found = fl.compare(methods, seeds=10, jobs=1, out=f"{out}/{name}", **keys)
        print(found.leaderboard.to_string(), found.pairs.to_string(), sep="\n", flush=True)


if __name__ == "__main__":
    main()
