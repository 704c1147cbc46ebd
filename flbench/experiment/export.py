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
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from flbench.core import files
from flbench.core.errors import RunError, UserError, did_you_mean
from flbench.core.raised import user_line
from flbench.core.shapes import TokenShape
from flbench.core.wording import setting
from flbench.experiment.trained import TrainedModel

EXAMPLES: Final = 4  # samples that a model is traced with and compared on
# Largest differences of scores, relative to the largest score.
TOLERANCE: Final = 1e-4  # of ONNX Runtime, whose kernels round differently
ROUNDINGS: Final = 1024  # of PyTorch, in roundings of the type: fused kernels are taken apart


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
    encode: Callable[[TrainedModel, dict[str, Any]], bytes]


def write(
    model: TrainedModel, file: Path, format: str | None = None, *, overwrite: bool = False
) -> tuple[Path, Path]:
    """Write a model to FILE, and its card to FILE.json.

    The card is in the file too. It is `TrainedModel.card` and the keys `format`, `load` (lines of
    Python) and `architecture` (the layers by their names in PyTorch).

    Args:
        model: The model.
        file: The file to write.
        format: One of `FORMATS`; None for the one that the suffix of the file stands for.
        overwrite: Whether to replace the files if they exist.

    Returns:
        The file of the model and that of the card.

    Raises:
        UserError: There is no such format, a package is missing, a file exists, or the format
            cannot hold the model.
        RunError: The file would not predict what the model predicts, or the disk failed.
    """
    name = choose(format, file)
    chosen = FORMATS[name]
    card_file = file.with_name(f"{file.name}.json")
    for place in (file, card_file):
        if place.exists() and not overwrite:
            raise UserError(
                f"{place} exists. Choose another file, or replace it with {setting('overwrite')}."
            )
    card = model.card | {
        "format": name,
        "load": [line.replace("FILE", repr(file.name)) for line in chosen.load],
        "architecture": architecture(model.net.net),
    }
    try:
        content = chosen.encode(model, card)
    except (UserError, RunError):
        raise
    except Exception as error:
        if "out of memory" in str(error):
            raise
        others = ", ".join(one for one in FORMATS if one != name)
        raise _cannot_hold(name, error, f"Choose another format: {others}.") from error
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, content)
        files.write(card_file, (json.dumps(card, indent=1) + "\n").encode())
    except OSError as error:
        failed = RunError if error.errno in files.DISK_ERRORS else UserError
        raise failed(f"{file} cannot be written: {error.strerror}. Choose another file.") from error
    return file, card_file


def choose(format: str | None, file: Path | None) -> str:
    """Return the name of a format.

    Args:
        format: A name; None for the one that the suffix of the file stands for.
        file: The file; None for `torch.export` without a name.

    Raises:
        UserError: There is no such format, or none has this suffix.
    """
    if format is not None:
        if format not in FORMATS:
            raise UserError(
                f"there is no format `{format}`.{did_you_mean(format, FORMATS)} Formats:"
                f" {', '.join(FORMATS)}."
            )
        return format
    if file is None:
        return next(iter(FORMATS))
    for name, known in FORMATS.items():
        if file.suffix == known.suffix:
            return name
    suffixes = ", ".join(f"{known.suffix} ({name})" for name, known in FORMATS.items())
    raise UserError(
        f"the suffix of {file} stands for no format: {suffixes}. Choose one of these, or give"
        f" {setting('format')}."
    )


def architecture(net: nn.Module) -> list[dict[str, str]]:
    """Return the layers of a net in the order of their definition.

    Args:
        net: The net.

    Returns:
        `name`, `module` (the class of PyTorch) and `arguments` of each module without submodules.
        A class of flbench is described by the class of PyTorch that it derives from.
    """
    return [
        {
            "name": name,
            "module": next(
                f"torch.nn.{kind.__name__}"
                for kind in type(module).__mro__
                if kind.__module__.startswith("torch.nn")
            ),
            "arguments": module.extra_repr(),
        }
        for name, module in net.named_modules()
        if not any(True for _ in module.children())
    ]


