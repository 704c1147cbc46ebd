"""The command line.

Everything heavy is imported inside the commands: `flbench --help` answers at once.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from flbench import __version__
from flbench.core import files
from flbench.core.errors import RunError, UserError

app = typer.Typer(
    name="flbench",
    help="Compare personalized federated learning methods on non-IID data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# How PyTorch says that memory is short, on GPU and CPU.
NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "Storage size calculation overflowed",
)

RESUMED = (
    "It takes methods, spaces and configuration of the study, and goes on in its folder; only"
    " --concurrent, --gpus-per-trial, --retries and --address can be others."
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[key=value ...]",
        help="Overrides, for example train.rounds=100.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A YAML file of differences from the defaults."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    overrides: Overrides = None,
    *,
    algo: Annotated[
        str | None,
        typer.Option("--algo", metavar="NAME[,NAME ...]", help="Method, or several to compare."),
    ] = None,
    config: ConfigFile = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Folder for runs (the same as output.dir=DIR)."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN_DIR", help="Go on with an interrupted run."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print sizes and an estimate of time and memory; train nothing."
        ),
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option(
            "--print-config", help="Print the resolved configuration and where each value is from."
        ),
    ] = False,
) -> None:
    """Train and evaluate a federation; without arguments, HFCD on scikit-learn's digits."""
    with _exit_codes():
        from flbench.cli import commands

        if resume is not None:
            options = {
                "--algo": algo,
                "--config": config,
                "--out": out,
                "--dry-run": dry_run,
                "--print-config": print_config,
            }
            if wrong := [name for name, value in options.items() if value]:
                raise UserError(
                    f"{', '.join(wrong)} cannot go with --resume, which takes the configuration of"
                    " the run and goes on in its folder."
                )
            commands.resume(resume, overrides or [])
            return
        layers = commands.runs(algo, config=config, overrides=overrides or [], out=out)
        if print_config:
            commands.print_config(layers)
        elif dry_run:
            commands.dry_run(layers)
        else:
            commands.run(layers)


@app.command()
def algos(
    name: Annotated[str | None, typer.Argument(help="A method.", show_default=False)] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List the methods, or show one: paper, hyper-parameters, what is sent and what is kept."""
    with _exit_codes():
        from flbench.cli import commands

        commands.algos(name, as_json=as_json)


@app.command()
def data(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [key=value ...]", help="A data set, and overrides.", show_default=False
        ),
    ] = None,
    *,
    config: ConfigFile = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FILE.npz", help="Save the partition, for partition.path=FILE.npz."
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
            help="Show who mixes whose model in a decentralised method instead: clients and links"
            " on the left of the picture (arrows lead to the client that mixes, a colour for each"
            " part), the weights on the right. random, ring, grid, exponential, complete, star,"
            " erdos_renyi or k_regular; its options are algorithm.neighbours=10 and the like.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the data sets, or show who would hold what: a table of clients x classes.

    With --topology: who would mix whose model without a server.
    """
    with _exit_codes():
        from flbench.cli import commands

        items = what or []
        names = [item for item in items if "=" not in item]
        if len(names) > 1:
            raise UserError(f"give one data set, got {', '.join(names)}.")
        commands.data(
            names[0] if names else None,
            [item for item in items if "=" in item],
            config=config,
            save=save,
            picture=picture,
            topology=topology,
            as_json=as_json,
        )


@app.command()
def show(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR ...", help="One run, or several to compare, or a study's folder."
        ),
    ],
    *,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="Draw their curves (PNG, SVG or PDF)."),
    ] = None,
) -> None:
    """Print the tables of finished or unfinished runs and studies."""
    with _exit_codes():
        from flbench.cli import commands

        commands.show(runs, picture)


@app.command()
def bench(
    overrides: Overrides = None,
    *,
    config: ConfigFile = None,
    engines: Annotated[
        str, typer.Option("--engines", metavar="NAME[,NAME ...]", help="Engines to measure.")
    ] = "sequential,vectorized",
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The same as model.name=NAME.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME", help="The same as data.name=NAME.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", metavar="N", help="The same as partition.clients=N.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds that are measured.")] = 5,
    rounds: Annotated[
        int, typer.Option("--rounds", min=0, help="Rounds of the whole run; 0 leaves it out.")
    ] = 5,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for bench.json and bench.html.")
    ] = Path("bench"),
    as_json: AsJson = False,
) -> None:
    """Measure engines against a bare PyTorch loop over the same batches."""
    with _exit_codes():
        from flbench.cli import commands

        short = {"model.name": model, "data.name": dataset, "partition.clients": clients}
        given = [f"{key}={value}" for key, value in short.items() if value is not None]
        commands.bench(
            engines.split(","),
            [*(overrides or []), *given],
            config=config,
            repeats=repeats,
            rounds=rounds,
            out=out,
            as_json=as_json,
        )


