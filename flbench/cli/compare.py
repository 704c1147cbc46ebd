"""`flbench compare` and `flbench ablate`: train methods, or variants of one, as a comparison."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flbench.api import campaigns, comparing
from flbench.api.comparisons import PlannedComparison
from flbench.api.progress import Caller
from flbench.cli import console
from flbench.cli.report import print_report
from flbench.cli.words import WORDS, layers, methods
from flbench.config.sources import merge
from flbench.core.errors import RunError, UserError
from flbench.core.wording import how_to_resume

if TYPE_CHECKING:
    from flbench.comparison.design import Design

ADDED: Final = ("seeds", "jobs", "address", "force", "config")
"""Options that a comparison that is resumed takes."""


def compare(**given: Any) -> None:
    """Carry out `flbench compare`; the arguments are those of `_carry_out`."""
    _carry_out("compare", lambda design: design, **given)


def ablate(*, asked: dict[str, Any], **given: Any) -> None:
    """Carry out `flbench ablate`; the arguments are those of `_carry_out`."""
    values = comparing.grid_of(asked["values"] or [], "values")
    own = {"keys": asked["keys"], "values": values}
    _carry_out("ablate", partial(comparing.ablated, **own), asked=asked, **given)


def _carry_out(
    command: str,
    variants: "Callable[[Design], Design]",
    *,
    words: Sequence[str] | None,
    algo: Sequence[str] | None,
    data: Sequence[str] | None,
    resume: Path | None,
    dry_run: bool,
    as_json: bool,
    asked: Mapping[str, Any],
    aliases: Mapping[str, str],
) -> None:
    """Carry out a comparison, or resume one, and print its report.

    `variants` makes the design that is carried out from the design of what is given.

    Raises:
        UserError: The comparison cannot be carried out or resumed.
        RunError: Cells failed.
    """
    names, overrides = methods([*(words or []), *(algo or [])], variants=True)
    if asked["address"] is not None:
        overrides = [*overrides, f"engine.address={asked['address']}"]
    given = layers(overrides, aliases, asked["config"])
    named = comparing.methods_of(names, WORDS)
    caller = Caller(shown=not as_json, how_to_resume=partial(how_to_resume, command=command))
    campaign = campaigns.Campaign(caller, jobs=asked["jobs"], force=asked["force"])
    if resume is not None:
        kept = {name: value for name, value in asked.items() if name not in ADDED}
        if taken := [k for k, one in {**kept, "data": data, "dry_run": dry_run}.items() if one]:
            raise UserError(
                f"--{taken[0].replace('_', '-')} cannot be used with --resume: a resumed comparison"
                " keeps its plan. Only methods and --seeds can be added to, and --jobs and"
                " --address can change."
            )
        ending = campaign.carry_on(resume, named, given, asked["seeds"])
    else:
        root = Path(str(merge(given).tree.get("data", {}).get("root", "data")))
        texts = [name.strip() for name in ",".join(data or []).split(",") if name]
        settings = {name: asked[name] for name in ("seeds", "vary", "tuned")}
        design = comparing.design_of(
            named,
            given,
            comparing.data_sets(texts, root)[0],
            variants,
            grid=comparing.grid_of(asked["grid"] or []),
            **settings,
        )
        if dry_run:
            plan = campaign.plan(design)
            console.plan(plan.tree, plan.sentences, as_json=as_json)
            return
        out, typed = asked["out"] or campaigns.OUT, ["flbench", *sys.argv[1:]]
        ending = campaign.start(design, out=out, command=typed)
    if ending.is_reported:
        print_report(PlannedComparison(ending.path), ending.path, as_json=as_json)
    console.notes(ending.notes)
    if ending.failures:
        raise RunError("\n".join(ending.failures))
