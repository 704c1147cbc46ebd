"""The settings that several verbs of `fl` share, each declared and described once, and `fl.run`.

Importing this module imports neither PyTorch nor pandas, so that the command line can make its
options of these declarations. A verb imports the module that carries it out when it is called.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, cleandoc, signature
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, TypeVar, Unpack, get_args

from flbench.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from flbench.api.runs import Run
    from flbench.callbacks import Callback
    from flbench.callbacks.base import Logger

AnyPath = str | PathLike[str]
Keys = Mapping[str, Any]
"""Keys of a section of the configuration."""
Verb = TypeVar("Verb", bound=Callable[..., Any])
VERBS: Final[dict[str, Callable[..., Any]]] = {}
"""The verbs that take settings, by name."""


class Reading(TypedDict, total=False):
    """Where the configuration comes from.

    Attributes:
        config: YAML file with the values that differ from the defaults.
        seed: Seed of all randomness. Repetitions of `fl.compare` and of `fl.tune` have the
            seeds after it.
        trust: Whether code that `config`, a folder or a search space names may run. Otherwise it is
            an error that lists this code, unless you have allowed it before.
    """

    config: AnyPath | None
    seed: int | None
    trust: bool


class Training(Reading, total=False):
    """How clients are trained and judged.

    A section of the configuration is a dict of its keys, or its name where it has one
    (`partition="iid"`, `engine="ray"`).

    Attributes:
        partition: Section `partition`, or an object such as `fl.Dirichlet(alpha=0.1, clients=20)`,
            or a scheme of your own: the positions of each client's samples, or a function, alone or
            as `scheme` of a dict with `args` and the keys that all schemes have. It is called as
            `function(y, clients, rng, **args)` with the labels [n] of the samples to distribute
            (int64), the number of clients N and a `numpy.random.Generator` that is seeded by the
            seed of the partition, and returns N sequences of positions in [0, n), none at two
            clients. A client with fewer than `min_samples` is refused.
        train: Section `train`. Entries of `terms` may be functions, or have one as their `name`.
        engine: Section `engine`.
        evaluation: Section `evaluation`. Values of `metrics` may be functions of a confusion
            matrix, or metrics of torchmetrics.
        shift: Section `shift`, for example `{"rotation": [0, 90]}`.
        tracking: Section `tracking`. From Python `mlflow` is false by default, so that a script or
            notebook starts no other process; `{"mlflow": "auto"}` is the default of the command
            line.
        output: Section `output`; run folders are written below `output["dir"]`.
        progress: Whether to show the progress: a bar in a notebook and on a terminal, lines on
            standard error elsewhere.
    """

    partition: Any
    train: Keys | None
    engine: str | Keys | None
    evaluation: Keys | None
    shift: Keys | None
    tracking: Keys | None
    output: Keys | None
    progress: bool


class Settings(Training, total=False):
    """What is trained on what.

    Attributes:
        data: Section `data`, or its name (`data="digits"`), a `pathlib.Path` of a file or folder,
            or data of your own: arrays `(x, y)`, a DataFrame, a torch Dataset, data loaders, or a
            function that returns one of them; see `fl.Data`. `fl.compare` takes a list of several
            of these.
        model: Section `model`, or its name (`model="lenet5"`), or a net of your own: an
            `nn.Module`, whose weights all clients start from, or a function or class
            `f(shape, classes)` that returns one. Objects without an import path are sent to the
            processes that train once.
    """

    data: Any
    model: Any


class Listening(TypedDict, total=False):
    """Who gets the metrics of a single run while it is trained.

    Attributes:
        callbacks: One or several callbacks, such as `fl.EarlyStopping(patience=5)`.
        logger: One or several loggers of Lightning, such as `CSVLogger("logs")`, that get all
            metrics with rounds as steps.
    """

    callbacks: "Callback | Sequence[Callback]"
    logger: "Logger | Sequence[Logger]"


class RunSettings(Settings, Listening, total=False):
    """The settings of `fl.run`."""


DEFAULTS: Final = {
    "trust": False,
    "progress": True,
    "force": False,
    "overwrite": False,
    "callbacks": (),
    "logger": (),
    "checkpoint": "best",
}
"""Values of settings that are not given; None for the others."""
SECTIONS: Final = ("model", "algorithm")
"""Sections of the configuration that are arguments of some verbs only."""
DECLARED: Final = Reading, Training, Settings, Listening
"""What describes the settings of several classes."""


class Argument(NamedTuple):
    """An argument of a verb, or a setting."""

    name: str
    kind: Any
    default: Any
    about: str


def descriptions(docstring: str, section: str = "Args") -> dict[str, str]:
    r"""Return the descriptions of arguments by name, from a section of a docstring.

    >>> descriptions("Do it.\n\nArgs:\n    trials: Number of\n        trials.\n    out: A path.")
    {'trials': 'Number of\n        trials.', 'out': 'A path.'}
    """
    found = re.search(rf"^{section}:\n((?: .*\n?|\n)+)", docstring, re.MULTILINE)
    text = found[1] if found else ""
    return dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE))


def arguments(declared: Any) -> dict[str, Argument]:
    """Return the keyword arguments of a verb, or the settings of a class, by name."""
    if isinstance(declared, type):
        about: dict[str, str] = {}
        for one in (*DECLARED, declared):  # not its parents, which are not known at run time
            about |= descriptions(cleandoc(one.__doc__ or ""), "Attributes")
        kinds = declared.__annotations__.items()
        return {
            name: Argument(name, kind, DEFAULTS.get(name), about[name])
            for name, kind in kinds
            if name in about
        }
    about = descriptions(cleandoc(declared.__doc__))
    return {
        name: Argument(name, one.annotation, one.default, about.get(name, ""))
        for name, one in signature(declared).parameters.items()
        if one.kind is Parameter.KEYWORD_ONLY
    }


def verb(function: Verb) -> Verb:
    """Return a verb whose signature and docstring name each of its settings.

    `help`, the tooltips of notebooks and the options of the command line are made of them. Type
    checkers and editors read the settings from the annotation `Unpack[...]` instead.
    """
    found = signature(function)
    *own, rest = found.parameters.values()
    settings = arguments(get_args(rest.annotation)[0]).values()
    several = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.kind)
        for one in settings
    ]
    dotted = Parameter("dotted", Parameter.VAR_KEYWORD, annotation=Any)
    target: Any = function
    VERBS[target.__name__] = function
    target.__signature__ = found.replace(parameters=[*own, *several, dotted])
    about = "".join(f"    {one.name}: {one.about}\n" for one in settings)
    docstring = cleandoc(function.__doc__ or "")
    line = re.search(r"^    settings: .*(?:\n {8}.*)*\n", docstring, re.MULTILINE)
    assert line is not None
    target.__doc__ = docstring.replace(
        line[0],
        f"{about}    dotted: Keys by their dotted names, such as"
        ' `**{"train.optimizer.lr": 0.1}`. They\n        override the sections.\n',
    )
    return function


def given(name: str, /, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a call of a verb by name, with all defaults, and further keys.

    Raises:
        ConfigError: A key is neither dotted nor a section, and looks like an argument.
    """
    parameters = signature(VERBS[name]).parameters.values()
    known = {one.name: one.default for one in parameters if one.kind is not Parameter.VAR_KEYWORD}
    keys = {key: value for key, value in values.items() if key not in known}
    for key in (key for key in keys if "." not in key and key not in SECTIONS):
        if hint := did_you_mean(key, known):
            raise ConfigError(f"`{key}` is not an argument of fl.{name}.{hint}")
    return known | {key: value for key, value in values.items() if key in known}, keys


