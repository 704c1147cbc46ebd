"""Comparing methods over repetitions from Python, and resuming a comparison."""

import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from os import PathLike, sep
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from flbench.api import campaigns
from flbench.api.caller import Caller, program
from flbench.api.comparisons import PlannedComparison
from flbench.calls import arguments, parts, resumed_parts
from flbench.calls.arguments import Section
from flbench.calls.process import preserved
from flbench.comparison import cost, prepare
from flbench.comparison import reuse as reusing
from flbench.comparison import tuned as tuning
from flbench.comparison.cost import ComparisonCost
from flbench.comparison.folder import MARKER, TUNING, ComparisonFolder, design_in, read_design
from flbench.comparison.plan import DEFAULTS, Design, LabelledLayer
from flbench.comparison.prepare import PreparedComparison
from flbench.config.resolve import resolve
from flbench.config.sources import Layer, folder_of, from_values, is_line, leaves, merge, values_of
from flbench.config.trust import check as check_code
from flbench.config.trust import run_code
from flbench.core.documents import read_json
from flbench.core.errors import ConfigError, RunError, UserError
from flbench.core.parts import offered
from flbench.core.registry import ALGORITHMS
from flbench.core.system_errors import as_flbench_errors
from flbench.core.text import redact
from flbench.data.own import is_own
from flbench.experiment.lifecycle import CHANGEABLE_ON_RESUME
from flbench.jobs import campaign
from flbench.jobs.job import Job
from flbench.jobs.samples import LoadedSamples
from flbench.results import study_folder
from flbench.tracking import mirror
from flbench.tracking.mlflow_store import NamedBy
from flbench.tuning.study import now

FILES: Final = (".npz", ".zip", ".csv", ".tsv", ".parquet")  # ends of a data set's name in --data
RESUMED: Final = "flbench compare --resume"  # origin of values that changed on resume
OUT: Final = Path("comparisons")
"""Folder for the folders of comparisons, unless another one is given."""
DATA: Final = ("name", "path", "source")  # keys of `data` that say which data set it is
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Asked(NamedTuple):
    """What a user asked a comparison to be.

    Attributes:
        layers: Layers of the configuration, by label of the method; that of "" for all methods
            where none is named.
        own: Values that one method alone has, by label of the method.
        data: The data sets, by label: the keys of the section `data`. Empty for those of `layers`.
        grid: Varied values by dotted key; None for none.
        seeds: Number of repetitions; None for the default.
        vary: What differs between repetitions; None for the default.
        tuned: Study whose best parameters the methods take; None for none.
        force: Whether the setting of the study may differ from that of the comparison.
        reuse: Folders of finished runs that are used again as cells.
        reference: Label of the method with which each of the others is compared; None to compare
            all pairs.
        optional: Labels of the methods that are left out with a note if they cannot be trained.
    """

    layers: Mapping[str, Sequence[Layer]]
    own: Mapping[str, Layer] = NOTHING
    data: Mapping[str, Mapping[str, Any]] = NOTHING
    grid: Mapping[str, Sequence[Any]] | None = None
    seeds: int | None = None
    vary: str | None = None
    tuned: Path | None = None
    force: bool = False
    reuse: tuple[Path, ...] = ()
    reference: str | None = None
    optional: frozenset[str] = frozenset()


