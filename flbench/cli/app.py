"""The commands of `flbench`.

Each command imports the file that carries it out when it is called, so that `flbench --help` does
not wait for PyTorch.
"""

import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import typer

from flbench import __version__
from flbench.api import settings, verbs
from flbench.cli import completion
from flbench.cli.exits import Command, Group, importing, print_error
from flbench.cli.options import ALIASES, options
from flbench.config import trust
from flbench.core import files, startup
from flbench.core.text import print_warnings

app = typer.Typer(
    name="flbench",
    cls=Group,
    help="Compare personalized federated learning methods on non-IID data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def words(metavar: str, about: str, complete: Callable[[str], list[str]] | None = None) -> Any:
    """Return the arguments of a command that are no options."""
    completed = None if complete is None else (lambda incomplete: complete(incomplete))
    return typer.Argument(metavar=metavar, help=about, show_default=False, autocompletion=completed)


def option(name: str, metavar: str | None, about: str, **more: Any) -> Any:
    """Return an option whose default, if there is one, the description names."""
    return typer.Option(name, metavar=metavar, help=about, show_default=False, **more)


Words = Annotated[
    list[str] | None,
    words(
        "[METHOD ...] [key=value ...]",
        "Method, or several methods to compare, for example hfcd fedavg; and overrides of"
        " configuration keys, for example train.local_epochs=2.",
        completion.words,
    ),
]
Algo = Annotated[
    list[str] | None,
    option(
        "--algo",
        "NAME[,NAME ...]",
        "The same as METHOD. Can be given several times.",
        autocompletion=lambda incomplete: completion.methods(incomplete),
    ),
]
Config = Annotated[
    Path | None,
    option("--config", "FILE", "YAML file with the values that differ from the defaults."),
]
RunCode = Annotated[
    bool,
    option(
        "--run-code",
        None,
        "Run code that a file or folder names, although your flbench has not written it.",
        callback=lambda value: trust.allow() if value else None,
    ),
]
DryRun = Annotated[
    bool,
    option("--dry-run", None, "Print the plan, and estimates of time and memory; train nothing."),
]
AsJson = Annotated[bool, option("--json", None, "Print JSON.")]
RunFolder = Annotated[Path, words("RUN_DIR", "Folder of a run.")]
GlobalModel = Annotated[bool, option("--global", None, "The global model, if there is one.")]
Client = Annotated[
    str | None, option("--client", "NAME", "Name of a natural client, or id of the client.")
]
StoreUri = Annotated[
    str | None,
    option(
        "--uri",
        "URI",
        "MLflow server or database (default: $MLFLOW_TRACKING_URI, else mlflow/flbench.db).",
    ),
]


def command(name: str | None = None, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that adds a command."""
    return app.command(name, cls=Command, **more)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, option("--version", None, "Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@command()
@options(settings.run, aliases=ALIASES)
def run(
    words: Words = None,
    *,
    algo: Algo = None,
    run_code: RunCode = False,
    out: Annotated[
        str | None,
        option("--out", "DIR", "Folder for run folders; the same as output.dir=DIR."),
    ] = None,
    resume: Annotated[
        Path | None, option("--resume", "RUN_DIR", "Resume an interrupted run.")
    ] = None,
    dry_run: DryRun = False,
    print_config: Annotated[
        bool,
        option(
            "--print-config",
            None,
            "Print the resolved configuration with the origin of each value; train nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Train and evaluate a method; without arguments, HFCD on scikit-learn's digits."""
    if not (dry_run or print_config):
        from flbench.cli import early_workers

        early_workers.prepare(early_workers.texts_of_keys(words or [], aliases))
    with importing():
        from flbench.cli import run as called
        from flbench.cli.layers import CommandLine

    given = CommandLine.of(words, algo, aliases, asked["config"], out)
    if resume is not None:
        refused: dict[str, object] = {"--dry-run": dry_run, "--print-config": print_config}
        refused |= {"a method": given.methods, "--config": given.config, "--out": out}
        called.resume(resume, given.layers()[0], refused, as_json=as_json)
    elif print_config:
        called.print_config(given.layers_of_each(), as_json=as_json)
    elif dry_run:
        called.dry_run(given.layers_of_each(), as_json=as_json)
    else:
        called.run(given.layers_of_each(), as_json=as_json)


@command()
def algos(
    name: Annotated[
        str | None, words("[NAME]", "A method to describe.", completion.methods)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the methods, or describe one: paper, hyper-parameters, communication, client state."""
    with importing():
        from flbench.cli import algos as called

    called.algos(name, as_json=as_json)


@command()
@options(aliases=("dataset", "partition", "clients", "alpha", "seed"))
def data(
    words: Annotated[
        list[str] | None,
        words("[NAME] [key=value ...]", "A data set, and overrides.", completion.data_words),
    ] = None,
    *,
    config: Config = None,
    run_code: RunCode = False,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "FILE.npz",
            "Save the partition. A run takes it with partition.scheme=file"
            " partition.path=FILE.npz.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        option("--picture", "FILE", "Draw the partition or topology (PNG, SVG or PDF)."),
    ] = None,
    topology: Annotated[
        str | None,
        option(
            "--topology",
            "NAME",
            "Show the communication graph of a decentralized method instead: random, ring, grid,"
            " exponential, complete, star, erdos_renyi or k_regular. The left of the picture shows"
            " clients and links (an arrow leads to the client that mixes, each connected part has"
            " a colour), the right the mixing weights. Options of the graph are overrides such as"
            " algorithm.neighbours=10.",
        ),
    ] = None,
    as_json: AsJson = False,
    aliases: dict[str, str],
) -> None:
    """List the data sets, or show the partition of one: samples per client and class.

    With --topology: show the communication graph of a decentralized method.
    """
    with importing():
        from flbench.cli import data as called

    called.data(
        words or [],
        config=config,
        aliases=aliases,
        out=out,
        picture=picture,
        topology=topology,
        as_json=as_json,
    )


@command(no_args_is_help=True)
def show(
    paths: Annotated[
        list[Path],
        words(
            "RUN_DIR ...",
            "A run, several runs to compare, a study, a folder that contains them, or an archive"
            " of flbench pack.",
        ),
    ],
    *,
    picture: Annotated[
        Path | None, option("--picture", "FILE", "Draw the runs' curves (PNG, SVG or PDF).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the tables of finished or unfinished runs and studies."""
    from flbench.cli import show as called

    called.show(paths, picture, as_json=as_json)


@command(no_args_is_help=True)
@options(verbs.report)
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
    out: Annotated[
        Path | None,
        option(
            "--out",
            "DIR",
            "Folder of the report (default: that of the comparison or the study, or FOLDER/report"
            " with other options; otherwise report).",
        ),
    ] = None,
    as_json: AsJson = False,
    asked: dict[str, Any],
) -> None:
    """Report which method is best, how sure that is, and what it costs, from finished runs."""
    from flbench.cli import report as called

    called.report(paths, out, asked, as_json=as_json)


@command(no_args_is_help=True)
def pack(
    paths: Annotated[
        list[Path],
        words("FOLDER ...", "Folders of runs, comparisons and studies, or folders above them."),
    ],
    *,
    out: Annotated[Path, option("--out", "FILE", "The archive; its name ends with .tar.xz.")],
) -> None:
    """Write finished runs without checkpoints into one small file, which flbench report reads."""
    from flbench.cli import report as called

    called.pack(paths, out)


@command(no_args_is_help=True)
@options(verbs.ModelSettings, verbs.ExportSettings)
def export(
    path: RunFolder,
    *,
    client: Client = None,
    is_global: GlobalModel = False,
    run_code: RunCode = False,
    out: Annotated[
        Path | None,
        option(
            "--out",
            "FILE",
            "The file (default: METHOD-DATASET-CLIENT in this folder). The model's card is written"
            " to FILE.json.",
        ),
    ] = None,
    as_json: AsJson = False,
    asked: dict[str, Any],
) -> None:
    """Write a model of a run to a file that loads and predicts without flbench."""
    with importing():
        from flbench.cli import models as called

    called.export(path, out, {**asked, "client": client}, is_global=is_global, as_json=as_json)


@command(no_args_is_help=True)
@options(verbs.ModelSettings)
def predict(
    path: RunFolder,
    inputs: Annotated[
        list[Path],
        words(
            "FILE ...",
            "Images, .csv tables, .npz files, .txt texts, or folders and .zip files of images or"
            " tables.",
        ),
    ],
    *,
    client: Client = None,
    is_global: GlobalModel = False,
    run_code: RunCode = False,
    out: Annotated[
        Path | None, option("--out", "FILE.csv", "Write the predictions to a CSV file.")
    ] = None,
    as_json: AsJson = False,
    asked: dict[str, Any],
) -> None:
    """Predict the classes of samples in files with a model of a run."""
    with importing():
        from flbench.cli import models as called

    asked["client"] = client
    called.predict(path, inputs, out, asked, is_global=is_global, as_json=as_json)


@command()
@options(
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
    table: Annotated[
        list[str] | None,
        option(
            "--table",
            "T[,T ...]",
            "Tables, or all (default: the main table). Can be given several times.",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        option(
            "--dataset",
            "NAME",
            "One data set of the tables, or another one in place of the first.",
        ),
    ] = None,
    algo: Annotated[
        list[str] | None,
        option(
            "--algo",
            "NAME[,NAME ...]",
            "Rows of the table (default: all rows). Can be given several times.",
        ),
    ] = None,
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
    out: Annotated[
        Path, option("--out", "DIR", "Folder for comparisons and reports (default: reproduce).")
    ] = Path("reproduce"),
    download: Annotated[
        bool, option("--download", None, "Let torchvision download missing data sets.")
    ] = False,
    dry_run: Annotated[
        bool, option("--dry-run", None, "Train nothing: report what is there.")
    ] = False,
    as_json: AsJson = False,
    aliases: dict[str, str],
) -> None:
    """Measure tables of a paper, and print the published numbers beside the measured ones.

    The methods of a table are compared in folders of comparisons, and the same command resumes
    them.
    """
    with importing():
        from flbench.cli import reproduce as called

    called.reproduce(
        words or [],
        aliases=aliases,
        dry_run=dry_run,
        as_json=as_json,
        tables=_listed(table),
        dataset=dataset,
        algos=_listed(algo),
        seeds=seeds,
        jobs=jobs,
        out=out,
        download=download,
    )


ComparisonFolder = Annotated[
    Path | None,
    option(
        "--resume",
        "COMPARISON_DIR",
        "Resume an interrupted comparison, or add methods and repetitions to one.",
    ),
]
DataSets = Annotated[
    list[str] | None,
    option(
        "--data",
        "NAME|FILE[,...]",
        "Data sets, by name or by file. Can be given several times.",
        autocompletion=lambda incomplete: completion.data_sets(incomplete),
    ),
]


@command(no_args_is_help=True)
@options(verbs.compare, aliases=ALIASES)
def compare(
    words: Words = None,
    *,
    algo: Algo = None,
    data: DataSets = None,
    run_code: RunCode = False,
    resume: ComparisonFolder = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Train methods over data sets, settings and repetitions.

    Each training is a cell of the matrix methods x data sets x settings x repetitions, and an
    ordinary run folder. The methods of a repetition have the same seeds.
    A variant of a method is one word, `"LABEL: METHOD KEY=VALUE ..."`.
    """
    given = {**locals(), **asked}
    with importing():
        from flbench.cli import compare as called

    called.called(given)


@command(no_args_is_help=True)
@options(verbs.ablate, aliases=ALIASES)
def ablate(
    words: Words = None,
    *,
    algo: Algo = None,
    data: DataSets = None,
    run_code: RunCode = False,
    resume: ComparisonFolder = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Compare one METHOD with variants of itself, each with another value of one key."""
    given = {**locals(), **asked}
    with importing():
        from flbench.api import comparing
        from flbench.cli import compare as called

    values = comparing.grid_of(asked["values"] or [], "values")
    own = {"keys": asked["keys"], "values": values}
    called.called(given, "ablate", partial(comparing.ablated, **own), own)


@command(no_args_is_help=True)
@options(verbs.tune, aliases=ALIASES)
def tune(
    words: Words = None,
    *,
    algo: Algo = None,
    run_code: RunCode = False,
    resume: Annotated[
        Path | None, option("--resume", "STUDY_DIR", "Resume an interrupted study.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Search hyper-parameters of methods with equal budgets, and compare the tuned methods.

    Trials are scored on the validation parts, after their last round. The best and the default
    parameters are then compared over repetitions with other seeds and partitions, and only these
    are evaluated on the test parts.
    """
    with importing():
        from flbench.cli import tune as called

    called.called(
        words or [],
        algo or [],
        aliases,
        {name: value for name, value in asked.items() if value is not None},
        resume=resume,
        dry_run=dry_run,
        as_json=as_json,
    )


@command("new-method", no_args_is_help=True)
def new_method(
    name: Annotated[
        str, words("NAME", "Name of the method: lower-case letters, digits and underscores.")
    ],
    *,
    out: Annotated[
        Path | None,
        option("--out", "DIR", "Folder of the package (default: flbench-NAME in this folder)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a package with a method that works, its search space, its tests and a README."""
    with importing():
        from flbench.cli import new_method as called

    called.new_method(name, out, as_json=as_json)


@command(no_args_is_help=True)
def sync(
    paths: Annotated[list[Path], words("PATH ...", "Folders of runs, studies and comparisons.")],
    *,
    uri: StoreUri = None,
    as_json: AsJson = False,
) -> None:
    """Send to MLflow the parts of runs, studies and comparisons that it does not have yet."""
    from flbench.cli import mlflow as called

    called.sync(paths, uri, as_json=as_json)


@command()
def ui(
    *,
    uri: StoreUri = None,
    port: Annotated[
        int, option("--port", "PORT", "Port on this machine (default: 5000).", min=1, max=65535)
    ] = 5000,
) -> None:
    """Serve MLflow's pages on this machine, and print links to useful comparisons."""
    from flbench.cli import mlflow as called

    called.ui(uri, port)


def _listed(given: list[str] | None) -> list[str]:
    """Return the values of an option that can be given several times, with commas between some."""
    return [one.strip() for text in given or [] for one in text.split(",")]


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
