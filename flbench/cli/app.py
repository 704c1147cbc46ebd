"""Commands and options of `flbench`, and its exit codes.

Each command imports the file that carries it out when it is called, so that `flbench --help` does
not wait for PyTorch.
"""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from flbench import __version__
from flbench.cli import completion, suggestions
from flbench.cli.aliases import ALIASES, DATA, with_aliases, with_options_of
from flbench.cli.declared import Form, with_arguments_of
from flbench.config import trust
from flbench.core import files, startup
from flbench.core.errors import RunError, UserError, shortened
from flbench.core.system_errors import as_flbench_errors
from flbench.core.text import print_warnings, printable
from flbench.reports.terminal import print_notes, told

# Typer has its own copy of Click, without a public name for the base of its errors.
USAGE_ERROR: Any = typer.BadParameter.__base__
MAX_MESSAGES: Final = 20  # messages about wrong input that are printed
MAX_LINE: Final = 800  # characters of a message; the cure, at its end, should not be cut
IMPORTS: Final = "importing PyTorch and other libraries"
"""What commands that train do first, for a line if that takes long."""


class CommandGroup(TyperGroup):
    """The commands; an error in one of them becomes a message and an exit code."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the options before the command."""
        with _exit_codes(), _printable_usage_errors():
            try:
                return super().make_context(*args, **options)
            except USAGE_ERROR as error:
                option = _unknown_option(error)
                if option is None:
                    raise
                raise UserError(
                    f"No such option: {option}. Options follow the command, for example flbench"
                    f" run {option} ...; flbench --help lists the commands."
                ) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the user named, and check its options."""
        if ctx.resilient_parsing:  # a shell completes a command that is not written to its end
            return super().resolve_command(ctx, args)
        if args and args[0] not in self.commands:
            word = printable(args[0])
            raise UserError(suggestions.for_command(word, args[1:], list(self.commands)))
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            self._check_options(command, ctx, rest)
        return name, command, rest

    def _check_options(self, command: Any, ctx: Any, arguments: list[str]) -> None:
        """Check the options of a command before it reads them.

        Args:
            command: Typer's object for the command.
            ctx: Typer's context of the group that the command belongs to.
            arguments: Arguments of the command.

        Raises:
            UserError: An option does not exist, or one that takes one value was given several
                times. Typer would take the last value without a word.
        """
        own = command.context_class(command, info_name=command.name, parent=ctx)
        try:
            _, _, given = command.make_parser(own).parse_args(args=list(arguments))
        except USAGE_ERROR as error:
            option = _unknown_option(error)
            if option is None:
                raise
            elsewhere = [name for name, other in self.commands.items() if option in _options(other)]
            sentence = suggestions.for_option(
                option,
                _options(command),
                takes_keys=any("key=value" in str(one.metavar) for one in command.params),
                elsewhere=elsewhere,
            )
            raise UserError(sentence) from None
        for option in given:
            takes_one = option.param_type_name == "option" and not (
                option.multiple or option.is_flag
            )
            if takes_one and given.count(option) > 1:
                raise UserError(
                    f"{option.opts[0]} is given {given.count(option)} times, but takes one value."
                    " Give it once."
                )

    def invoke(self, ctx: Any) -> Any:
        """Call the command that the user named."""
        with _exit_codes(), _printable_usage_errors():
            return super().invoke(ctx)


def _unknown_option(error: Exception) -> str | None:
    """Return the option that does not exist; None if an error is another one."""
    # Typer has no public name for this error.
    return getattr(error, "option_name", None) if hasattr(error, "possibilities") else None


def _options(command: Any) -> list[str]:
    """Return the options of a command, such as `--rounds`."""
    return [name for one in command.params for name in one.opts if name.startswith("--")]


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Print an expected error as a message, and exit without a traceback.

    Exit codes: 2 for an error in the user's input, 1 for an error during the run, 130 after Ctrl-C.
    If standard output is a pipe that nobody reads any more, such as that to `head`, the exit code
    is 1 and nothing is said.
    """
    try:
        with as_flbench_errors():
            try:
                yield
            except BrokenPipeError:
                if not _is_output_closed():
                    raise
                _discard_output()
                raise typer.Exit(1) from None
            except OSError as error:
                if error.filename is not None or not _fails_to_print():
                    raise
                _discard_output()
                raise RunError(
                    f"standard output cannot be written ({error.strerror}). What was computed is in"
                    " the folder of its results; send the output to another place."
                ) from None
    except UserError as error:
        _print_error(error)
        raise typer.Exit(2) from None
    except RunError as error:
        _print_error(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt as error:
        if not error.args:  # a message was printed when it was raised; it says how to resume
            typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None


@contextmanager
def _importing() -> Iterator[None]:
    """Context manager for imports of PyTorch, which tells the user if they take long.

    Every command that needs PyTorch imports the file that carries it out in this context.

    Ctrl-C ends the process at once: an exception in the middle of PyTorch's start would abort it
    with a message of its libraries, and nothing is there yet that could be saved.
    """
    ends = startup.is_own and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ends:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        with told(IMPORTS, print_notes):
            startup.load_pytorch()
            yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_at_once(*_: object) -> None:
    """End this process as after Ctrl-C."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(130)


def _discard_output() -> None:
    """Discard what Python would write to standard output when it ends, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fails_to_print() -> bool:
    """Return whether nothing can be printed, for example because a disk is full.

    A line break is printed, because output without a buffer has nothing left that could be written.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _is_output_closed() -> bool:
    """Return whether standard output is a pipe whose reader has closed it."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is no file, or is closed here
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _print_error(error: object) -> None:
    """Print an error, one message per line; long messages are cut in the middle."""
    lines = printable(str(error)).splitlines()
    for line in lines[:MAX_MESSAGES]:
        typer.echo(f"error: {shortened(line, MAX_LINE)}", err=True)
    if len(lines) > MAX_MESSAGES:
        typer.echo(f"error: and {len(lines) - MAX_MESSAGES:,} more errors.", err=True)


@contextmanager
def _printable_usage_errors() -> Iterator[None]:
    """Let Typer name a wrong argument without control characters, passwords and long texts."""
    try:
        yield
    except USAGE_ERROR as error:
        error.message = shortened(printable(error.message))
        raise


app = typer.Typer(
    name="flbench",
    cls=CommandGroup,
    help="Compare personalized federated learning methods on non-IID data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


MethodsAndOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[METHOD ...] [key=value ...]",
        help="Method, or several methods to compare, for example hfcd fedavg; and overrides of"
        " configuration keys, for example train.local_epochs=2.",
        show_default=False,
        autocompletion=lambda incomplete: completion.words(incomplete),
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="FILE", help="YAML file with the values that differ from the defaults."
    ),
]
RunCode = Annotated[
    bool,
    typer.Option(
        "--run-code",
        help="Run code that a file or folder names, although your flbench has not written it.",
        callback=lambda value: trust.allow() if value else None,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--algo",
        metavar="NAME[,NAME ...]",
        help="The same as METHOD. Can be given several times.",
        show_default=False,
        autocompletion=lambda incomplete: completion.methods(incomplete),
    ),
]
StoreUri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        metavar="URI",
        help="MLflow server or database (default: $MLFLOW_TRACKING_URI, else mlflow/flbench.db).",
    ),
]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
@with_arguments_of("flbench.api.running:run", config=Form("FILE"))
@with_aliases(*ALIASES)
def run(
    methods_and_overrides: MethodsAndOverrides = None,
    *,
    algo: Methods = None,
    run_code: RunCode = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="DIR", help="Folder for run folders; the same as output.dir=DIR."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN_DIR", help="Resume an interrupted run."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print sizes and estimates of time and memory, from one round."
        ),
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config",
            help="Print the resolved configuration with the origin of each value; train nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Train and evaluate a method; without arguments, HFCD on scikit-learn's digits."""
    words = methods_and_overrides or []
    if not (dry_run or print_config):
        from flbench.cli import early_workers

        given_texts = early_workers.texts_of_keys(words, aliases)
        early_workers.prepare(given_texts)
    with _importing():
        from flbench.cli import layers
        from flbench.cli import run as command
        from flbench.cli import words as naming

    methods, overrides = naming.methods(words, algo or [])
    config = asked["config"]
    given = layers.CommandLine(overrides, aliases, config, out, methods)
    if resume is not None:
        command.refuse_with_resume(
            {
                "a method": methods,
                "--config": config,
                "--out": out,
                "--dry-run": dry_run,
                "--print-config": print_config,
            }
        )
        command.resume(resume, given.layers()[0], as_json=as_json)
    elif print_config:
        command.print_config(given.layers_of_each(), as_json=as_json)
    elif dry_run:
        command.dry_run(given.layers_of_each(), as_json=as_json)
    else:
        command.run(given.layers_of_each(), as_json=as_json)