def _examples(model: TrainedModel) -> Tensor:
    """Return raw samples [EXAMPLES, ...] drawn at random from the range of the data."""
    rng = np.random.default_rng(0)
    shape = (EXAMPLES, *model.raw_shape)
    if isinstance(model.inputs.shape, TokenShape):
        return torch.from_numpy(rng.integers(0, model.inputs.shape.vocabulary, shape))
    if model.largest is not None:
        return torch.from_numpy(rng.integers(0, int(model.largest) + 1, shape, dtype=np.uint8))
    x = rng.normal(size=shape)
    for k, words in enumerate(model.words):
        if words:
            x[..., k] = rng.integers(0, len(words), EXAMPLES)
    return torch.from_numpy(x.astype(np.float32))


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Return a context manager in which PyTorch neither prints nor warns.

    Args:
        name: Name of the logger.
    """
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _program(model: TrainedModel) -> torch.export.ExportedProgram:
    """Return the model as an exported program: raw samples [batch, ...] to scores [batch, C]."""
    examples, batch = _examples(model), torch.export.Dim("batch", min=1)
    with torch.no_grad(), _quiet("torch.fx.experimental.symbolic_shapes"):
        try:
            program = torch.export.export(
                model.module, (examples,), dynamic_shapes=({0: batch},), strict=False
            )
        except Exception as error:
            if "out of memory" in str(error):
                raise
            cure = (
                "Choose `safetensors`, which holds the weights alone, or let forward use tensors by"
                " operations of PyTorch alone."
            )
            raise _cannot_hold("torch.export", error, cure) from error
    _check(model, lambda x: torch.as_tensor(program.module()(x)))
    return program


def _cannot_hold(name: str, error: Exception, cure: str) -> UserError:
    """Return the error about a format that cannot hold a net.

    Args:
        name: Name of the format.
        error: What PyTorch has raised.
        cure: A sentence on what to do.
    """
    # PyTorch's outer errors name the steps of the export; the innermost one has the reason.
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    first = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
    return UserError(
        f"`{name}` cannot hold this net: {type(cause).__name__}: {first.rstrip('.')}"
        f"{user_line(error)}. {cure}"
    )


def _check(
    model: TrainedModel, predict: Callable[[Tensor], Tensor], tolerance: float | None = None
) -> None:
    """Compare the predictions of an exported model with those of the model.

    Args:
        model: The model.
        predict: The exported model: raw samples to scores.
        tolerance: Largest difference, relative to the largest finite score; None for `ROUNDINGS`
            roundings of the type of the scores.

    Raises:
        RunError: The scores differ.
    """
    for x in (_examples(model), _examples(model)[:1]):
        with torch.no_grad():
            wanted, found = model.module(x), predict(x)
        if tolerance is None:
            tolerance = ROUNDINGS * torch.finfo(wanted.dtype).eps
        finite = wanted.isfinite()
        bound = tolerance * float(wanted[finite].abs().max()) if finite.any() else 0.0
        same = torch.equal(wanted[~finite], found[~finite])
        if not same or bool(((wanted - found)[finite].abs() > bound).any()):
            raise RunError("the exported model does not predict what the model predicts.")


def _as_program(model: TrainedModel, card: dict[str, Any]) -> bytes:
    """Return the content of a .pt2 file."""
    content = io.BytesIO()
    torch.export.save(_program(model), content, extra_files={"card.json": json.dumps(card)})
    return content.getvalue()


def _as_module(model: TrainedModel, card: dict[str, Any]) -> bytes:
    """Return the content of a .pt file: a pickled `torch.fx.GraphModule`."""
    module = _program(model).module(check_guards=False)
    # The program's own graph has a tracer, nested inputs, and notes on the code of flbench.
    graph = torch.fx.Graph()
    [scores] = graph.graph_copy(module.graph, {})  # type: ignore[misc]
    graph.output(scores)
    _create_from_samples(graph)
    for node in graph.nodes:
        node.meta = {}
    plain = torch.fx.GraphModule(module, graph, "TrainedModel")
    plain.card = card  # type: ignore[assignment]
    content = io.BytesIO()
    torch.save(plain, content)
    content.seek(0)
    # It records the operations anew, with placeholders for sizes, which some refuse.
    _check(model, torch.load(content, weights_only=False))
    return content.getvalue()


def _create_from_samples(graph: torch.fx.Graph) -> None:
    """Let operations that create tensors, such as the initial state of a GRU, take the samples.

    A file of this format is read by recording its operations anew, and an operation without a
    tensor among its arguments is not recorded, while its size depends on the number of samples.
    """
    aten = torch.ops.aten
    like = {
        aten.zeros.default: aten.new_zeros.default,
        aten.ones.default: aten.new_ones.default,
        aten.empty.memory_format: aten.new_empty.default,
        aten.full.default: aten.new_full.default,
    }
    samples = next(node for node in graph.nodes if node.op == "placeholder")
    for node in graph.nodes:
        if node.op == "call_function" and node.target in like:
            node.target = like[node.target]
            node.args = (samples, *node.args)
            # Without a type, these operations take that of the samples.
            node.kwargs = {"dtype": torch.get_default_dtype(), **node.kwargs}


def _as_onnx(model: TrainedModel, card: dict[str, Any]) -> bytes:
    """Return the content of an .onnx file.

    Raises:
        UserError: A package is missing.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"the format `onnx` needs the package `{missing[0]}`, which is not installed: pip"
            " install 'flbench[export]'"
        )
    import onnx
    import onnxruntime

    program = _program(model)
    with torch.no_grad(), _quiet("torch.onnx"):
        program = program.run_decompositions(
            {
                **torch.export.default_decompositions(),
                torch.ops.aten._cdist_forward.default: _euclidean_distances,
                torch.ops.aten.rrelu.default: _mean_slope,
            }
        )
        exported = torch.onnx.export(
            program, input_names=["samples"], output_names=["scores"], verbose=False
        )
    assert exported is not None
    proto = exported.model_proto
    onnx.helper.set_model_props(proto, {"card": json.dumps(card)})
    content: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content)

    def predict(x: Tensor) -> Tensor:
        scores: NDArray[Any] = session.run(None, {"samples": x.numpy()})[0]
        return torch.from_numpy(scores)

    _check(model, predict, TOLERANCE)
    return content