class ComparisonEnding(NamedTuple):
    """How a comparison ended.

    Attributes:
        path: Its folder.
        failures: A sentence for each cell that failed.
        finished: Number of cells that are finished, those that have trained nothing included.
        comparison: The comparison.
        is_reported: Whether its report is in the folder.
        notes: Sentences about what was not sent to MLflow.
        lost: Labels of the methods all of whose cells failed.
        kept: Labels of the other methods.
    """

    path: Path
    failures: list[str]
    finished: int
    comparison: PlannedComparison
    is_reported: bool
    notes: list[str]
    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def compare(
    methods: str | Sequence[str | type | Mapping[str, Any]],
    *,
    seeds: int | None = None,
    vary: Literal["training", "partition", "both"] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    jobs: int | None = None,
    address: str | None = None,
    tuned: str | PathLike[str] | None = None,
    force: bool = False,
    reuse: str | PathLike[str] | Sequence[str | PathLike[str]] = (),
    out: str | PathLike[str] | None = None,
    config: str | PathLike[str] | None = None,
    seed: int | None = None,
    algorithm: Mapping[str, Any] | None = None,
    data: Any = None,
    partition: Any = None,
    model: Any = None,
    train: Mapping[str, Any] | None = None,
    engine: Section | None = None,
    evaluation: Mapping[str, Any] | None = None,
    tracking: Mapping[str, Any] | None = None,
    progress: bool = True,
    trust: bool = False,
    **keys: Any,
) -> PlannedComparison:
    """Train methods x data sets x settings x repetitions, as `flbench compare` does.

    Each training is a cell: an ordinary run folder below `cells/`, which `fl.load` reads. All
    methods of a repetition have the same seeds, so that their results are paired.

    The sections of the configuration are given as to `fl.run`. Cells differ from runs in two
    defaults: `output.checkpoint_every` is 1 with at least 5 seconds between two checkpoints
    (`output.checkpoint_seconds`), and `tracking.mlflow` is false.
    An interrupt keeps the cells that are finished, and raises KeyboardInterrupt, whose message
    names the call of `fl.resume` that continues the comparison.

    Args:
        methods: Names of the methods, import paths `package.module:Class` or classes of your own;
            or dicts with one of these as `name`, keys of the method, and dotted keys
            that this method alone has: `{"name": "ft", "train.optimizer.lr": 0.01}`.
        seeds: Repetitions of each method, data set and setting (default 5).
        vary: What differs between repetitions: the seed of the training, with one partition
            (`training`); the partition, with one seed of the training (`partition`), which supports
            no claim that a method is better; or both (`both`, default).
        grid: Values by dotted key, such as `{"partition.alpha": [0.1, 1]}`. Each combination of
            values is a setting; keys `algorithm.KEY` make variants of the methods that have them.
        jobs: Cells that are trained at the same time, each in a process of its own (default: one
            per core). With 1 they are trained in this process.
        address: A running Ray cluster, as `engine.address` takes it, on whose nodes the cells are
            trained, `jobs` of them at the same time. All nodes must see the folder `out`.
        tuned: Folder of a study; each method takes the best parameters that the study has found. A
            method that the study does not have keeps its defaults, and a note says so. Unless
            `seed` is given, the repetitions begin after the seed of the search.
        force: Whether to use the parameters of `tuned` although the study has another setting. A
            warning names the keys in which the two differ.
        reuse: Folders of runs, comparisons and studies, or folders above them, whose finished runs
            are cells of this comparison if configuration, data and revision of the code are equal.
        out: Folder for the folders of comparisons (default `comparisons`).
        config: YAML file with the values that differ from the defaults.
        seed: Seed of the first repetition (default 0). The others have the seeds after it.
        algorithm: Keys of the methods. Each method gets those that it has.
        data: Section `data` or data of your own, as for `fl.run`; or a list of several of them.
        partition: Section `partition`, or an object such as `fl.Dirichlet(alpha=0.1)`.
        model: Section `model`, or a net of your own, as for `fl.run`. Objects without an import
            path are sent to the processes once.
        train: Section `train`. Entries of `terms` may be functions, or have one as their `name`.
        engine: Section `engine`.
        evaluation: Section `evaluation`.
        tracking: Section `tracking`. `{"mlflow": "auto"}` sends the comparison to MLflow while it
            is trained.
        progress: Whether to show the progress.
        trust: Whether code that `config` or the study of `tuned` names may run. Otherwise it is an
            error that lists this code, unless you have allowed it before.
        keys: Keys by their dotted names.

    Returns:
        The comparison. Its table `cells` names the cells that failed; `fl.resume` tries them again.

    Raises:
        UserError: The comparison cannot be carried out, or the study of `tuned` has another
            setting. All errors of a configuration are reported together.
        RunError: All cells of a method failed, after the others were trained and reported; or a
            server of Ray was lost.
        KeyboardInterrupt: The comparison was interrupted; `fl.resume` continues it.
    """
    return call(compare, locals(), keys)