@app.command()
def algos(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method to describe.",
            show_default=False,
            autocompletion=lambda incomplete: completion.methods(incomplete),
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the methods, or describe one: paper, hyper-parameters, communication, client state."""
    with _importing():
        from flbench.cli import algos as command

    command.algos(name, as_json=as_json)


@app.command()
@with_aliases(*DATA)
def data(
    name_and_overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [key=value ...]",
            help="A data set, and overrides.",
            show_default=False,
            autocompletion=lambda incomplete: [
                *completion.data_sets(incomplete),
                *completion.keys(incomplete),
            ],
        ),
    ] = None,
    *,
    config: ConfigFile = None,
    run_code: RunCode = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE.npz",
            help="Save the partition. A run takes it with partition.scheme=file"
            " partition.path=FILE.npz.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Draw the partition or topology (PNG, SVG or PDF)."
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            metavar="NAME",
            help="Show the communication graph of a decentralized method instead: random, ring,"
            " grid, exponential, complete, star, erdos_renyi or k_regular. The left of the picture"
            " shows clients and links (an arrow leads to the client that mixes, each connected"
            " part has a colour), the right the mixing weights. Options of the graph are overrides"
            " such as algorithm.neighbours=10.",
        ),
    ] = None,
    as_json: AsJson = False,
    aliases: dict[str, str],
) -> None:
    """List the data sets, or show the partition of one: samples per client and class.

    With --topology: show the communication graph of a decentralized method.
    """
    with _importing():
        from flbench.cli import data as command

    command.data(
        name_and_overrides or [],
        config=config,
        aliases=aliases,
        save=save,
        picture=picture,
        topology=topology,
        as_json=as_json,
    )


@app.command(no_args_is_help=True)
def show(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR ...",
            help="A run, several runs to compare, a study, a folder that contains them, or an"
            " archive of flbench pack.",
        ),
    ],
    *,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw the runs' curves (PNG, SVG or PDF)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the tables of finished or unfinished runs and studies."""
    from flbench.cli import show as command

    command.show(paths, picture, as_json=as_json)


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run.", show_default=False)
]


