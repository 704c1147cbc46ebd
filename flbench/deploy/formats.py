"""Files of trained models that load and predict without flbench.

All formats but `safetensors` hold the whole model: raw samples in, scores out, any number of
samples. The model is traced by `torch.export`, so a file has PyTorch's operators alone.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor

from flbench.core import files
from flbench.core.errors import RunError, UserError
from flbench.core.user_code_errors import user_line
from flbench.deploy.models import TrainedModel

EXAMPLES: Final = 4  # samples that a model is traced with and compared on
TOLERANCE: Final = 1e-4  # largest difference of scores, relative to the largest score
Card = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        suffix: Suffix of its files.
        about: What it is, for people.
        load: How to load a file and predict, as lines of Python with FILE for its name.
        encode: Returns the content of the file for a model and its card.
    """

    suffix: str
    about: str
    load: tuple[str, ...]
    encode: Callable[[TrainedModel, Card], bytes]


def write(model: TrainedModel, file: Path, *, overwrite: bool = False) -> tuple[Path, Path]:
    """Write a model to FILE, and its card to FILE.json.

    The card is in the file too. It is `TrainedModel.card` and the keys `format`, `load` (lines of
    Python) and `architecture` (the net as PyTorch prints it).

    Args:
        model: The model.
        file: The file to write; its suffix says which of `FORMATS` it has.
        overwrite: Whether to replace the files if they exist.

    Returns:
        The file of the model and that of the card.

    Raises:
        UserError: There is no such format, a package is missing, a file exists, or the format
            cannot hold the model.
        OSError: The file cannot be written.
        RunError: The file would not predict what the model predicts.
    """
    name = choose(file)
    card_file = file.with_name(f"{file.name}.json")
    for place in (file, card_file):
        if place.exists() and not overwrite:
            raise UserError(f"{place} exists. Choose another file, or replace it with `overwrite`.")
    card = model.card | {
        "format": name,
        "load": [line.replace("FILE", repr(file.name)) for line in FORMATS[name].load],
        "architecture": str(model.net.net),
    }
    content = FORMATS[name].encode(model, card)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, content)
    files.write(card_file, (json.dumps(card, indent=1) + "\n").encode())
    return file, card_file


def choose(file: Path) -> str:
    """Return the name of the format that the suffix of a file stands for.

    Raises:
        UserError: There is none.
    """
    by_suffix = {one.suffix: name for name, one in FORMATS.items()}
    if file.suffix not in by_suffix:
        known = ", ".join(f"{suffix} ({name})" for suffix, name in by_suffix.items())
        raise UserError(f"there is no format of the suffix of {file}. Choose one of {known}.")
    return by_suffix[file.suffix]


def _examples(model: TrainedModel) -> Tensor:
    """Return raw samples [EXAMPLES, ...] drawn at random from the range of the data."""
    layout, shape = model.layout, (EXAMPLES, *model.inputs.raw_shape)
    draw = torch.Generator().manual_seed(0)
    if layout.kind == "tokens":
        return torch.randint(layout.vocabulary, shape, generator=draw)
    if layout.is_pixels and layout.range is not None:
        most = int(layout.range[1]) + 1
        return torch.randint(most, shape, generator=draw).to(torch.uint8)
    x = torch.randn(shape, generator=draw)
    for k, words in enumerate(layout.words):
        if words:
            x[:, k] = torch.arange(EXAMPLES) % len(words)
    return x


