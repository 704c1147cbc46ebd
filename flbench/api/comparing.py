"""Comparing methods, or variants of one, from Python, and resuming a comparison."""

import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, sep
from pathlib import Path
from typing import Any, Final

from flbench.api import campaigns
from flbench.api.comparisons import PlannedComparison
from flbench.api.progress import Caller
from flbench.calls import arguments, parts
from flbench.comparison import ablation
from flbench.comparison import tuned as tuning
from flbench.comparison.design import SECTION, Design, LabelledLayer, words_of
from flbench.config.sources import Layer, from_values, is_line, merge, value_of, values_of
from flbench.config.trust import run_code
from flbench.core.errors import ConfigError
from flbench.core.own_names import checked
from flbench.core.registry import ALGORITHMS
from flbench.data.own import is_own
from flbench.jobs.samples import LoadedSamples

FILES: Final = (".npz", ".zip", ".csv", ".tsv", ".parquet")  # ends of a data set's name in --data
DATA: Final = ("name", "path", "source")  # keys of `data` that say which data set it is
SHARED: Final = ("seed", "partition.", "data.", "output.", "tracking.")
"""Beginnings of keys that no method has for itself."""
NAMING: Final = tuple(f"{SECTION}{key}" for key in ("name", "source", "sha256"))


def call(
    name: str,
    values: Mapping[str, Any],
    keys: Mapping[str, Any],
    variants: Callable[[Design], Design] = lambda design: design,
) -> PlannedComparison:
    """Carry out a call of the verb `name`: of `compare`, or of one that compares variants.

    `variants` makes the design that is carried out from the design of what is given.
    """
    given = arguments.sections(values, keys)
    if values["address"] is not None:
        given["engine.address"] = values["address"]
    settings = {one: values[one] for one in ("seeds", "vary", "grid", "tuned")}
    with run_code(values["trust"]):
        sets, own = data_sets(given.pop("data", None))
        plain, objects = parts.split(given)
        design = design_of(
            methods_of(values["methods"], f"argument of fl.{name}"),
            arguments.layers(name, values["config"], plain),
            sets,
            variants,
            **settings,
        )
        written = {one: values.get(one) for one in ("methods", "keys", "values", "force")}
        written |= settings | plain
        left_out = (None, False)
        told = [f"{k}={v!r}" for k, v in written.items() if not any(v is one for one in left_out)]
        caller = Caller.of(values, objects, ["data", *objects] if own else None)
        samples = LoadedSamples(objects, own)
        ending = campaigns.Campaign(caller, samples, values["jobs"], values["force"]).start(
            design,
            out=campaigns.OUT if values["out"] is None else arguments.path_of(values["out"], "out"),
            command=(f"fl.{name}({', '.join(told)})",),
        )
    ending.check(caller)
    return PlannedComparison(ending.path)


def ablated(
    design: Design, keys: str | Sequence[str] | None, values: Mapping[str, Any] | None
) -> Design:
    """Return the comparison of a method with its variants, by the design of the method alone.

    Raises:
        ConfigError: There is not one method, or `keys` or `values` are wrong; see `ablate`.
    """
    if not isinstance(values or {}, Mapping):
        raise ConfigError(f"`values` must be a dict of lists of values by key, got {values!r}.")
    names = [name.strip() for name in keys.split(",")] if isinstance(keys, str) else keys
    tried = {key: listed(key, some) for key, some in (values or {}).items()}
    return ablation.design_of(design, names, tried)