@app.command(no_args_is_help=True)
@with_arguments_of(
    "flbench.api.reporting:report",
    metric=Form("NAME,..."),
    target=Form("VALUE,..."),
    baseline=Form("METHOD", complete=completion.methods),
    force=Form(),
)
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER ...",
            help="Folders of runs and studies, archives of flbench pack, or folders above them. Of"
            " a study, the final trainings are compared.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder of the report (default: that of the comparison; FOLDER/report for a"
            " study, and for a comparison with other options; otherwise report).",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    asked: dict[str, Any],
) -> None:
    """Report which method is best, how sure that is, and what it costs, from finished runs."""
    from flbench.cli import report as command

    command.report(paths, out, asked, as_json=as_json)


@app.command(no_args_is_help=True)
def pack(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER ...",
            help="Folders of runs, comparisons and studies, or folders above them.",
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="The archive; its name ends with .tar.xz."),
    ],
) -> None:
    """Write finished runs without checkpoints into one small file, which flbench report reads."""
    from flbench.cli import report as command

    command.pack(paths, out)


GlobalModel = Annotated[
    bool, typer.Option("--global", help="The global model, if the method has one.")
]
with_model = with_arguments_of(
    "flbench.api.runs:Run.trained",
    client=Form("NAME"),
    deployment=Form("NAME"),
    checkpoint=Form(),
    normalize_by=Form("FILE"),
)
"""Decorator of commands that take one of the models of a run."""


