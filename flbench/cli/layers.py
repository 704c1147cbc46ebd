"""The configuration layers that `--config`, `--algo`, `--out` and overrides stand for."""

from collections.abc import Sequence
from pathlib import Path

from flbench.cli import console
from flbench.config.sources import Layer, from_file, from_overrides
from flbench.core.errors import UserError


def split_names(items: Sequence[str], kind: str) -> tuple[str | None, list[str]]:
    """Separate a name from the overrides `key=value` that follow it.

    Args:
        items: Arguments of a command.
        kind: What the name is of, for the error message.

    Returns:
        The name, or None if there is none; and the overrides.

    Raises:
        UserError: There is more than one name.
    """
    names = [item for item in items if "=" not in item]
    if len(names) > 1:
        raise UserError(f"give one {kind}, got {', '.join(names)}.")
    return (names[0] if names else None), [item for item in items if "=" in item]


def one_run(config: str | None, overrides: Sequence[str], out: str | None = None) -> list[Layer]:
    """Return the layers of one run, from the lowest to the highest: file, overrides, `--out`."""
    for option, value in (("--config", config), ("--out", out)):
        if value == "":
            raise UserError(f"{option} is empty. Give a path, or leave the option out.")
    layers = [] if config is None else [from_file(Path(config))]
    layers.append(from_overrides(overrides))
    if out is not None:
        layers.append(Layer({"output": {"dir": out}}, {"output.dir": "--out"}))
    return layers


def one_run_per_method(
    algo: str | None, *, config: str | None, overrides: Sequence[str], out: str | None
) -> list[list[Layer]]:
    """Return the layers of each run: one run for each method that `--algo` names.

    If there are several methods, each one gets those overrides `algorithm.KEY=...` whose key it
    has. A key that none of the methods has is refused later, when the configuration is resolved.

    Raises:
        UserError: A name is empty, or a method is named twice.
    """
    if algo is None:
        return [one_run(config, overrides, out)]
    names = [name.strip() for name in algo.split(",")]
    for name in names:
        if not name:
            raise UserError(f"--algo {algo}: a name is empty. Put one comma between two names.")
        if names.count(name) > 1:
            raise UserError(f"--algo {algo}: `{name}` is named twice. Name it once.")
    runs = []
    for name in names:
        method_overrides = overrides if len(names) == 1 else _overrides_of(name, names, overrides)
        method = Layer({"algorithm": {"name": name}}, {"algorithm.name": "--algo"})
        runs.append([*one_run(config, method_overrides, out), method])
    return runs


def _overrides_of(name: str, names: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides without the keys that only other methods of the comparison have."""
    from flbench.api.arguments import keys_of_others

    sections = [item.partition("=")[0].strip().partition(".") for item in overrides]
    keys = [key for section, _, key in sections if section == "algorithm" and key]
    others = keys_of_others(name, names, keys)
    kept = []
    for item, (section, _, key) in zip(overrides, sections, strict=True):
        if section == "algorithm" and key in others:
            owners = ", ".join(others[key])
            console.notes([f"{section}.{key} is set for {owners}; {name} has no such key."])
        else:
            kept.append(item)
    return kept
