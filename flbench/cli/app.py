"""The commands of `flbench`.

A function here declares the words and options of a command. The function of the same name in
another file of this package carries it out; the file is imported when the command is called, so
that `flbench --help` does not wait for PyTorch. It gets the words and options that are declared
here; `asked` has the arguments of the verb, and `aliases` the texts of the given short forms.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from flbench import __version__
from flbench.api import settings, verbs
from flbench.cli.completion import completing
from flbench.cli.exits import Command, Group, importing, print_error
from flbench.cli.options import ALIASES, of_function, of_verbs, option, short_forms
from flbench.config import trust
from flbench.core import files, startup
from flbench.core.text import print_warnings

GPUS: Final = Path("/dev/nvidiactl")
"""File of the driver of GPUs, on which no workers of this machine train."""

app = typer.Typer(
    name="flbench",
    cls=Group,
    help="Compare personalized federated learning methods on non-IID data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def words(metavar: str, about: str, *kinds: str) -> Any:
    """Return the arguments of a command that are no options."""
    complete = completing(*kinds) if kinds else None
    return typer.Argument(metavar=metavar, help=about, show_default=False, autocompletion=complete)


def command(
    *declared: Any,
    module: str | None = None,
    like: Sequence[Callable[..., None]] = (),
    aliases: Sequence[str] = (),
    light: bool = False,
    before: Callable[..., None] = lambda **_: None,
    **more: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds a command, which the function of its name carries out.

    That function gets the values by the names of the parameters; with verbs as `asked`, a dict by
    the names of their arguments, and with short forms as `aliases`, the texts of those that the
    user gave. `--run-code` has been followed.

    Args:
        declared: Verbs and classes of settings, whose arguments become options.
        module: Name of the file that has the function; None for the name of the command.
        like: Functions that declare further words and options.
        aliases: Short forms, by the names of `ALIASES`.
        light: Whether the command works without PyTorch.
        before: Function that gets the values before PyTorch is imported.
        more: Further arguments of Typer.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        name = function.__name__
        own = [parameter for one in (*like, function) for parameter in of_function(one)]
        own.sort(key=lambda p: p.kind)
        verbs_of, short = of_verbs(declared, [p.name for p in own]), short_forms(aliases)
        first = [p.kind for p in (*own, Parameter("_", Parameter.KEYWORD_ONLY))]
        place = first.index(Parameter.KEYWORD_ONLY)
        every = [*own[:place], *verbs_of.values(), *own[place:], *short.values()]

        def called(**values: Any) -> None:
            values.pop("run_code", None)
            texts = {key: values.pop(p.name) for key, p in short.items()}
            asked = {key: values.pop(key) for key in verbs_of}
            values |= {"asked": asked} if declared else {}
            texts = {key: text for key, text in texts.items() if text is not None}
            values |= {"aliases": texts} if aliases else {}
            before(**values)
            with nullcontext() if light else importing():
                found = import_module(f"flbench.cli.{module or name}")
            getattr(found, name)(**values)

        # Typer would keep the line breaks of all paragraphs but the first.
        paragraphs = cleandoc(function.__doc__ or "").partition("\n\nOptions:")[0].split("\n\n")
        called.__name__ = name
        called.__doc__ = "\n\n".join(" ".join(one.split()) for one in paragraphs)
        # Typer reads both places.
        vars(called)["__signature__"] = Signature(every)
        called.__annotations__ = {p.name: p.annotation for p in every}
        app.command(cls=Command, **more)(called)
        return function

    return add


Json = Annotated[bool, option("--json", None, "Print JSON.")]
RunCode = Annotated[
    bool,
    option(
        "--run-code",
        None,
        "Run code that a file or folder names, although your flbench has not written it.",
        callback=lambda value: trust.allow() if value else None,
    ),
]
StoreUri = Annotated[
    str | None,
    option(
        "--uri",
        "URI",
        "MLflow server or database (default: $MLFLOW_TRACKING_URI, else mlflow/flbench.db).",
    ),
]


def training(
    words: Annotated[
        list[str] | None,
        words(
            "[METHOD ...] [key=value ...]",
            "Method, for example hfcd (`run` trains one, other commands any number); and overrides"
            " of configuration keys, for example train.local_epochs=2.",
            "methods",
            "keys",
        ),
    ] = None,
    *,
    algo: Annotated[
        list[str] | None,
        option(
            "--algo",
            "NAME[,NAME ...]",
            "The same as METHOD.",
            "methods",
        ),
    ] = None,
    run_code: RunCode = False,
    dry_run: bool = False,
    as_json: Json = False,
) -> None:
    """Declare what each command that trains takes.

    Options:
        dry_run: Print the plan, and estimates of time and memory; train nothing.
    """


def matrix(
    *,
    data: Annotated[
        list[str] | None,
        option(
            "--data",
            "NAME|FILE[,...]",
            "Data sets, by name or by file. Can be given several times.",
            "data sets",
        ),
    ] = None,
    resume: Annotated[Path | None, "COMPARISON_DIR"] = None,
) -> None:
    """Declare what each command that carries out a comparison takes.

    Options:
        resume: Resume an interrupted comparison, or add methods and repetitions to one.
    """


def model(
    path: Annotated[Path, words("RUN_DIR", "Folder of a run.")],
    *,
    client: Annotated[str | None, "NAME"] = None,
    run_code: RunCode = False,
    as_json: Json = False,
) -> None:
    """Declare how a command takes a model of a run.

    Options:
        client: Name of a natural client, or id of the client (default: the global model).
    """


def _prepare_workers(
    words: list[str] | None, aliases: dict[str, str], *, is_trained: bool = True, **_: Any
) -> None:
    """Start the server of worker processes, unless the run needs none, while PyTorch is imported.

    The texts of keys are a first guess; the configuration decides later.
    """
    pairs = (word.partition("=") for word in words or [])
    given = {key: text for key, sign, text in pairs if sign}
    given |= {ALIASES[name].key: text for name, text in aliases.items()}
    on_gpu = given.get("engine.device", "auto") != "cpu" and GPUS.exists()
    alone = given.get("engine.name") == "ray" or given.get("engine.workers") == "1"
    if is_trained and not (on_gpu or alone):
        from flbench.workers import fork_server

        fork_server.prepare()


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, option("--version", None, "Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@command(
    settings.run,
    like=[training],
    aliases=(*ALIASES,),
    before=lambda dry_run, print_config, **given: _prepare_workers(
        **given, is_trained=not (dry_run or print_config)
    ),
)
def run(
    *,
    out: Annotated[str | None, "DIR"] = None,
    resume: Annotated[Path | None, "RUN_DIR"] = None,
    print_config: bool = False,
) -> None:
    """Train and evaluate a method; without arguments, HFCD on scikit-learn's digits.

    Options:
        out: Folder for run folders; the same as output.dir=DIR.
        resume: Resume an interrupted run.
        print_config: Print the resolved configuration with the origin of each value; train nothing.
    """


@command()
def algos(
    name: Annotated[str | None, words("[NAME]", "A method to describe.", "methods")] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the methods, or describe one: paper, hyper-parameters, communication, client state."""