def call(
    function: Callable[..., Any],
    values: Mapping[str, Any],
    keys: Mapping[str, Any],
    plan: Callable[[Asked], Asked] = lambda asked: asked,
    shown: Mapping[str, Any] = NOTHING,
) -> PlannedComparison:
    """Carry out a call of `compare`, or of a function that makes another plan of its arguments.

    Args:
        function: The function that the user called.
        values: The arguments of `compare`, by name.
        keys: Keys by their dotted names.
        plan: Function from what the arguments ask for to what is carried out.
        shown: Further arguments of the function, for comparison.json.

    Returns:
        The comparison, as `compare` returns it. The errors are those of `compare`, too.
    """
    name = function.__name__
    given = arguments.sections(values, keys)
    if values.get("address") is not None:
        given["engine.address"] = values["address"]
    arguments.check_names(function, keys, compare)
    sets, own_data = _data_sets(given.pop("data", None))
    plain, objects = parts.split(given)
    tuned, out = (
        None if values[path] is None else arguments.path_of(values[path], path)
        for path in ("tuned", "out")
    )
    options = {key: values[key] for key in ("seeds", "vary", "grid")}
    with run_code(values["trust"]):
        layers, own = _methods(values["methods"], values["config"], plain, name)
        reuse = _paths(values["reuse"])
        force = values["force"]
        asked = plan(Asked(layers, own, sets, **options, tuned=tuned, force=force, reuse=reuse))
    written = {"methods": values["methods"], **shown, **options, **plain}
    written |= {} if tuned is None else {"tuned": str(tuned)}
    written |= {"force": True} if force else {}
    text = ", ".join(f"{key}={value!r}" for key, value in written.items() if value is not None)
    caller = program(shown=values["progress"], again=_again(given, objects, own_data))
    with run_code(values["trust"]):
        ending = start(
            asked,
            OUT if out is None else out,
            values["jobs"],
            command=(f"fl.{name}({text})",),
            caller=caller,
            own=(objects, own_data),
        )
    return _finished(ending, caller)


def resume(path: Path, *, progress: bool = True, **keys: Any) -> PlannedComparison:
    """Continue an interrupted comparison, or add to it, as `flbench compare --resume` does.

    Args:
        path: Folder of the comparison.
        progress: Whether to show the progress.
        keys: `jobs` and `address`; `methods` and `seeds` to add methods and repetitions; `reuse`
            and `force`, as for `fl.compare`; sections and dotted keys that may change on resume;
            and `data`, `partition`, `model` (or `module`) and the functions of `train` and
            `evaluation`, if the comparison began with objects
            without an import path.

    Returns:
        The comparison, with the new cells.

    Raises:
        UserError: The folder is not that of a comparison, another process writes to it, a key must
            not change, or an object must be given again.
        RunError: All cells of a method failed, after the others were trained and reported; or a
            server of Ray was lost.
        KeyboardInterrupt: The comparison was interrupted again.
    """
    methods, seeds, jobs = (keys.pop(name, None) for name in ("methods", "seeds", "jobs"))
    if (address := keys.pop("address", None)) is not None:
        keys["engine.address"] = address
    reuse, force = _paths(keys.pop("reuse", ())), keys.pop("force", False)
    for name in ("vary", "grid", "tuned", "out"):
        if name in keys:
            raise ConfigError(
                f"`{name}` cannot be given to fl.resume of a comparison, which keeps its plan."
                " Leave it out, or start a new comparison. `methods` and `seeds` can be added to."
            )
    sets, own_data = _data_sets(keys.pop("data", None))
    if sets and not own_data:
        raise ConfigError(
            f"`data`: {path} keeps its data sets. Leave it out, or start a new comparison. Only"
            " data that are objects without an import path are given again."
        )
    given, objects = parts.split(resumed_parts.with_model(resumed_parts.without_methods(keys)))
    for section in ("partition", "model"):  # the comparison knows their section
        if section in objects:
            del given[section]
    layers, own = _methods(methods, None, given)
    asked = Asked(layers, own, {}, seeds=seeds, force=force, reuse=reuse)
    caller = program(shown=progress, again=_again(keys, objects, own_data))
    ending = carry_on(path, asked, jobs, caller=caller, own=(objects, own_data))
    return _finished(ending, caller)