def _euclidean_distances(a: Tensor, b: Tensor, p: float, mode: int | None) -> Tensor:
    """Return the distances [n, m] between rows of [n, D] and [m, D], for ONNX, without `cdist`."""
    assert p == 2.0
    return (a[:, None] - b).square().sum(dim=2).sqrt()


def _mean_slope(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Tensor:
    """Return RReLU in eval mode as a leaky ReLU, for ONNX, which has no RReLU."""
    assert not training
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


def _as_weights(model: TrainedModel, card: dict[str, Any]) -> bytes:
    """Return the content of a .safetensors file.

    Raises:
        UserError: The model predicts by a rule that weights cannot express, or needs buffers that
            are not among the weights.
    """
    if model.net.has_rule:
        raise UserError(
            f"`safetensors` holds the weights of the net alone, but the model `{card['model']}` of"
            f" `{card['method']}` does not predict by the logits of its net. Choose another"
            f" format: {', '.join(name for name in FORMATS if name != 'safetensors')}."
        )
    if model.net.unsaved:
        raise UserError(
            f"`safetensors` holds what `load_state_dict` reads, and training has changed the buffer"
            f" `{model.net.unsaved[0]}`, which is not persistent. Register it without"
            " persistent=False, or choose another format."
        )
    weights: dict[str, Tensor] = {}
    for name, value in model.net.net.state_dict().items():
        if isinstance(value, Tensor):  # without what `get_extra_state` returns
            # safetensors refuses tensors that share memory, as tied weights do.
            seen = {one.data_ptr() for one in weights.values()}
            weights[name] = value.clone() if value.data_ptr() in seen else value.contiguous()
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
        "torch": Format(
            ".pt",
            "a torch.nn.Module (a pickled graph), to train or change it further",
            ("import torch", "model = torch.load(FILE, weights_only=False)", _PREDICT),
            _as_module,
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
