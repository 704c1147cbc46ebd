"""What is added to a comparison that has begun: methods, repetitions, and keys that may change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from flbench.comparison import tuned
from flbench.comparison.design import DEFAULTS, SECTION, Design, LabelledLayer
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, from_values, leaves, merge
from flbench.core.errors import ConfigError
from flbench.experiment.lifecycle import CHANGEABLE_ON_RESUME
from flbench.results import study_folder
from flbench.results.differences import text_of

RESUMED: Final = "flbench compare --resume"  # origin of values that changed on resume
SECRET: Final = ("tracking.uri", "engine.address")
"""Keys of which a configuration shows only a part, or which another folder may have named."""


def added(
    before: Design,
    methods: Sequence[LabelledLayer],
    layers: Sequence[Layer],
    seeds: int | None,
    path: Path,
) -> tuple[Design, Layer]:
    """Return the design with what is added, and the values of keys that change.

    Args:
        before: The design of the comparison.
        methods: Methods, new or known.
        layers: Layers of the configuration, from the lowest to the highest.
        seeds: Number of repetitions; None for as many as before.
        path: Folder of the comparison, for messages.

    Raises:
        ConfigError: A key must not change. The message has one line for each of them.
    """
    asked = Design.of(methods, layers, seeds=before.seeds if seeds is None else seeds)
    if asked.seeds < before.seeds:
        raise ConfigError(
            f"`seeds={asked.seeds}`: {path} has {before.seeds} repetitions, which are"
            " kept. Leave it out, or give a larger number."
        )
    known = {one.label: one.layer for one in before.methods}
    for method in asked.methods if methods else [LabelledLayer.of("", merge(layers))]:
        was = known.get(method.label, method.layer if methods else Layer())
        for key, (value, _) in method.layer.items():
            default = value if before.tuned is not None and methods else "its default"
            place = was if key in was else before.base
            old = place[key].value if key in place else default
            if (methods or key.startswith(SECTION)) and text_of(old) != text_of(value):
                raise _unchangeable(key, old, value, path)
    new = tuple(one for one in asked.methods if one.label not in known)
    untuned = before.untuned
    if new and before.tuned is not None:
        new, others = tuned.best(new, before.base, study_folder.read(Path(before.tuned)))
        untuned = tuple(dict.fromkeys([*untuned, *others]))
    changes = _changes(before, asked.base, path)
    # Later calls send the comparison to the same store of MLflow.
    tracking = {key: value for key, value in changes.items() if key.startswith("tracking.")}
    base = merge([before.base, from_values(tracking, RESUMED)]) if tracking else before.base
    changed = from_values({k: v for k, v in changes.items() if k not in tracking}, RESUMED)
    every = (*before.methods, *new)
    return before.altered(base=base, methods=every, seeds=asked.seeds, untuned=untuned), changed


def _changes(before: Design, base: Layer, path: Path) -> dict[str, Any]:
    """Return the given values that differ from those of a comparison and may do so, by their keys.

    Raises:
        ConfigError: One of them must not change.
    """
    was, now = (leaves(resolve([DEFAULTS, before.base, *more])[0].tree()) for more in ([], [base]))
    changed = {key: value for key, value in now.items() if was.get(key) != value}
    errors = [
        str(_unchangeable(key, was.get(key), value, path))
        for key, value in changed.items()
        if not key.startswith(CHANGEABLE_ON_RESUME) or key == "engine.name"
    ]
    if errors:
        raise ConfigError("\n".join(errors))
    return changed | {key: base[key].value for key in SECRET if key in base}


def _unchangeable(key: str, was: Any, value: Any, path: Path) -> ConfigError:
    return ConfigError(
        f"`{key}` was {was!r} when {path} began and cannot become {value!r} on resume. Start a new"
        " comparison with the new value."
    )