def start(
    asked: Asked,
    out: Path,
    jobs: int | None,
    *,
    command: Sequence[str],
    caller: Caller,
    own: tuple[Mapping[str, Any], Mapping[str, Any]] = (NOTHING, NOTHING),
) -> ComparisonEnding:
    """Check a comparison, make its folder, and carry it out.

    Args:
        asked: What the user asked for.
        out: Folder for the folders of comparisons; with `OUT`, `output.dir` if the user gave it.
        jobs: Cells at the same time; None for one per core.
        command: What the user called, for comparison.json.
        caller: Who gets progress and notes.
        own: Objects of the user by section, and data of the user by label of the data set.

    Raises:
        UserError: The comparison cannot be carried out.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    with campaigns.stopped_by_signals(own[0]):
        with caller.during(campaigns.CHECK):
            named_by = _store_named_by(asked)
            design = design_of(asked)
            prepare.check_cluster(design, jobs)
            prepared = _prepared(design, jobs, caller, own, named_by, force=asked.force)
            found = _reused(prepared, prepared.cells, asked.reuse)
            left = [cell for cell in prepared.cells if cell.name not in found.runs]
            _tell_cost(prepared, left, found, caller)
        design = prepared.design
        out = folder_of(out, OUT, design.base)
        methods = [design.reference or one.label for one in design.methods]
        titles = (cell.config.data.title for cell in prepared.cells)
        names = [*dict.fromkeys(methods[:3]), *dict.fromkeys(titles)]
        name = re.sub(r"[^\w=.-]+", "_", "-".join(names), flags=re.ASCII)[:80]
        with closing(campaigns.addressed(ComparisonFolder.create(out, name), caller)) as folder:
            printed = [redact(argument) for argument in command]
            about = {"id": folder.path.name, "created": now(), "command": printed}
            about |= _repeated(prepared)
            folder.save(design, prepared.cells, **about)
            reusing.take(found, folder)
            _tell_start(folder, prepared, caller)
            return _carry_out(folder, prepared, Layer(), caller, named_by)


def _repeated(prepared: PreparedComparison) -> dict[str, Any]:
    """Return what comparison.json keeps of the notes for the report, if any."""
    return {TUNING: prepared.repeated} if prepared.repeated else {}


def plan(
    asked: Asked,
    jobs: int | None,
    caller: Caller,
    own: tuple[Mapping[str, Any], Mapping[str, Any]] = (NOTHING, NOTHING),
) -> ComparisonCost:
    """Check a comparison, and estimate its cost; nothing is written or trained to the end.

    Args:
        asked: What the user asked for.
        jobs: Cells at the same time; None for one per core.
        caller: Who gets notes.
        own: Objects of the user by section, and data of the user by label of the data set.

    Raises:
        UserError: The comparison cannot be carried out.
    """
    with as_flbench_errors(), preserved(), offered(own[0]):
        named_by = _store_named_by(asked)
        prepared = _prepared(design_of(asked), jobs, caller, own, named_by, force=asked.force)
        found = _reused(prepared, prepared.cells, asked.reuse)
        left = [cell for cell in prepared.cells if cell.name not in found.runs]
        return cost.measure(prepared, left, found)


def carry_on(
    path: Path,
    asked: Asked,
    jobs: int | None,
    *,
    caller: Caller,
    own: tuple[Mapping[str, Any], Mapping[str, Any]] = (NOTHING, NOTHING),
) -> ComparisonEnding:
    """Carry out what is left of a comparison, and what is added to it.

    Args:
        path: Folder of the comparison.
        asked: What is added: methods and repetitions; and values of keys that may change.
        jobs: Cells at the same time; None for one per core.
        caller: Who gets progress and notes.
        own: Objects of the user by section, and data of the user by label of the data set.

    Raises:
        UserError: The path is not the folder of a comparison, or a key must not change.
        RunError: A server of Ray was lost.
        KeyboardInterrupt: A stop signal has arrived.
    """
    with (
        campaigns.stopped_by_signals(own[0]),
        closing(campaigns.addressed(ComparisonFolder.reopen(path), caller)) as folder,
    ):
        before, about = read_design(folder.path)
        if asked.force and before.tuned is None:
            raise _needless_force()
        check_code(folder.path / MARKER, design_in(read_json(folder.path / MARKER)))
        design, changed = _added(before, asked, path)
        named_by = _store_named_by(asked, begun=True)
        # Nothing that has begun is refused afterwards.
        force = asked.force or design.methods == before.methods
        prepared = _prepared(design, jobs, caller, own, named_by, force=force)
        if (address := changed.tree.get("engine", {}).get("address")) is not None:
            prepared = prepared.at(address)
        prepare.check_existing(prepared, folder)
        left = list(folder.unfinished(prepared.cells))
        new = [cell for cell in left if not (folder.run_folder(cell) / "config.yaml").is_file()]
        found = _reused(prepared, new, asked.reuse)
        if design != before:
            folder.save(design, prepared.cells, **(about | _repeated(prepared)))
        if left:
            left = [cell for cell in left if cell.name not in found.runs]
            _tell_cost(prepared, left, found, caller)
            reusing.take(found, folder)
            _tell_start(folder, prepared, caller)
        else:
            caller.tell([f"{path} is finished: there is nothing to resume."])
        return _carry_out(folder, prepared, changed, caller, named_by)


def _needless_force() -> ConfigError:
    """Return the error of a comparison without a study that is told to use its parameters."""
    return ConfigError(
        "`force` is for parameters that a study has found in another setting, and there"
        " is no `tuned`. Leave it out."
    )


def design_of(asked: Asked) -> Design:
    """Return the design that a user asked for.

    Raises:
        ConfigError: Two parts of it contradict each other, or the study has no winner of a method,
            or none of the methods.
    """
    if not asked.layers or "" in asked.layers:
        raise UserError("name the methods to compare, for example `flbench compare hfcd ft`.")
    base, methods = _split(asked)
    untuned: tuple[str, ...] = ()
    if asked.tuned is not None:
        study = study_folder.read(asked.tuned)
        names = {one.layer.tree["algorithm"]["name"] for one in methods}
        methods, untuned = _tuned(methods, base, study)
        if names == {*untuned}:
            raise ConfigError(
                f"`tuned={asked.tuned}`: the study has none of the methods, but"
                f" {', '.join(study.methods)}. Leave it out, or name methods that it has tuned."
            )
        base = tuning.after_search(base, study)
    elif asked.force:
        raise _needless_force()
    options: dict[str, Any] = {
        "seeds": asked.seeds,
        "vary": asked.vary,
        "tuned": None if asked.tuned is None else str(asked.tuned.absolute()),
        "untuned": untuned,
        "reference": asked.reference,
        "grid": {key: tuple(listed(key, values)) for key, values in (asked.grid or {}).items()},
    }
    given = {name: value for name, value in options.items() if value is not None}
    if asked.data:
        given["data"] = tuple(_choice(label, section) for label, section in asked.data.items())
    return Design(base, methods, **given)


def grid_of(items: Sequence[str], option: str = "grid") -> dict[str, list[Any]]:
    """Return a grid that is written as `KEY=VALUE,VALUE`, with values as in `key=value`.

    Args:
        items: One item for each key.
        option: Name of the setting that has the items.

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