def resume(path: Path, *, progress: bool = True, **keys: Any) -> PlannedComparison:
    """Continue an interrupted comparison, or add to it; see `fl.resume`.

    Raises:
        ConfigError: A key must not change.
    """
    methods, seeds, jobs = (keys.pop(name, None) for name in ("methods", "seeds", "jobs"))
    force = keys.pop("force", False)
    if (address := keys.pop("address", None)) is not None:
        keys["engine.address"] = address
    sets, own = data_sets(keys.pop("data", None))
    if sets and not own:
        raise ConfigError(
            f"`data`: {path} keeps its data. Leave them out, or start a new comparison. Data that"
            " are objects without an import path are given again."
        )
    given, objects = parts.given_again(keys)
    for section in ("partition", "model"):  # the comparison knows their section
        if section in objects:
            del given[section]
    origin = "argument of fl.resume"
    plain = {name: arguments.plain(value, name, origin) for name, value in given.items()}
    told = {"progress": progress}
    caller = Caller.of(told, objects, ["data", *objects] if own else None)
    ending = campaigns.Campaign(caller, LoadedSamples(objects, own), jobs, force).carry_on(
        path, methods_of(methods or [], origin), [from_values(plain, origin)], seeds
    )
    ending.check(caller)
    return PlannedComparison(ending.path)


def design_of(
    methods: Sequence[LabelledLayer],
    layers: Sequence[Layer],
    sets: Sequence[LabelledLayer],
    variants: Callable[[Design], Design],
    *,
    tuned: str | PathLike[str] | None,
    grid: Mapping[str, Any] | None,
    **settings: Any,
) -> Design:
    """Return the design of what a user asks for.

    Raises:
        ConfigError: Two parts of it contradict each other, or the study does not have the methods.
    """
    if sets:
        _check_data(merge(layers))
    axes = {key: tuple(listed(key, values)) for key, values in (grid or {}).items()}
    design = variants(Design.of(methods, layers, data=sets, grid=axes, **settings))
    return design if tuned is None else tuning.with_best(design, arguments.path_of(tuned, "tuned"))


def methods_of(given: Any, origin: str) -> tuple[LabelledLayer, ...]:
    """Return the methods that a user names.

    Args:
        given: Names of methods, texts `LABEL: NAME KEY=VALUE ...`, classes, and dicts, in a list or
            in a text with commas between them.
        origin: Where they come from, for messages.

    Raises:
        ConfigError: There is no such method, a label is no name, or something else is given.

    >>> one, other = methods_of(["short: hfcd tau=0.1 train.rounds=5", "fedavg"], "here")
    >>> one.label, one.tree, other.label
    ('short', {'algorithm': {'name': 'hfcd', 'tau': '0.1'}, 'train': {'rounds': '5'}}, 'fedavg')
    """
    entries = [given] if isinstance(given, type | Mapping) else given
    entries = entries.split(",") if isinstance(entries, str) else [*entries]
    named = [_entry(one, origin) for one in entries]
    names = [one[f"{SECTION}name"] for one in named]
    found = []
    for label, name, entry in zip((one.pop("label") for one in named), names, named, strict=True):
        if shared := [key for key in entry if key.startswith(SHARED)]:
            raise ConfigError(
                f"`{shared[0]}` of {name}: all methods of a comparison share it. Give it for all,"
                " or as `grid` or `data`."
            )
        own = {key: value for key, value in entry.items() if key not in NAMING}
        words = " ".join(words_of(own)) if names.count(name) > 1 else ""
        layer = from_values({k: arguments.plain(v, k, origin) for k, v in entry.items()}, origin)
        try:
            label = label and checked(label, "the label of a method")
        except ValueError as error:
            raise ConfigError(f"{error}.") from error
        found.append(LabelledLayer.of(label or f"{name} {words}".strip(), layer, own=bool(label)))
    return tuple(found)


def _entry(given: Any, origin: str) -> dict[str, Any]:
    """Return the values of a method by dotted key, and its `label`, or None."""
    if isinstance(given, str):
        label, colon, rest = given.rpartition(": ")
        name, *words = rest.split() or [""]
        items = [word.partition("=") for word in words]
        if wrong := [key for key, sign, text in items if not (key and sign and text)]:
            raise ConfigError(f"`{given}`: `{wrong[0]}` must have the form KEY=VALUE.")
        given = {"name": name, "label": label.strip() if colon else None}
        given |= {key: value_of(key, text, origin) for key, _, text in items}
    elif isinstance(given, type):
        given = {"name": given}
    if not isinstance(given, Mapping) or not given.get("name"):
        raise ConfigError(f"a method is a name, a class or a dict with a name; got {given!r}.")
    values = {key if "." in key else f"{SECTION}{key}": value for key, value in given.items()}
    values |= {f"{SECTION}{key}": one for key, one in ALGORITHMS.section(given["name"]).items()}
    return {"label": values.pop(f"{SECTION}label", None), **values}