@contextmanager
def _holding(name: str) -> Iterator[None]:
    """Context manager in which PyTorch prints nothing, and its errors say what cannot be held.

    Raises:
        UserError: PyTorch cannot write the net in the format `name`.
    """
    logging.disable()  # PyTorch would print the whole graph
    try:
        with torch.no_grad(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # PyTorch's outer errors name the steps of the export; the innermost one has the reason.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        first = str(cause).strip().partition("\n")[0].rstrip(".")
        raise UserError(
            f"`{name}` cannot hold this net: {type(cause).__name__}: {first}{user_line(error)}."
            f" Choose another format: {_others(name)}."
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _others(name: str) -> str:
    """Return the names of the other formats as text."""
    return ", ".join(one for one in FORMATS if one != name)


def _program(model: TrainedModel, name: str) -> torch.export.ExportedProgram:
    """Return the model as an exported program: raw samples [batch, ...] to scores [batch, C]."""
    batch = torch.export.Dim("batch", min=1)
    with _holding(name):
        return torch.export.export(
            model.module, (_examples(model),), dynamic_shapes=({0: batch},), strict=False
        )


def _check(model: TrainedModel, predict: Callable[[Tensor], Tensor]) -> None:
    """Raise a RunError if an exported model does not predict what the model predicts."""
    for x in (_examples(model), _examples(model)[:1]):
        with torch.no_grad():
            wanted, found = model.module(x), predict(x)
        bound = TOLERANCE * float(wanted.nan_to_num(0.0, 0.0, 0.0).abs().max())
        if not torch.allclose(found, wanted, rtol=0.0, atol=bound, equal_nan=True):
            raise RunError("the exported model does not predict what the model predicts.")


def _as_program(model: TrainedModel, card: Card) -> bytes:
    """Return the content of a .pt2 file."""
    content = io.BytesIO()
    program = _program(model, "torch.export")
    _check(model, lambda x: torch.as_tensor(program.module()(x)))
    torch.export.save(program, content, extra_files={"card.json": json.dumps(card)})
    return content.getvalue()


def _as_onnx(model: TrainedModel, card: Card) -> bytes:
    """Return the content of an .onnx file.

    Raises:
        UserError: A package is missing.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 PyTorch imports it
    except ImportError as error:
        raise UserError(
            f"the format `onnx` needs the package `{error.name}`, which is not installed: pip"
            " install 'flbench[export]'"
        ) from error
    program = _program(model, "onnx")
    with _holding("onnx"):
        exported = torch.onnx.export(
            program, input_names=["samples"], output_names=["scores"], verbose=False
        )
        assert exported is not None
        proto = exported.model_proto
        onnx.helper.set_model_props(proto, {"card": json.dumps(card)})
        content: bytes = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content)
    _check(model, lambda x: torch.from_numpy(session.run(None, {"samples": x.numpy()})[0]))
    return content


def _as_weights(model: TrainedModel, card: Card) -> bytes:
    """Return the content of a .safetensors file.

    Raises:
        UserError: The model predicts by a rule that weights cannot express, or has buffers that
            are not among the weights.
    """
    if model.net.rule is not None:
        raise UserError(
            f"`safetensors` holds the weights of the net alone, but the model `{card['model']}` of"
            f" `{card['method']}` does not predict by the logits of its net. Choose another"
            f" format: {_others('safetensors')}."
        )
    if model.net.unsaved:
        raise UserError(
            f"`safetensors` holds what `load_state_dict` reads, and training has changed the buffer"
            f" `{model.net.unsaved[0]}`, which is not persistent. Choose another format."
        )
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    state = model.net.net.state_dict()
    weights = {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
    return save_safetensors(weights, {"card": json.dumps(card)})


_PREDICT: Final = "scores = model(samples)  # raw samples [B, ...] as a tensor -> [B, C]"

FORMATS: Final = MappingProxyType(
    {
        "torch.export": Format(
            ".pt2",
            "a program of torch.export, for Python and C++; loading it runs no code",
            ("import torch", "model = torch.export.load(FILE).module()", _PREDICT),
            _as_program,
        ),
        "onnx": Format(
            ".onnx",
            "ONNX, for ONNX Runtime and other languages",
            (
                "import onnxruntime",
                "model = onnxruntime.InferenceSession(FILE)",
                "[scores] = model.run(None, {'samples': samples})  # NumPy arrays",
            ),
            _as_onnx,
        ),
        "safetensors": Format(
            ".safetensors",
            "the weights alone; the card describes the layers and the normalization",
            (
                "from safetensors.torch import load_file",
                "weights = load_file(FILE)",
                "# make the layers of `architecture`, net.load_state_dict(weights), net.eval();"
                " inputs are (samples - mean) / std, or 0 where std is null",
            ),
            _as_weights,
        ),
    }
)
"""The formats by name; the first one is the default."""