@app.command()
def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAPER] [key=value ...]",
            help="A paper, and overrides; without one, the papers that there are.",
            show_default=False,
        ),
    ] = None,
    *,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="T[,T ...]", help="Tables, or all (default: the main one)."
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="[PRINTED=]NAME",
            help="One data set of the table, or another one to stand for it.",
        ),
    ] = None,
    algos: Annotated[
        str | None,
        typer.Option(
            "--algos", metavar="NAME[,NAME ...]", help="Rows of the table (default: all)."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="small|full",
            help="small: few rounds, clients and samples, minutes; full: as the paper.",
        ),
    ] = "small",
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=1,
            max=1000,
            help="Runs of each cell (default: the paper's).",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder for runs and reports.")
    ] = Path("reproduce"),
    download: Annotated[
        bool, typer.Option("--download", help="Let torchvision fetch data sets that are not there.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and what is missing; train nothing.")
    ] = False,
) -> None:
    """Measure tables of a paper, and print published figures beside ours.

    The same command again goes on where it stopped, and uses the runs that are finished.
    """
    with _exit_codes():
        from flbench.cli import commands

        items = what or []
        names = [item for item in items if "=" not in item]
        if len(names) > 1:
            raise UserError(f"give one paper, got {', '.join(names)}.")
        if scale not in ("small", "full"):
            raise UserError(f"--scale must be small or full, got {scale}.")
        commands.reproduce(
            names[0] if names else None,
            dry_run=dry_run,
            tables=table,
            dataset=dataset,
            algos=algos,
            scale=scale,
            seeds=seeds,
            output=output,
            overrides=[item for item in items if "=" in item],
            download=download,
        )


@app.command()
def tune(
    overrides: Overrides = None,
    *,
    algo: Annotated[
        str | None,
        typer.Option("--algo", metavar="NAME[,NAME ...]", help="Methods to tune and compare."),
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(
            "--space",
            metavar="PATH",
            help="Search space of one method, or a folder with METHOD.yaml (default: built in).",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            metavar="N",
            min=1,
            help="Of each method, the defaults among them (default 16).",
        ),
    ] = None,
    config: ConfigFile = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="random|grid|optuna",
            help="How parameters are proposed (default random).",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="asha|pbt|none",
            help="asha (default): stop trials that fall behind; pbt: let them take up the best"
            " ones' state; none: all run to the end, which gives the same result each time.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Of validation, never of test, to be large (default accuracy).",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            metavar="N",
            min=0,
            max=1000,
            help="Of which the default and the best parameters are trained again, and tested"
            " (default 3; 0 leaves it out).",
        ),
    ] = None,
    concurrent: Annotated[
        int | None,
        typer.Option(
            "--concurrent", metavar="N", min=1, help="Trials at once (default: one per core)."
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            "--gpus-per-trial",
            metavar="SHARE",
            min=0,
            help="Such as 0.25 (default: 1 where trials train on a GPU).",
        ),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", metavar="N", min=0, help="Of a trial whose worker fails (default 2)."
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT|auto", help="A running Ray cluster (default: our own)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for studies (default studies)."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="STUDY_DIR", help="Go on with an interrupted study."),
    ] = None,
) -> None:
    """Search hyper-parameters of methods under an equal budget, and compare them tuned.

    Trials are scored on validation parts. The best parameters are trained again over several
    seeds beside the defaults, and only then test parts are looked at.
    """
    # Shells ignore it in what they put into the background; a study is often put there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with _exit_codes():
        from flbench.cli import commands

        means = {"concurrent": concurrent, "gpus": gpus, "retries": retries, "address": address}
        rest = {
            "space": space,
            "trials": trials,
            "search": search,
            "scheduler": scheduler,
            "metric": metric,
            "seeds": seeds,
            "out": out,
        }
        given = {key: value for key, value in means.items() if value is not None}
        asked = {key: value for key, value in rest.items() if value is not None}
        if resume is not None:
            options = {"algo": algo, "config": config, **asked}
            if wrong := [f"--{name}" for name, value in options.items() if value is not None]:
                raise UserError(f"{', '.join(wrong)} cannot go with --resume. {RESUMED}")
            if overrides:
                raise UserError(f"{' '.join(overrides)} cannot go with --resume. {RESUMED}")
            commands.resume_study(resume, given)
            return
        if algo is None:
            raise UserError("name what to tune: --algo hfcd, or several with commas between.")
        commands.tune(algo, config=config, overrides=overrides or [], asked=asked | given)


StoreUri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        metavar="URI",
        help="Server or database (default: $MLFLOW_TRACKING_URI, else mlflow/flbench.db).",
    ),
]


@app.command()
def sync(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH ...", help="Run folders, or whole studies.")
    ],
    *,
    uri: StoreUri = None,
) -> None:
    """Send to MLflow what it does not have yet of runs and studies."""
    with _exit_codes():
        from flbench.cli import commands

        commands.sync(paths, uri)


@app.command()
def ui(
    *,
    uri: StoreUri = None,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="Port on this machine.")
    ] = 5000,
) -> None:
    """Open MLflow's pages on this machine, with links to what is worth comparing."""
    with _exit_codes():
        from flbench.cli import commands

        commands.ui(uri, port)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn errors into one message and an exit code.

    2 the user's input, 1 while running, 130 interrupted.
    """
    try:
        yield
    except UserError as error:
        _say(error)
        raise typer.Exit(2) from None
    except RunError as error:
        _say(error)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror}. Choose another place, or mend this one.")
        raise typer.Exit(1 if error.errno in files.DISK_ERRORS else 2) from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in NO_MEMORY):
            raise
        _say("out of memory. Lower train.batch_size, choose a smaller model, or engine.device=cpu.")
        raise typer.Exit(1) from None


def _say(error: object) -> None:
    for line in str(error).splitlines():
        typer.echo(f"error: {line}", err=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    try:
        app(args=arguments, prog_name="flbench")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0
