"""Merging and checking of configuration layers; all errors are reported together."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError, create_model

from flbench.config import trust
from flbench.config.schema import (
    AS_DATA,
    UNRECORDED,
    AlgorithmConfig,
    Config,
    ModelConfig,
    OwnAlgorithmConfig,
    OwnModelConfig,
    OwnTermConfig,
    TermConfig,
    WrittenAlgorithmConfig,
    WrittenConfig,
    WrittenModelConfig,
    WrittenOwnAlgorithmConfig,
    WrittenTermConfig,
)
from flbench.config.sources import (
    DEFAULT,
    NAMED_SECTIONS,
    Given,
    Layer,
    from_file,
    from_values,
    leaves,
    merge,
)
from flbench.core import parts
from flbench.core.errors import ConfigError, did_you_mean
from flbench.core.parts import OBJECT
from flbench.core.registry import ALGORITHMS, MODELS, TERMS, Registry
from flbench.core.text import MASK, redact

Kind = type[AlgorithmConfig] | type[ModelConfig]
"""Class of the keys of a section that names a method or a net."""
Whole = TypeVar("Whole", bound=Config)

BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


def resolve(layers: Sequence[Layer]) -> tuple[Config, dict[str, str]]:
    """Merge layers of values and check the result.

    Args:
        layers: The layers, in ascending priority; see `flbench.config.sources`.

    Returns:
        The configuration, and the origin of each key by its dotted path: `default`, a file with a
        line number, or the command line.

    Raises:
        ConfigError: Keys are wrong; the message has one line for each of them.
    """
    return _checked(layers, Config)


def read(path: Path) -> WrittenConfig:
    """Read a configuration that flbench has written, as data.

    No module of a method, net, loss term, metric or scheme is imported, so that the results of a
    run can be read where these are not installed, and without PyTorch. The keys of methods, nets
    and terms are taken as they are written; keys of flbench that do not exist any more are left
    out. Nothing can be built from the result: `resolve_written` makes a configuration for that.

    Args:
        path: The file.

    Raises:
        ConfigError: The file cannot be read, or keys of flbench itself are wrong.
    """
    return _checked([from_file(path)], WrittenConfig)[0]


def as_data(layers: Sequence[Layer]) -> WrittenConfig:
    """Merge layers of values that flbench has written, as data; see `read`.

    Args:
        layers: The layers, in ascending priority.

    Raises:
        ConfigError: Keys of flbench itself are wrong.
    """
    return _checked(layers, WrittenConfig)[0]


def resolve_written(path: Path, *above: Layer) -> tuple[Config, dict[str, str]]:
    """Check a configuration that flbench has written, with the code that it names.

    If the file lacks the hash of a method's source, because an earlier version has written it,
    `algorithm.sha256` is `unrecorded`.

    Args:
        path: The file.
        above: Layers with a higher priority.

    Returns:
        See `resolve`.

    Raises:
        ConfigError: The method, the net or a loss term is not installed, keys are wrong, or the
            file names code that may not run; see `flbench.config.trust`.
    """
    layer = from_file(path)
    trust.check(path, layer.tree)
    name = layer.get("algorithm.name")
    if name is not None and ALGORITHMS.built_in(str(name.value)) is None:
        layer.setdefault("algorithm.sha256", Given(UNRECORDED, DEFAULT))
    try:
        return resolve([layer, *above])
    except ConfigError as error:
        if missing := _not_installed(path):
            raise ConfigError("\n".join(missing)) from error
        raise


def changed(config: Config) -> list[str]:
    """Return the dotted keys whose values differ from the defaults of their method and net.

    Args:
        config: A configuration whose method is installed or registered.
    """
    names = {"algorithm.name": config.algorithm.name, "model.name": config.model.name}
    defaults = leaves(resolve([from_values(names, "defaults")])[0].tree())
    return [key for key, value in leaves(config.tree()).items() if value != defaults.get(key)]


def _not_installed(path: Path) -> list[str]:
    """Return a sentence for each part of a written configuration that nothing registers."""
    config = read(path)
    source = getattr(config.algorithm, "source", None)
    named: list[tuple[str, Registry[Any], str]] = [
        ("model.name", MODELS, config.model.name),
        *((f"train.terms.{k}.name", TERMS, one.name) for k, one in enumerate(config.train.terms)),
    ]
    first = []
    if source is None:
        named.insert(0, ("algorithm.name", ALGORITHMS, config.algorithm.name))
    else:
        try:
            ALGORITHMS.find(config.algorithm.name, source)
        except ConfigError as error:
            first = [
                f"`algorithm.name` is {config.algorithm.name} in {path}, and its class cannot be"
                f" found: {error} What the folder contains can be read without it. To train or to"
                " predict, install the package that it comes from, or define the class."
            ]
    return first + [
        f"`{key}` is {name} in {path}, and no installed package registers this {registry.kind}."
        " What the folder contains can be read without it. To train or to predict, install the"
        " package that it comes from, or import the module that registers it."
        for key, registry, name in named
        if ":" not in name and name != OBJECT and name not in registry.names()
    ]


def _checked(layers: Sequence[Layer], base: type[Whole]) -> tuple[Whole, dict[str, str]]:
    """Merge and check layers; see `resolve`.

    Args:
        layers: The layers.
        base: Class of the configuration, to which the keys of method and net are added. With
            `WrittenConfig`, keys of methods, nets and terms are taken as they are.
    """
    problems: list[str] = []
    merged = merge(layers)
    tree, origins = merged.tree, merged.origins
    written = base is WrittenConfig
    method, net = partial(_method, written), partial(_net, written)
    algorithm = _select(tree, origins, "algorithm", AlgorithmConfig(), method, problems)
    model = _select(tree, origins, "model", ModelConfig(), net, problems)
    schema = cast(type[Whole], _schema(algorithm, model, base))
    problems += _check_terms(tree, origins, partial(_term, written))
    config: Whole | None = None
    try:
        config = schema.model_validate(tree, context=AS_DATA if written else None)
    except ValidationError as error:
        by_path: dict[str, list[Any]] = {}
        for item in error.errors():
            if not _is_of_other_kind(item):
                by_path.setdefault(_path(_location(item, schema)), []).append(item)
        for items in by_path.values():
            problems.append(_error_message(items, schema, origins))
    if config is not None:
        problems += [
            f"{line} ({_origin(path, origins)})." for path, line in _contradictions(config)
        ]
    if problems or config is None:
        raise ConfigError("\n".join(problems))
    return config, {path: origins.get(path, "default") for path in leaves(config.tree())}


@lru_cache(maxsize=256)
def _schema(
    algorithm: type[AlgorithmConfig], model: type[ModelConfig], base: type[Config]
) -> type[Config]:
    """Return the schema of a configuration with this method and net.

    The arguments are classes, not names: a class that is registered later under the same name has a
    schema of its own.
    """
    return create_model(
        "Config",
        __base__=base,
        algorithm=(algorithm, algorithm()),
        model=(model, model()),
    )


@lru_cache(maxsize=256)
def _with_source(kind: type[AlgorithmConfig]) -> type[AlgorithmConfig]:
    """Return the keys of a method that is not flbench's own, with those of its source.

    Raises:
        ConfigError: The method has a key of the name of one of these.
    """
    if issubclass(kind, OwnAlgorithmConfig):
        return kind
    of_source = OwnAlgorithmConfig.model_fields.keys() - AlgorithmConfig.model_fields.keys()
    if taken := sorted(of_source & kind.model_fields.keys()):
        raise ConfigError(
            f"`algorithm.{taken[0]}`: {kind.__module__}.{kind.__qualname__} has a key"
            f" `{taken[0]}`, which is flbench's key for the source of the method. Give the key of"
            " the method another name."
        )
    if kind is AlgorithmConfig:
        return OwnAlgorithmConfig
    return create_model(kind.__name__, __base__=(kind, OwnAlgorithmConfig))


def _method(written: bool, section: dict[str, Any]) -> Kind:
    """Return the class of the keys of a method; see `_term`.

    Unless the section is read as data, a name that is an import path becomes that under which the
    method is registered, and the section gets the place that a method which is not flbench's own is
    imported from.
    """
    name, source = str(section["name"]), section.get("source")
    if written:
        own = section.keys() & {"source", "sha256"}
        return WrittenOwnAlgorithmConfig if own else WrittenAlgorithmConfig
    if ":" in name:
        name = ALGORITHMS.adopt(parts.find(name), name)
        section["name"] = name
    found = ALGORITHMS.find(name, None if source is None else str(source))
    kind = cast(type[AlgorithmConfig], found.Config)
    source = ALGORITHMS.source(found)
    if source is None:
        return kind
    section["source"] = source
    return _with_source(kind)


def _net(written: bool, section: dict[str, Any]) -> Kind:
    """Return the class of the keys of a net; see `_term`."""
    name = str(section["name"])
    if ":" in name or name == OBJECT:
        return OwnModelConfig
    return WrittenModelConfig if written else cast(Kind, MODELS.find(name).Config)


def _term(written: bool, name: str) -> type[TermConfig]:
    """Return the class of the keys of a loss term.

    Args:
        written: Whether the configuration is read as data: then nothing is imported.
        name: Name of the term.
    """
    return WrittenTermConfig if written else cast(type[TermConfig], TERMS.find(name).Config)


def _select(
    tree: dict[str, Any],
    origins: dict[str, str],
    section: str,
    fallback: AlgorithmConfig | ModelConfig,
    find: Callable[[dict[str, Any]], Kind],
    problems: list[str],
) -> Kind:
    """Return the configuration class of the method or net that a section selects.

    Args:
        tree: Values of all layers. If the name is unknown, the section is removed from it.
        origins: Origin of each value by its dotted path.
        section: `algorithm` or `model`.
        fallback: Defaults of the section, for a name that is missing or unknown.
        find: Function from the section, with a name, to the class of its keys.
        problems: List that an error is appended to if the name is unknown.
    """
    part = tree.get(section)
    given = part if isinstance(part, dict) else {}
    named = {"name": fallback.name, **given}
    try:
        kind = find(named)
    except ConfigError as error:
        problems.append(f"`{section}.name` ({_origin(f'{section}.name', origins)}): {error}")
        tree.pop(section, None)
        return find({"name": fallback.name})
    if given:
        tree[section] = named
    return kind


def _check_terms(
    tree: dict[str, Any], origins: dict[str, str], find: Callable[[str], type[TermConfig]]
) -> list[str]:
    """Check the entries of `train.terms`, and put configurations of terms in their place.

    Functions of the user (`package.module:name`) are not imported: whoever reads the configuration
    of a finished run need not have them.

    Args:
        tree: Values of all layers. If an entry is wrong, `train.terms` is removed from it.
        origins: Origin of each value by its dotted path.
        find: Function from the name of a term to the class of its keys.

    Returns:
        One sentence for each wrong key.
    """
    train = tree.get("train")
    terms = train.get("terms") if isinstance(train, dict) else None
    if isinstance(train, dict) and isinstance(terms, dict) and all(map(str.isdecimal, terms)):
        del train["terms"]
        return [
            f"`train.terms.{number}` ({_origin(f'train.terms.{number}', origins)}) does not exist:"
            " there are no loss terms. Set `train.terms` to a list of them."
            for number in terms
        ]
    if not isinstance(train, dict) or not isinstance(terms, list):
        return []
    problems: list[str] = []
    checked: list[TermConfig] = []
    for k, entry in enumerate(terms):
        path = f"train.terms.{k}"
        item = {"name": entry} if isinstance(entry, str) else entry
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            problems.append(
                f"`{path}` must be a loss term, such as {{name: focal, gamma: 2}}, got {entry!r}"
                f" ({_origin(path, origins)})."
            )
            continue
        try:
            kind = OwnTermConfig if ":" in name else find(name)
            checked.append(kind.model_validate(item))
        except ConfigError as error:
            problems.append(f"`{path}.name` ({_origin(path, origins)}): {error}")
        except ValidationError as error:
            by_path: dict[str, list[Any]] = {}
            for wrong in error.errors():
                by_path.setdefault(str(wrong["loc"][0]), []).append(wrong)
            for items in by_path.values():
                problems.append(_error_message(items, kind, origins, f"{path}."))
    if problems:
        del train["terms"]
    else:
        train["terms"] = checked
    return problems


def _contradictions(config: Config) -> list[tuple[str, str]]:
    """Return (dotted path, sentence) for keys whose values are valid alone but not together."""
    problems = []
    split = config.partition.split
    if min(split) < 0 or abs(sum(split) - 1) > 1e-6:
        problems.append(
            (
                "partition.split",
                f"`partition.split` must be three shares >= 0 that sum to 1, got {list(split)}"
                f" (sum {sum(split):g})",
            )
        )
    elif split[0] == 0:
        problems.append(
            (
                "partition.split",
                "`partition.split` leaves nothing to train on: its first share must be > 0",
            )
        )
    if config.partition.scheme == "file" and config.partition.path is None:
        problems.append(
            (
                "partition.scheme",
                "`partition.scheme=file` needs `partition.path`, the saved partition",
            )
        )
    if config.data.source is not None and config.data.path is not None:
        problems.append(
            (
                "data.source",
                "`data.source` and `data.path` are both set: leave one of them out",
            )
        )
    if config.train.optimizer.nesterov and config.train.optimizer.momentum == 0:
        problems.append(
            (
                "train.optimizer.nesterov",
                "`train.optimizer.nesterov` needs `train.optimizer.momentum` > 0",
            )
        )
    return problems


def _origin(path: str, origins: dict[str, str]) -> str:
    """Return the origin of a key, or else that of a key below it or of the nearest one above it."""
    below = next((key for key in origins if key.startswith(f"{path}.")), None)
    if path not in origins and below is not None:
        return origins[below]
    while path not in origins and "." in path:
        path = path.rpartition(".")[0]
    return origins.get(path, "default")


def _is_of_other_kind(item: Any) -> bool:
    """Return whether an error says that a section is no word, or that a word is no section.

    pydantic tries both for a key that accepts words and a section, such as `data.normalize`; the
    error of the other alternative says what is wrong.
    """
    is_section = isinstance(item.get("input"), Mapping)
    if item["type"] == "literal_error" and is_section:
        return str(item["loc"][-1]).startswith("literal[")
    return item["type"] == "model_type" and bool(item["loc"][-1] == item["ctx"]["class_name"])


def _location(item: Any, schema: type[BaseModel]) -> list[Any]:
    """Return the location of one of pydantic's errors within the configuration.

    For a key that accepts several types, pydantic appends the type that it tried; it is left out.
    Of a value in a section of free names, such as `partition.args`, only the name is kept.
    """
    location: list[Any] = []
    section: Any = schema
    for part in item["loc"]:
        if _is_model(section) and (part == section.__name__ or str(part).startswith("literal[")):
            continue  # one of the alternatives of a key that accepts words and a section
        if section is not None or isinstance(part, int):
            location.append(part)
        if get_origin(section) is dict and not _is_model(get_args(section)[1]):
            return location
        section = None if section is None else _section(section, str(part))
    return location


def _path(location: Sequence[Any]) -> str:
    """Return a location as a dotted path."""
    return ".".join(str(part) for part in location)


def _error_message(
    items: Sequence[Any], schema: type[BaseModel], origins: dict[str, str], prefix: str = ""
) -> str:
    """Return a sentence about a wrong key: its condition, its value, its origin and the cure.

    Args:
        items: pydantic's errors about the key. There are several if the key accepts several types
            and its value has none of them.
        schema: Schema of the whole configuration, or of the section at `prefix`.
        origins: Origin of each value by its dotted path.
        prefix: Dotted path of the section that `schema` describes, with a dot at the end.
    """
    item, location = items[0], _location(items[0], schema)
    path = prefix + _path(location)
    place = _origin(path, origins)
    kind, context, value = item["type"], item.get("ctx", {}), item.get("input")
    got = MASK if path == "tracking.uri" else redact(repr(value))  # an address may have a password
    if kind == "extra_forbidden":
        keys = _keys_at(schema, location[:-1])
        section = path.rpartition(".")[0]
        where = f"`{section}`" if section else "the configuration"
        hint = did_you_mean(str(location[-1]), keys) or _elsewhere(schema, str(location[-1]))
        listed = f" Keys there: {', '.join(keys)}."
        return f"`{path}` is not a key of {where} ({place}).{hint or listed}"
    if kind == "missing":
        if isinstance(location[-1], str):
            return f"`{path}` is missing."
        return f"`{path.rpartition('.')[0]}` is too short: it needs more values ({place})."
    if kind in ("too_short", "too_long"):
        return f"`{path}` has a wrong number of values, got {got} ({place})."
    if kind == "tuple_type":
        shown = redact(str(value))
        shown = shown[1:-1] if shown[:1] + shown[-1:] == "()" else shown
        return f"`{path}` must be a list, like [{shown}], got {got} ({place})."
    if kind == "invalid_key":
        return f"`{path}` is not a word: keys must be words ({place})."
    if kind in ("model_type", "model_attributes_type"):
        names = " or a name" if path in NAMED_SECTIONS else ""
        return f"`{path}` must be a section with keys{names}, got {got} ({place})."
    if kind == "string_pattern_mismatch":
        return f"`{path}` must match {context['pattern']}, got {got} ({place})."
    conditions = " or ".join(dict.fromkeys(_condition(one) for one in items))
    hint = ""
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        hint = did_you_mean(str(value), choices)
    return f"`{path}` must be {conditions}, got {got} ({place}).{hint}"


def _condition(item: Any) -> str:
    """Return the condition of one of pydantic's errors, to follow "must be"."""
    kind, context = item["type"], item.get("ctx", {})
    if kind in BOUNDS:
        key, sign = BOUNDS[kind]
        return f"{sign} {context[key]:g}"
    if kind == "finite_number":
        return "a finite number"
    if kind == "tuple_type":
        return "a list"
    message = str(item["msg"])
    return message.removeprefix("Input should be ").removeprefix("Value error, ")