@verb
def run(algorithm: str | type | Keys | None = None, **settings: Unpack[RunSettings]) -> "Run":
    """Train and evaluate a method, as `flbench run` does.

    The settings are the sections of the configuration. Keys that are not given have the values of
    `config`, or their defaults. The same values give the same weights, bit for bit, as on the
    command line.

    Ctrl-C, or an interrupt of a notebook's kernel, saves the run and raises KeyboardInterrupt,
    whose message names the call of `fl.resume` that continues it. After the call PyTorch's threads,
    random generators, signal handlers and warnings are as before it. Functions given by an import
    path `package.module:name` are searched in the current folder too. If they are there, it stays
    at the end of `sys.path`, so that imports within them work later.

    Args:
        algorithm: The method: its name, or a dict with `name` and keys of the method, such as
            `{"name": "hfcd", "tau": 0.5}`. By default `hfcd`. A method of your own is named by its
            import path `package.module:Class`, or given as the class itself.
        settings: See `RunSettings`; further keys by their dotted names, such as
            `**{"train.optimizer.lr": 0.1}`. `study.best(METHOD).params` has this form.

    Returns:
        The finished run.

    Raises:
        ConfigError: Keys or values are wrong. The message has one line for each of them.
        UserError: Data, configuration and callbacks do not fit together, or the folder cannot be
            written.
        RunError: The run or a callback failed; `fl.resume` continues it.
        KeyboardInterrupt: The run was interrupted and saved.

    >>> import tempfile
    >>> from flbench.api.partitions import Dirichlet
    >>> few = Dirichlet(alpha=0.5, clients=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = run("fedavg", partition=few, train={"rounds": 1}, output={"dir": folder},
    ...                 progress=False)
    >>> found.config.algorithm.name, found.finished
    ('fedavg', True)
    """
    from flbench.api import running

    return running.called(*given("run", algorithm=algorithm, **settings))
