"""`flbench ablate`: compare a method with variants of itself."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flbench.cli import compare
from flbench.cli.layers import CommandLine


def ablate(
    given: CommandLine,
    keys: str | None,
    values: Sequence[str],
    *,
    out: Path | None,
    resume: Path | None,
    jobs: int | None,
    as_json: bool,
    run_code: bool,
    **options: Any,
) -> None:
    """Check an ablation and carry it out, or resume one.

    Args:
        given: What the user gave on the command line for the configuration.
        keys: Keys that are changed, separated by commas; None for each on/off or choice key.
        values: Items `KEY=VALUE,VALUE`.
        out: Folder for the folders of ablations; None for the default.
        resume: Folder of an ablation to resume; None for a new one.
        jobs: Cells at the same time; None for one per core.
        as_json: Whether to print JSON, as `flbench compare` does.
        run_code: Whether code that a file names may run, which the option has allowed already.
        options: Other options of `flbench compare`, by name.
    """
    from flbench.api import ablating, comparing

    if resume is not None:
        kept = {name: options.pop(name) for name in ("seeds", "reuse")}
        refused = {"keys": keys, "values": values, "out": out, **options}
        compare.refuse_with_resume({name.replace("_", "-"): one for name, one in refused.items()})
        kept["reuse"] = kept["reuse"] or []
        compare.resume(resume, given, jobs=jobs, as_json=as_json, command="ablate", **kept)
        return
    named = [one if "." in one.partition("=")[0] else f"algorithm.{one}" for one in values]
    asked = comparing.grid_of(named, "values")
    names = None if keys is None else [name.strip() for name in keys.split(",")]
    lists = {name: options.pop(name) or [] for name in ("data", "grid")}
    dry_run = options.pop("dry_run")
    compare.compare(
        given,
        **lists,
        options=options,
        out=out or Path(ablating.FOLDER),
        jobs=jobs,
        dry_run=dry_run,
        as_json=as_json,
        plan=partial(ablating.ablated, keys=names, values=asked),
        command="ablate",
    )