@app.command(no_args_is_help=True)
@with_model
@with_arguments_of("flbench.api.runs:Run.export", format=Form("FORMAT"), overwrite=Form())
def export(
    path: RunFolder,
    *,
    is_global: GlobalModel = False,
    run_code: RunCode = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="The file (default: METHOD-DATASET-CLIENT in this folder). The model's card is"
            " written to FILE.json.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    asked: dict[str, Any],
) -> None:
    """Write a model of a run to a file that loads and predicts without flbench."""
    with _importing():
        from flbench.cli import models as command

    command.export(path, out, asked, is_global=is_global, as_json=as_json)


@app.command(no_args_is_help=True)
@with_model
def predict(
    path: RunFolder,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE ...",
            help="Images, .csv tables, .npz files, .txt texts, or folders and .zip files of images"
            " or tables.",
            show_default=False,
        ),
    ],
    *,
    is_global: GlobalModel = False,
    run_code: RunCode = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.csv",
            help="Write the predictions to a CSV file.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    asked: dict[str, Any],
) -> None:
    """Predict the classes of samples in files with a model of a run."""
    with _importing():
        from flbench.cli import models as command

    command.predict(path, inputs, out, asked, is_global=is_global, as_json=as_json)


@app.command()
@with_aliases("clients", "alpha", "model", "rounds", "participation", "engine", "device", "seed")
def reproduce(
    paper_and_overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER] [key=value ...]",
            help="A paper, and overrides. Without a paper, the available papers are listed.",
            show_default=False,
        ),
    ] = None,
    *,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="T[,T ...]",
            help="Tables, or `all` (default: the main table). Can be given several times.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="[PRINTED=]NAME",
            help="One data set of the table, or a substitute for the data set PRINTED.",
        ),
    ] = None,
    algos: Annotated[
        list[str] | None,
        typer.Option(
            "--algos",
            metavar="NAME[,NAME ...]",
            help="Rows of the table (default: all rows). Can be given several times.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="small|full",
            help="small: few rounds, clients and samples, which takes minutes; full: the paper's"
            " settings.",
        ),
    ] = "small",
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            max=1000,
            help="Runs per cell (default: as many as in the paper).",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder for runs and reports.")
    ] = Path("reproduce"),
    download: Annotated[
        bool, typer.Option("--download", help="Let torchvision download missing data sets.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="List the runs, and what is missing; train nothing."),
    ] = False,
    as_json: AsJson = False,
    aliases: dict[str, str],
) -> None:
    """Measure tables of a paper, and print the published numbers beside the measured ones.

    The same command resumes an interrupted run, and reuses the runs that are finished.
    """
    with _importing():
        from flbench.cli import reproduce as command

    command.reproduce(
        paper_and_overrides or [],
        aliases=aliases,
        dry_run=dry_run,
        as_json=as_json,
        tables=_joined(table),
        dataset=dataset,
        algos=_joined(algos),
        scale=scale,
        seeds=seeds,
        output=output,
        download=download,
    )


@app.command(no_args_is_help=True)
@with_arguments_of(
    "flbench.api.comparing:compare",
    seeds=Form(),
    vary=Form(complete=completion.varying),
    grid=Form("KEY=VALUE,VALUE", several=True, complete=completion.keys),
    tuned=Form("STUDY_DIR"),
    force=Form(),
    reuse=Form("DIR", several=True),
    jobs=Form(),
    address=Form("HOST:PORT|auto"),
    out=Form("DIR"),
    config=Form("FILE"),
)
@with_aliases(*ALIASES)
def compare(
    methods_and_overrides: MethodsAndOverrides = None,
    *,
    algo: Methods = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME|FILE[,...]",
            help="Data sets, by name or by file. Can be given several times.",
            show_default=False,
            autocompletion=lambda incomplete: completion.data_sets(incomplete),
        ),
    ] = None,
    run_code: RunCode = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="COMPARISON_DIR",
            help="Resume an interrupted comparison, or add methods and repetitions to one.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan, and estimates of time and memory; train nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Train methods over data sets, settings and repetitions.

    Each training is a cell of the matrix methods x data sets x settings x repetitions, and an
    ordinary run folder. The methods of a repetition have the same seeds.
    """
    given = locals().copy()
    with _importing():
        from flbench.cli import compare as command

    command.called({**given.pop("asked"), **given})


@app.command(no_args_is_help=True)
@with_arguments_of(
    "flbench.api.ablating:ablate",
    keys=Form("KEY[,KEY ...]"),
    values=Form("KEY=VALUE,VALUE", several=True, complete=completion.keys),
)
@with_aliases(*ALIASES)
@with_options_of(compare)
def ablate(
    *,
    asked: dict[str, Any],
    shared: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Compare one METHOD with variants of itself, each with another value of one key."""
    with _importing():
        from flbench.api import ablating, comparing
        from flbench.cli import compare as command

    own = {**asked, "values": comparing.grid_of(asked["values"] or [], "values")}
    variants = partial(ablating.ablated, **own)
    command.called({**shared, "aliases": aliases}, "ablate", variants, own)