def _elsewhere(schema: type[BaseModel], key: str, prefix: str = "") -> str:
    """Return a hint like " Did you mean `train.optimizer.lr`?" if a deeper section has the key."""
    for name in schema.model_fields:
        if name == key and prefix:
            return f" Did you mean `{prefix}{name}`?"
        nested = _section(schema, name)
        if _is_model(nested) and (hint := _elsewhere(nested, key, f"{prefix}{name}.")):
            return hint
    return ""


def _section(schema: Any, name: str) -> Any:
    """Return the type of the section `name`; None if it is not a section.

    Args:
        schema: A section: a model, or a dict whose names are the user's own.
        name: A key of the section.
    """
    if get_origin(schema) is dict:
        kinds = [get_args(schema)[1]]
    else:
        field = schema.model_fields.get(name)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
    sections = [kind for kind in kinds if _is_model(kind) or get_origin(kind) is dict]
    return sections[0] if sections else None


def _is_model(kind: Any) -> bool:
    """Return whether a type is a section with keys of its own."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _keys_at(schema: type[BaseModel], location: Sequence[Any]) -> list[str]:
    """Return the keys that exist at a location of the schema."""
    for part in location:
        nested = _section(schema, str(part))
        if nested is None:
            return []
        schema = nested
    return list(schema.model_fields) if _is_model(schema) else []