def grid_of(items: Sequence[str], option: str = "grid") -> dict[str, list[Any]]:
    """Return a grid that is written as `KEY=VALUE,VALUE`, with values as in `key=value`.

    Raises:
        ConfigError: An item has another form, or a key is given twice.

    >>> grid_of(["partition.alpha=0.1,1", "model.name=mlp"])
    {'partition.alpha': [0.1, 1], 'model.name': ['mlp']}
    """
    found: dict[str, list[Any]] = {}
    for item in items:
        key, sign, text = (part.strip() for part in item.partition("="))
        if not sign or not key or not text:
            raise ConfigError(
                f"`{option}`: `{item}` must have the form KEY=VALUE,VALUE, for example"
                " partition.alpha=0.1,1."
            )
        if key in found:
            raise ConfigError(f"`{option}`: `{key}` is given twice. Give it once.")
        found[key] = values_of(key, text, f"`{option}`")
    return found


def data_sets(
    data: Any, root: Path = Path("data")
) -> tuple[tuple[LabelledLayer, ...], dict[str, Any]]:
    """Return the data sets that a user names, and the objects among them by their labels.

    One data set, which is not in a list, has the label "".

    `data` are names, paths, sections `data` and data of the user, one or a list; `root` is the
    folder with files of data.

    Raises:
        ConfigError: Two data sets have the same label.
    """
    several = isinstance(data, list)
    sets: dict[str, dict[str, Any]] = {}
    objects: dict[str, Any] = {}
    for entry in data if several else [] if data is None else [data]:
        plain, found = parts.split({"data": entry})
        section = plain["data"]
        section = _named(section, root) if isinstance(section, str) else dict(section)
        label = _label(section) if several else ""
        while label in sets and is_own(entry):
            label = f"{label} again"
        if label in sets:
            both = " and ".join(str(one.get("path", label)) for one in (sets[label], section))
            raise ConfigError(
                f"`data`: {both} have the same name, `{label}`, by which results tell data sets"
                " apart. Name each once, or rename one of the two."
            )
        sets[label] = section
        objects |= {label: found["data"]} if "data" in found else {}
    return tuple(_choice(label, section) for label, section in sets.items()), objects


def _named(item: str, root: Path) -> dict[str, Any]:
    """Return the section `data` of a data set that is given by its name or its file."""
    path = Path(os.path.expanduser(item))
    if path.suffix.lower() in FILES or sep in item:
        beside = root / item
        return {"path": str(beside if not path.exists() and beside.exists() else path)}
    return {"name": item}


def _label(section: Mapping[str, Any]) -> str:
    """Return the label of a data set."""
    path, source = section.get("path"), section.get("source")
    if path is not None:
        return Path(path).stem
    if isinstance(source, str) and ":" in source:
        return source.rpartition(":")[2]
    return str(section.get("name", "data"))


def _choice(label: str, section: Mapping[str, Any]) -> LabelledLayer:
    """Return a data set of the design. Its keys replace those that name another one."""
    keys = {**dict.fromkeys(DATA), **section} if "name" in section else {"source": None, **section}
    if keys.get("name", "") is None:
        del keys["name"]
    plain = arguments.plain(keys, "data", "data")
    return LabelledLayer.of(label, from_values({"data": plain}, "data"))


def _check_data(layer: Layer) -> None:
    """Raise a ConfigError if the data are given twice. A configuration file may name others."""
    for key in (f"data.{name}" for name in DATA):
        place = layer.origins.get(key)
        if place is not None and not is_line(place):
            raise ConfigError(
                f"`data` and `{key}` ({place}) both name the data. Leave one of the two out."
            )


def listed(key: str, values: Any) -> list[Any]:
    """Return the values of a key of the grid as a list of values of YAML."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        values = [values]
    return [arguments.plain(value, key, "grid") for value in values]