@app.command(no_args_is_help=True)
@with_arguments_of(
    "flbench.api.tuning:tune",
    trials=Form(),
    space=Form(),
    search=Form(),
    scheduler=Form(),
    metric=Form(),
    deployment=Form(),
    seeds=Form(),
    vary=Form(complete=lambda begun: completion.varying(begun, ("partition",))),
    concurrent=Form(),
    gpus_per_trial=Form("SHARE"),
    retries=Form(),
    address=Form("HOST:PORT|auto"),
    out=Form("DIR"),
    config=Form("FILE"),
)
@with_aliases(*ALIASES)
def tune(
    methods_and_overrides: MethodsAndOverrides = None,
    *,
    algo: Methods = None,
    run_code: RunCode = False,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="STUDY_DIR", help="Resume an interrupted study."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan, and estimates of time and memory; train nothing.",
        ),
    ] = False,
    as_json: AsJson = False,
    asked: dict[str, Any],
    aliases: dict[str, str],
) -> None:
    """Search hyper-parameters of methods with equal budgets, and compare the tuned methods.

    Trials are scored on the validation parts, after their last round. The best and the default
    parameters are then trained again with other seeds on other partitions, and only these final
    trainings are evaluated on the test parts.
    """
    with _importing():
        from flbench.cli import tune as command

    command.called(
        methods_and_overrides or [],
        algo or [],
        aliases,
        {name: value for name, value in asked.items() if value is not None},
        resume=resume,
        dry_run=dry_run,
        as_json=as_json,
    )


@app.command("new-method", no_args_is_help=True)
def new_method(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the method: lower-case letters, digits and underscores.",
            show_default=False,
        ),
    ],
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            help="Folder of the package (default: flbench-NAME in this folder).",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a package with a method that works, its search space, its tests and a README."""
    with _importing():
        from flbench.cli import new_method as command

    command.new_method(name, folder, as_json=as_json)


@app.command(no_args_is_help=True)
def sync(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH ...", help="Folders of runs, studies and comparisons."),
    ],
    *,
    uri: StoreUri = None,
    as_json: AsJson = False,
) -> None:
    """Send to MLflow the parts of runs, studies and comparisons that it does not have yet."""
    from flbench.cli import mlflow as command

    command.sync(paths, uri, as_json=as_json)


@app.command()
def ui(
    *,
    uri: StoreUri = None,
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", min=1, max=65535, help="Port on this machine."),
    ] = 5000,
) -> None:
    """Serve MLflow's pages on this machine, and print links to useful comparisons."""
    from flbench.cli import mlflow as command

    command.ui(uri, port)


def _joined(given: list[str] | None) -> str | None:
    """Return the values of an option that can be given several times as one list with commas."""
    return ",".join(given) if given else None


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
    if any(not one and before[:1] != "-" for before, one in pairwise(given)):
        _print_error("an argument is empty. As a path, it would be the current folder: `.`")
        return 2
    for argument in given:
        if not files.is_text(argument):
            known = sys.getfilesystemencoding()
            cure = "" if known == "utf-8" else f" Python reads it as {known}: set PYTHONUTF8=1."
            _print_error(f"the argument {argument!r} contains NUL or is not UTF-8 text.{cure}")
            return 2
    try:
        with trust.run_code(allowed=False):  # `--run-code` holds for this call
            _command()(args=arguments, prog_name="flbench")
    except SystemExit as stop:
        if stop.code is None:
            return 0
        return stop.code if isinstance(stop.code, int) else 1
    return 0
