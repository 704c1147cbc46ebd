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
    changes = _changes([before.base], asked.base)
    wrong = {
        key: values
        for key, values in changes.items()
        if not key.startswith(CHANGEABLE_ON_RESUME) or key == "engine.name"
    }
    for one in asked.methods:
        if one.label in known:
            wrong |= _changes([before.base, known[one.label]], one.layer)
    if not methods:  # then nothing has these keys
        of_methods = merge(layers).where(lambda key: key.startswith(SECTION))
        wrong |= {key: ("not given", one.value) for key, one in of_methods.items()}
    if wrong:
        raise ConfigError(
            "\n".join(
                f"`{key}` was {was!r} when {path} began and cannot become {value!r} on resume."
                " Start a new comparison with the new value."
                for key, (was, value) in wrong.items()
            )
        )
    new = tuple(one for one in asked.methods if one.label not in known)
    untuned = before.untuned
    if new and before.tuned is not None:
        new, others = tuned.best(new, before.base, study_folder.read(Path(before.tuned)))
        untuned = tuple(dict.fromkeys([*untuned, *others]))
    values = {key: value for key, (_, value) in changes.items()}
    values |= {key: asked.base[key].value for key in SECRET if key in asked.base}
    changed = from_values(values, RESUMED)
    # Later calls send the comparison to the same store of MLflow.
    tracking = changed.where(lambda key: key.startswith("tracking."))
    base = merge([before.base, tracking])
    every = (*before.methods, *new)
    return (
        before.altered(base=base, methods=every, seeds=asked.seeds, untuned=untuned),
        changed.where(lambda key: key not in tracking),
    )


def _changes(was: Sequence[Layer], given: Layer) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new values of the keys that a layer changes, by their names."""
    old, new = (leaves(resolve([DEFAULTS, *was, *more])[0].tree()) for more in ([], [given]))
    return {key: (old.get(key), value) for key, value in new.items() if old.get(key) != value}
