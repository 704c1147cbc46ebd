"""`flbench compare`: train methods over data sets, settings and repetitions."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from flbench.api.caller import Caller
from flbench.cli import console, words
from flbench.cli.layers import WORDS, CommandLine
from flbench.cli.report import print_report
from flbench.config.sources import merge
from flbench.core.errors import RunError, UserError
from flbench.core.wording import how_to_resume

if TYPE_CHECKING:
    from flbench.api.campaigns import Ending
    from flbench.comparison.design import Design

KEPT = ("vary", "data", "grid", "tuned", "out", "dry_run")
"""Options that a comparison that is resumed does not take."""


def called(
    options: Mapping[str, Any],
    command: str = "compare",
    variants: Callable[["Design"], "Design"] = lambda design: design,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Carry out `flbench compare`, or a command that takes its options and compares variants.

    Args:
        options: The arguments and options of `flbench compare`, by the names of its parameters.
        command: Name of the command.
        variants: Function from the design of what is given to the one that is carried out.
        own: Options that only this command has. A resumed comparison takes none of them.

    Raises:
        UserError: The comparison cannot be carried out or resumed.
        RunError: Cells failed.
    """
    from flbench.api import campaigns, comparing

    one = SimpleNamespace(**options)
    given = one.words or []
    names, overrides = words.methods(given, one.algo or [], variants=True)
    if one.address is not None:
        overrides = [*overrides, f"engine.address={one.address}"]
    layers = CommandLine(overrides, one.aliases, one.config).layers()
    methods = comparing.methods_of(names, WORDS)
    caller = Caller(shown=not one.as_json, how_to_resume=partial(how_to_resume, command=command))
    campaign = campaigns.Campaign(caller, jobs=one.jobs, force=one.force, reused=one.reuse or ())
    if one.resume is not None:
        if taken := [name for name in (*own, *KEPT) if {**own, **options}[name]]:
            raise UserError(
                f"--{taken[0].replace('_', '-')} cannot be used with --resume: a resumed comparison"
                " keeps its plan. Only methods and --seeds can be added to, and --jobs and"
                " --address can change."
            )
        _finish(campaign.carry_on(one.resume, methods, layers, one.seeds), as_json=one.as_json)
        return
    root = Path(str(merge(layers).tree.get("data", {}).get("root", "data")))
    named = [name.strip() for name in ",".join(one.data or []).split(",") if name]
    sets, _ = comparing.data_sets(named, root)
    settings = {name: options[name] for name in ("seeds", "vary", "tuned")}
    grid = comparing.grid_of(one.grid or [])
    design = comparing.design_of(methods, layers, sets, variants, grid=grid, **settings)
    if one.dry_run:
        plan = campaign.plan(design)
        if one.as_json:
            console.json(plan.tree)
        else:
            for sentence in plan.sentences:
                console.line(sentence)
        return
    called_by = ["flbench", *sys.argv[1:]]
    ending = campaign.start(design, out=one.out or campaigns.OUT, command=called_by)
    _finish(ending, as_json=one.as_json)


def _finish(ending: "Ending", *, as_json: bool) -> None:
    """Print what the report of a comparison says.

    Raises:
        RunError: Cells failed.
    """
    from flbench.api.comparisons import PlannedComparison

    if ending.is_reported:
        print_report(PlannedComparison(ending.path), ending.path, as_json=as_json)
    console.notes(ending.notes)
    if ending.failures:
        raise RunError("\n".join(ending.failures))
