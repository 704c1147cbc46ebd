"""`flbench compare`: train methods over data sets, settings and repetitions."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from flbench.api.caller import Caller
from flbench.cli import console, words
from flbench.cli.layers import CommandLine
from flbench.cli.report import print_report
from flbench.core.errors import RunError, UserError
from flbench.core.wording import how_to_resume

if TYPE_CHECKING:
    from flbench.api.comparing import Asked, ComparisonEnding


def called(
    options: Mapping[str, Any],
    command: str = "compare",
    plan: Callable[["Asked"], "Asked"] = lambda asked: asked,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Carry out `flbench compare`, or a command that takes its options and plans otherwise.

    Args:
        options: The arguments and options of `flbench compare`, by the names of its parameters.
        command: Name of the command.
        plan: Function from what the user asked for to the comparison that is carried out.
        own: Options that only this command has. A resumed comparison takes none of them.

    Raises:
        UserError: The comparison cannot be carried out or resumed.
        RunError: Cells failed.
    """
    one = SimpleNamespace(**options)
    methods, overrides = words.methods(one.methods_and_overrides or [], one.algo or [])
    if one.address is not None:
        overrides = [*overrides, f"engine.address={one.address}"]
    given = CommandLine(overrides, one.aliases, one.config, None, methods)
    if one.resume is None:
        compare(
            given,
            data=one.data or [],
            grid=one.grid or [],
            options={
                "seeds": one.seeds,
                "vary": one.vary,
                "tuned": one.tuned,
                "force": one.force,
                "reuse": tuple(one.reuse or ()),
            },
            out=one.out or Path("comparisons"),
            jobs=one.jobs,
            dry_run=one.dry_run,
            as_json=one.as_json,
            plan=plan,
            command=command,
        )
        return
    refused = {name: options[name] for name in ("vary", "data", "grid", "tuned", "out", "dry_run")}
    refuse_with_resume(
        {name.replace("_", "-"): value for name, value in {**own, **refused}.items()}
    )
    resume(
        one.resume,
        given,
        seeds=one.seeds,
        reuse=one.reuse or [],
        force=one.force,
        jobs=one.jobs,
        as_json=one.as_json,
        command=command,
    )


def refuse_with_resume(options: Mapping[str, object]) -> None:
    """Raise a UserError if options were given that a resumed comparison cannot take."""
    if given := [f"--{name}" for name, value in options.items() if value]:
        raise UserError(
            f"{', '.join(given)} cannot be used with --resume: a resumed comparison keeps its plan."
            " Only methods and --seeds can be added to, and --jobs and --address can"
            " change."
        )


def compare(
    given: CommandLine,
    *,
    data: Sequence[str],
    grid: Sequence[str],
    options: dict[str, Any],
    out: Path,
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
    plan: Callable[["Asked"], "Asked"] = lambda asked: asked,
    command: str = "compare",
) -> None:
    """Check a comparison, make its folder, and carry it out.

    Args:
        given: What the user gave on the command line for the configuration.
        data: Names and files of data sets, also several separated by commas; empty for the data of
            the configuration.
        grid: Items `KEY=VALUE,VALUE`.
        options: Fields `seeds`, `vary`, `tuned`, `force` and `reuse` of
            `flbench.api.comparing.Asked`.
        out: Folder for the folders of comparisons.
        jobs: Cells at the same time; None for one per core.
        dry_run: Whether to print the plan and its estimated cost, and train nothing.
        as_json: Whether to print JSON: what `flbench report --json` prints of the cells, or with
            `dry_run` the plan, see `flbench.comparison.cost.ComparisonCost.tree`.
        plan: Function from what the user asked for to the comparison that is carried out.
        command: Command that resumes the comparison.
    """
    from flbench.api import comparing

    asked = _asked(given, **options)
    first = given.layers()
    sets = [name.strip() for name in ",".join(data).split(",")] if data else []
    asked = asked._replace(grid=comparing.grid_of(grid), data=comparing.data_of(sets, first))
    asked, caller = plan(asked), _caller(command, as_json)
    if dry_run:
        cost = comparing.plan(asked, jobs, caller)
        if as_json:
            console.json(cost.tree())
        else:
            for sentence in cost.sentences():
                console.line(sentence)
        return
    called = ["flbench", *sys.argv[1:]]
    _finish(comparing.start(asked, out, jobs, command=called, caller=caller), as_json=as_json)


def resume(
    path: Path,
    given: CommandLine,
    *,
    seeds: int | None,
    reuse: Sequence[Path],
    force: bool,
    jobs: int | None,
    as_json: bool,
    command: str = "compare",
) -> None:
    """Resume an interrupted comparison, or add methods and repetitions to one.

    Args:
        path: Folder of the comparison.
        given: Methods to add, and values of keys that may change.
        seeds: Number of repetitions; None for as many as before.
        reuse: Folders of finished runs that are used again as cells.
        force: Whether the study that has found the parameters may have another setting.
        jobs: Cells at the same time; None for one per core.
        as_json: Whether to print JSON, as `compare` does.
        command: Command that resumes the comparison.
    """
    from flbench.api import comparing

    caller = _caller(command, as_json)
    ending = comparing.carry_on(
        path, _asked(given, seeds=seeds, reuse=tuple(reuse), force=force), jobs, caller=caller
    )
    _finish(ending, as_json=as_json)


def _caller(command: str, as_json: bool) -> Caller:
    """Return the caller of a comparison that a command resumes."""
    return Caller(shown=not as_json, how_to_resume=partial(how_to_resume, command=command))


def _asked(given: CommandLine, **options: Any) -> "Asked":
    """Return what the user asked for, without data sets and grid."""
    from flbench.api.comparing import Asked

    names = given.methods or ("",)
    return Asked(dict(zip(names, given.layers_of_each(), strict=True)), **options)


def _finish(ending: "ComparisonEnding", *, as_json: bool) -> None:
    """Print what the report of a comparison says.

    Raises:
        RunError: Cells failed.
    """
    if ending.is_reported:
        print_report(ending.comparison, ending.path, as_json=as_json)
    console.notes(ending.notes)
    if ending.failures:
        raise RunError("\n".join(ending.failures))