@command(aliases=("partition", "clients", "alpha", "seed"))
def data(
    words: Annotated[
        list[str] | None,
        words("[NAME] [key=value ...]", "A data set, and overrides.", "data sets", "keys"),
    ] = None,
    *,
    config: Annotated[Path | None, "FILE"] = None,
    run_code: RunCode = False,
    out: Annotated[Path | None, "FILE.npz"] = None,
    picture: Annotated[Path | None, "FILE"] = None,
    as_json: Json = False,
) -> None:
    """List the data sets, or show the partition of one: samples per client and class.

    Options:
        config: YAML file with the values that differ from the defaults.
        out: Save the partition. A run takes it with partition.scheme=file partition.path=FILE.npz.
        picture: Draw the partition (PNG, SVG or PDF).
    """


@command(light=True)
def show(
    paths: Annotated[
        list[Path],
        words(
            "RUN_DIR ...",
            "A run, several runs, a study, a folder that contains them, or an archive of flbench"
            " pack.",
        ),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Print the tables of finished or unfinished runs and studies."""


@command(verbs.report, light=True)
def report(
    paths: Annotated[
        list[Path],
        words(
            "FOLDER ...",
            "Folders of runs and studies, archives of flbench pack, or folders above them. Of a"
            " study, the cells are compared, with the search before them.",
        ),
    ],
    *,
    out: Annotated[Path | None, "DIR"] = None,
    as_json: Json = False,
) -> None:
    """Report which method is best, how sure that is, and what it costs, from finished runs.

    Options:
        out: Folder of the report (default: that of the comparison or the study, or FOLDER/report
            with other options, with --at steps FOLDER/report-steps; otherwise report).
    """


@command(module="report", light=True)
def pack(
    paths: Annotated[
        list[Path],
        words("FOLDER ...", "Folders of runs, comparisons and studies, or folders above them."),
    ],
    *,
    out: Annotated[Path, "FILE"],
) -> None:
    """Write finished runs without checkpoints into one small file, which flbench report reads.

    Options:
        out: The archive; its name ends with .tar.xz.
    """


@command(
    *(verbs.ModelSettings, verbs.ExportSettings),
    module="models",
    like=[model],
)
def export(
    *,
    out: Annotated[Path, "FILE"],
) -> None:
    """Write a model of a run to a file that loads and predicts without flbench.

    Options:
        out: The file; its suffix is .pt2 for torch.export, .onnx, or .safetensors for the weights
            alone. The model's card is written to FILE.json.
    """


@command(verbs.ModelSettings, module="models", like=[model])
def predict(
    inputs: Annotated[
        list[Path],
        words(
            "FILE ...",
            "Images, .csv tables, .npz files, .txt texts, or folders and .zip files of images or"
            " tables.",
        ),
    ],
    *,
    out: Annotated[Path | None, "FILE.csv"] = None,
) -> None:
    """Predict the classes of samples in files with a model of a run.

    Options:
        out: Write the predictions to a CSV file.
    """


@command(
    aliases=("clients", "alpha", "model", "rounds", "participation", "engine", "device", "seed")
)
def reproduce(
    words: Annotated[
        list[str] | None,
        words(
            "[PAPER] [key=value ...]",
            "A paper, and overrides. Without a paper, the available papers are listed.",
        ),
    ] = None,
    *,
    table: Annotated[list[str] | None, "T[,T ...]"] = None,
    dataset: Annotated[str | None, "NAME"] = None,
    algo: Annotated[list[str] | None, "NAME[,NAME ...]"] = None,
    seeds: Annotated[
        int | None,
        option(
            "--seeds", "N", "Runs per cell (default: as many as in the paper).", min=1, max=1000
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        option("--jobs", "N", "Trainings at the same time (default: one per core).", min=1),
    ] = None,
    out: Annotated[Path, "DIR"] = Path("reproduce"),
    download: bool = False,
    dry_run: bool = False,
    as_json: Json = False,
) -> None:
    """Measure tables of a paper, and print the published numbers beside the measured ones.

    The methods of a table are compared in folders of comparisons, and the same command resumes
    them.

    Options:
        table: Tables, or all (default: the main table). Can be given several times.
        dataset: One data set of the tables, or another one in place of the first.
        algo: Rows of the table (default: all rows). Can be given several times.
        out: Folder for comparisons and reports (default: reproduce).
        download: Let torchvision download missing data sets.
        dry_run: Train nothing: report what is there.
    """


@command(verbs.compare, like=[training, matrix], aliases=(*ALIASES,))
def compare() -> None:
    """Train methods over data sets, settings and repetitions.

    Each training is a cell of the matrix methods x data sets x settings x repetitions, and an
    ordinary run folder. The methods of a repetition have the same seeds.
    A variant of a method is one word, `"LABEL: METHOD KEY=VALUE ..."`.
    """


@command(
    verbs.ablate,
    module="compare",
    like=[training, matrix],
    aliases=(*ALIASES,),
)
def ablate() -> None:
    """Compare one METHOD with variants of itself, each with another value of one key."""


@command(verbs.tune, like=[training], aliases=(*ALIASES,))
def tune(
    *,
    resume: Annotated[Path | None, "STUDY_DIR"] = None,
) -> None:
    """Search hyper-parameters of methods with equal budgets, and compare the tuned methods.

    Trials are scored on the validation parts, after their last round. The best and the default
    parameters are then compared over repetitions with other seeds and partitions, and only these
    are evaluated on the test parts.

    Options:
        resume: Resume an interrupted study.
    """


@command()
def new_method(
    name: Annotated[
        str, words("NAME", "Name of the method: lower-case letters, digits and underscores.")
    ],
    *,
    out: Annotated[Path | None, "DIR"] = None,
) -> None:
    """Write a package with a method that works, its search space, its tests and a README.

    Options:
        out: Folder of the package (default: flbench-NAME in this folder).
    """


@command(module="mlflow", light=True)
def sync(
    paths: Annotated[list[Path], words("PATH ...", "Folders of runs, studies and comparisons.")],
    *,
    uri: StoreUri = None,
    as_json: Json = False,
) -> None:
    """Send to MLflow the parts of runs, studies and comparisons that it does not have yet."""


@command(module="mlflow", light=True)
def ui(
    *,
    uri: StoreUri = None,
    port: Annotated[
        int, option("--port", "PORT", "Port on this machine (default: 5000).", min=1, max=65535)
    ] = 5000,
) -> None:
    """Serve MLflow's pages on this machine, and print links to useful comparisons."""


@cache
def _command() -> Any:
    """Return the click command of the application, which each call of `app` would build again."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Arguments of the command; None for those of this process.

    Returns:
        The exit code.
    """
    if arguments is None:
        startup.open_streams()
    print_warnings()
    startup.complete_account()
    if arguments is None:  # this process has no other purpose than the command
        startup.own_process()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see `flbench/__main__.py`
            signal.signal(signal.SIGINT, signal.default_int_handler)
    given = sys.argv[1:] if arguments is None else arguments
    if "" in given:
        print_error("an argument is empty. As a path, it would be the current folder: `.`")
        return 2
    for argument in given:
        if not files.is_text(argument):
            known = sys.getfilesystemencoding()
            cure = "" if known == "utf-8" else f" Python reads it as {known}: set PYTHONUTF8=1."
            print_error(f"the argument {argument!r} contains NUL or is not UTF-8 text.{cure}")
            return 2
    try:
        with trust.run_code(allowed=False):  # `--run-code` holds for this call
            _command()(args=arguments, prog_name="flbench")
    except SystemExit as stop:
        if stop.code is None:
            return 0
        return stop.code if isinstance(stop.code, int) else 1
    return 0