def data_of(items: Sequence[str], layers: Sequence[Layer]) -> dict[str, dict[str, Any]]:
    """Return the data sets that are named by names and files, by their labels.

    Args:
        items: Names and paths.
        layers: Layers of the configuration, for `data.root`.

    Raises:
        ConfigError: An item is empty or given twice.
    """
    folder = merge(layers).tree.get("data", {}).get("root")
    found: dict[str, dict[str, Any]] = {}
    for item in items:
        if not item:
            raise ConfigError("`data`: a name is empty. Put one comma between two names.")
        section = _named(item, Path(str(folder or "data")))
        label = _label(section)
        _check_label(label, section, found)
        found[label] = section
    return found


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


def _check_label(label: str, section: Mapping[str, Any], sets: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a data set, or another one of the same label, has been named."""
    if label not in sets:
        return
    if sets[label] == section:
        raise ConfigError(f"`data`: `{label}` is named twice. Name it once.")
    both = " and ".join(str(one.get("path", label)) for one in (sets[label], section))
    raise ConfigError(
        f"`data`: {both} have the same name, `{label}`, by which results tell data sets"
        " apart. Rename one of the two."
    )


def _data_sets(data: Any) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the sections of an argument `data`, and the objects in it, by label of the data set.

    One data set, which is not in a list, has the label "".
    """
    if data is None:
        return {}, {}
    several = isinstance(data, list)
    sets: dict[str, dict[str, Any]] = {}
    objects: dict[str, Any] = {}
    for entry in data if several else [data]:
        plain, found = parts.split({"data": entry})
        section = plain["data"]
        section = _named(section, Path("data")) if isinstance(section, str) else dict(section)
        label = _label(section) if several else ""
        while label in sets and is_own(entry):
            label = f"{label} again"
        _check_label(label, section, sets)
        sets[label] = section
        if "data" in found:
            objects[label] = found["data"]
    return sets, objects


def _again(
    given: Mapping[str, Any], objects: Mapping[str, Any], data: Mapping[str, Any]
) -> list[str]:
    """Return the arguments by which `fl.resume` gets all objects of a comparison again."""
    return parts.again(given, ["data", *objects] if data else objects)


def _choice(label: str, section: Mapping[str, Any]) -> LabelledLayer:
    """Return a data set of the design. Its keys replace those that name another one."""
    origin = "data"
    keys = {**dict.fromkeys(DATA), **section} if "name" in section else {"source": None, **section}
    if keys.get("name", "") is None:
        del keys["name"]
    return LabelledLayer(
        label, from_values({"data": arguments.plain(keys, "data", origin)}, origin)
    )


def listed(key: str, values: Any) -> list[Any]:
    """Return the values of a key of the grid as a list of values of YAML."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        values = [values]
    return [arguments.plain(value, key, "grid") for value in values]


def _methods(
    methods: Any,
    config: str | PathLike[str] | None,
    given: Mapping[str, Any],
    function: str = "compare",
) -> tuple[dict[str, list[Layer]], dict[str, Layer]]:
    """Return the layers of each method, and the values that it alone has, by its label."""
    if methods is None:
        return {"": arguments.layers(function, config, given)}, {}
    entries = methods.split(",") if isinstance(methods, str) else list(methods)
    for entry in entries:
        if not isinstance(entry, str | type | Mapping):
            raise ConfigError(f"a method is a name, a class or a dict with a name; got {entry!r}.")
    named = [{"name": one} if isinstance(one, str | type) else dict(one) for one in entries]
    sections = [_section(one.get("name", "")) for one in named]
    names = [one["name"] for one in sections]
    if not names or not all(names):
        raise UserError(f"name the methods, for example ['hfcd', 'fedavg']; got {methods!r}.")
    common = given.get("algorithm") or {}
    if not isinstance(common, Mapping):
        raise ConfigError(
            f"`algorithm` must be a dict of keys, got {common!r}: fl.{function} takes the methods"
            " as its first argument."
        )
    layers, own = {}, {}
    for name, own_section, entry in zip(names, sections, named, strict=True):
        mine = {key: value for key, value in entry.items() if key != "name" and "." not in key}
        alone = {key: value for key, value in entry.items() if "." in key}
        values = {**mine, **alone}
        words = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
        label = f"{name} {words}" if names.count(name) > 1 and words else name
        if label in layers:
            raise UserError(f"`{label}` is named twice. Name it once.")
        others = arguments.keys_of_others(name, names, common)
        kept = {key: value for key, value in common.items() if key not in others}
        section = {**kept, **mine, **own_section}
        layers[label] = arguments.layers(function, config, {**given, "algorithm": section})
        origin = f"argument of fl.{function}"
        if alone:
            own[label] = from_values(
                {key: arguments.plain(value, key, origin) for key, value in alone.items()}, origin
            )
    return layers, own


def _section(method: Any) -> dict[str, str]:
    """Return the section `algorithm` of a method that is given by its name, path or class."""
    return ALGORITHMS.section(method.strip() if isinstance(method, str) else method)


def _split(asked: Asked) -> tuple[Layer, tuple[LabelledLayer, ...]]:
    """Return what all methods share, and the methods with what each one has alone."""
    methods = []
    base = Layer()
    for label, layers in asked.layers.items():
        merged = merge(layers)
        mine = merged.where(_is_of_method)
        base = merged.where(lambda key: not _is_of_method(key))
        if label in asked.own:
            mine = merge([mine, asked.own[label]])
        methods.append(LabelledLayer(label, mine, label in asked.optional))
    if asked.data:
        _check_data(base)
    if "" in asked.data:  # the only data set, which is given as an argument
        base = merge([base, _choice("", asked.data[""]).layer])
    return base, tuple(methods)


def _is_of_method(key: str) -> bool:
    return key.startswith("algorithm.")


def _check_data(base: Layer) -> None:
    """Raise a ConfigError if the data are given twice. A configuration file may name others."""
    for key in (f"data.{name}" for name in DATA):
        place = base.origins.get(key)
        if place is not None and not is_line(place):
            raise ConfigError(
                f"`data` and `{key}` ({place}) both name the data. Leave one of the two out."
            )


def _tuned(
    methods: Sequence[LabelledLayer], base: Layer, study: study_folder.StoredStudy
) -> tuple[tuple[LabelledLayer, ...], tuple[str, ...]]:
    """Return the methods with the best parameters that a study has found.

    Args:
        methods: The methods.
        base: Configuration that all cells share.
        study: The study.

    Returns:
        The methods, and the names of those that the study does not have. They keep their defaults.

    Raises:
        ConfigError: A method of the study has no winner, or one of its parameters is given too.
    """
    path = study.path
    best = {method.layer.tree["algorithm"]["name"]: None for method in methods}
    won_by = {name: won.params for name in best if (won := study.winner(name)) is not None}
    check_code(path / "study.json", won_by)
    found, missing = [], []
    untuned: dict[str, None] = {}
    for method in methods:
        name = method.layer.tree["algorithm"]["name"]
        if name not in study.methods:
            untuned[name] = None
            found.append(method)
            continue
        won = study.winner(name)
        if won is None:
            missing.append(method.label)
            continue
        for key in won.params:
            place = method.layer.origins.get(key, base.origins.get(key, ""))
            if place and not is_line(place) and not place.startswith("default"):
                raise ConfigError(
                    f"`tuned={path}` and {place} both give `{key}` of"
                    f" {method.label}. Leave one of the two out."
                )
        layer = merge([method.layer, from_values(won.params, str(path))])
        found.append(replace(method, layer=layer))
    if missing:
        raise ConfigError(
            f"`tuned={path}`: the study has no best parameters of"
            f" {', '.join(missing)}: none of its trials has finished with a score. Resume the study"
            f" if it was interrupted, or leave {', '.join(missing)} out."
        )
    return tuple(found), tuple(untuned)


def _added(before: Design, asked: Asked, path: Path) -> tuple[Design, Layer]:
    """Return the design with what is added, and the values of keys that change.

    Raises:
        ConfigError: A key must not change. The message has one line for each of them.
    """
    if asked.seeds is not None and asked.seeds < before.seeds:
        raise ConfigError(
            f"`seeds={asked.seeds}`: {path} has {before.seeds} repetitions, which are"
            " kept. Leave it out, or give a larger number."
        )
    new: list[LabelledLayer] = []
    base, methods = _split(asked._replace(data={}))
    known = {one.label: one for one in before.methods}
    for method in methods:
        if not method.label:
            if method.layer:
                raise ConfigError(
                    f"`{next(iter(method.layer))}` cannot change on resume. Start a new"
                    " comparison with the new value."
                )
            continue
        if method.label not in known:
            new.append(method)
            continue
        values = {key: one.value for key, one in known[method.label].layer.items()}
        for key, (value, _) in method.layer.items():
            if values.get(key, value) != value or (key not in values and before.tuned is None):
                raise _unchangeable(key, values.get(key, "its default"), value, path)
    untuned = before.untuned
    if new and before.tuned is not None:
        others, without = _tuned(new, before.base, study_folder.read(Path(before.tuned)))
        new, untuned = list(others), tuple(dict.fromkeys([*untuned, *without]))
    changes = _changes(before, base, path)
    tracking = {key: value for key, value in changes.items() if key.startswith("tracking.")}
    changed = from_values({k: v for k, v in changes.items() if k not in tracking}, RESUMED)
    seeds = before.seeds if asked.seeds is None else asked.seeds
    return Design(
        # Later calls send the comparison to the same store of MLflow.
        merge([before.base, from_values(tracking, RESUMED)]) if tracking else before.base,
        (*before.methods, *new),
        before.data,
        before.grid,
        seeds,
        before.vary,
        before.tuned,
        before.reference,
        untuned,
    ), changed


def _changes(before: Design, base: Layer, path: Path) -> dict[str, Any]:
    """Return the given values that differ from those of a comparison and may do so, by their keys.

    Raises:
        ConfigError: One of them must not change.
    """
    was = leaves(resolve([DEFAULTS, before.base])[0].tree())
    now_is = leaves(resolve([DEFAULTS, before.base, base])[0].tree())
    errors, changed = [], {}
    for key, value in now_is.items():
        if was.get(key) == value or base.origins.get(key, "").startswith(arguments.DEFAULT_ORIGIN):
            continue
        if key.startswith(CHANGEABLE_ON_RESUME) and not key.startswith("engine.name"):
            changed[key] = value
        else:
            errors.append(str(_unchangeable(key, was.get(key), value, path)))
    if errors:
        raise ConfigError("\n".join(errors))
    # A configuration shows one without user and password, and the other may be somebody else's.
    given = ("tracking.uri", "engine.address")
    changed |= {key: base[key].value for key in given if key in base}
    return changed


def _unchangeable(key: str, was: Any, value: Any, path: Path) -> ConfigError:
    return ConfigError(
        f"`{key}` was {was!r} when {path} began and cannot become {value!r} on resume. Start a new"
        " comparison with the new value."
    )


def _prepared(
    design: Design,
    jobs: int | None,
    caller: Caller,
    own: tuple[Mapping[str, Any], Mapping[str, Any]],
    named_by: NamedBy,
    *,
    force: bool = False,
) -> PreparedComparison:
    """Check a comparison, and tell the caller the notes about it.

    Args:
        design: The design.
        jobs: Cells at the same time; None for one per core.
        caller: Who gets the notes.
        own: Objects of the user by section, and data of the user by label of the data set.
        named_by: Who names the address of MLflow's store.
        force: Whether the study that has found the parameters may have another setting.
    """
    with preserved():
        prepared = prepare.prepare(design, LoadedSamples(*own), jobs, force=force)
    mirror.check(prepared.cells[0].config.tracking, named_by)
    caller.tell(prepared.notes)
    return prepared


def _store_named_by(asked: Asked, *, begun: bool = False) -> NamedBy:
    """Return who names the address of MLflow's store.

    Args:
        asked: What the user asked for.
        begun: Whether the comparison has begun, and its folder may name the address.
    """
    origins = _split(asked._replace(data={}))[0].origins
    return "folder" if begun and "tracking.uri" not in origins else mirror.named_by(origins)


def _paths(given: str | PathLike[str] | Sequence[str | PathLike[str]]) -> tuple[Path, ...]:
    """Return the folders of an argument `reuse`, one or several."""
    several = [given] if isinstance(given, str | PathLike) else given
    return tuple(arguments.path_of(one, "reuse") for one in several)


def _reused(
    prepared: PreparedComparison, cells: Sequence[Job], paths: Sequence[Path]
) -> reusing.FoundRuns:
    """Return the finished runs that can stand for cells."""
    if not paths:
        return reusing.FoundRuns()
    with preserved():
        return reusing.find(prepared, cells, paths)


def _tell_cost(
    prepared: PreparedComparison, left: Sequence[Job], found: reusing.FoundRuns, caller: Caller
) -> None:
    """Tell the caller what is trained, and what it will cost."""
    if caller.shown:
        with preserved():
            caller.tell(cost.measure(prepared, left, found).sentences())


def _tell_start(folder: ComparisonFolder, prepared: PreparedComparison, caller: Caller) -> None:
    """Tell the caller where the comparison is."""
    concurrent = prepared.resources.concurrent
    at_once = f", {concurrent} at once" if concurrent > 1 else ""
    caller.tell([f"{folder.path}: {len(prepared.cells)} cells{at_once}."])


def _carry_out(
    folder: ComparisonFolder,
    prepared: PreparedComparison,
    changed: Layer,
    caller: Caller,
    named_by: NamedBy,
) -> ComparisonEnding:
    """Train what is left of a comparison."""
    config = prepared.cells[0].config
    with campaigns.mirrored(folder, config, caller, named_by) as mirrors:
        failures = campaign.carry_out(
            prepared.cells,
            folder,
            prepared.samples,
            prepared.resources,
            changed=changed,
            shown=caller.shown,
        )
        sentences = [f"{folder.path / 'cells' / name}: {why}" for name, why in failures.items()]
        if sentences:
            sentences.append(
                f"{len(failures)} of {len(prepared.cells)} cells failed. Try them again with:"
                f" {folder.resume_command}"
            )
        finished = sum(map(folder.is_done, prepared.cells))
        comparison = PlannedComparison(folder.path)
        is_reported = False
        if finished:
            try:
                with caller.during(campaigns.REPORT):
                    comparison.write(folder.path)
                is_reported = True
            except UserError as error:  # the trainings are worth more than their report
                caller.tell([f"there is no report: {error}"])
    with caller.during(campaigns.MLFLOW):
        notes = mirrors.finish()
    done = {cell.method for cell in prepared.cells if cell.name not in failures}
    lost = tuple(dict.fromkeys(one.method for one in prepared.cells if one.method not in done))
    return ComparisonEnding(
        folder.path, sentences, finished, comparison, is_reported, notes, lost, tuple(sorted(done))
    )


def _finished(ending: ComparisonEnding, caller: Caller) -> PlannedComparison:
    """Return a comparison.

    Cells that failed are a warning of Python, unless they are all cells of a method.

    Raises:
        RunError: All cells of a method failed. The others are finished, and reported.
    """
    caller.tell(ending.notes)
    if ending.lost:
        kept = f" The cells of the other methods are finished: fl.load({str(ending.path)!r})."
        raise RunError(
            "\n".join(ending.failures)
            + f"\nAll cells of {', '.join(ending.lost)} failed.{kept if ending.kept else ''}"
        )
    if ending.failures:
        warnings.warn("\n".join(ending.failures), UserWarning, stacklevel=4)
    return ending.comparison
