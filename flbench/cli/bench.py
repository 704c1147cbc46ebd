"""`flbench bench`: the speed of engines beside a bare PyTorch loop."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from flbench.cli import console, layers
from flbench.cli.tables import bench as bench_tables
from flbench.config.resolve import resolve
from flbench.config.schema import Config, EngineConfig
from flbench.config.sources import Layer, from_values
from flbench.core import files
from flbench.core.control_groups import available_cores
from flbench.core.errors import ConfigError, UserError


def bench(
    engines: Sequence[str],
    method_and_overrides: Sequence[str],
    *,
    aliases: Mapping[str, str],
    config: str | None,
    repeats: int,
    rounds: int,
    out: Path,
    as_json: bool,
) -> None:
    """Measure engines, write bench.json and bench.html, and print the results.

    Args:
        engines: Names of the engines.
        method_and_overrides: At most one method, and overrides `key=value`.
        aliases: Texts of the short forms that the user gave, by the name of the option.
        config: Configuration file.
        repeats: Rounds to measure.
        rounds: Rounds of the complete run to measure; 0 for none.
        out: Folder for the two files.
        as_json: Whether to print JSON instead of tables.
    """
    methods, origin, overrides = layers.methods(method_and_overrides, None)
    if len(methods) > 1:
        raise UserError(f"give one method, got {', '.join(methods)}.")
    given = layers.CommandLine(overrides, aliases, config, None, methods, origin)
    configs = _configurations([name.strip() for name in engines], given.layers(*methods))
    from flbench.bench import measure, page

    out.mkdir(parents=True, exist_ok=True)
    cases = measure.compare(configs, repeats=repeats, run_rounds=rounds)
    results = {"settings": configs[0].tree(), "cases": [case.tree() for case in cases]}
    files.write(out / "bench.json", (json.dumps(results, indent=1) + "\n").encode())
    files.write(out / "bench.html", page.render(cases, configs[0], rounds).encode())
    if as_json:
        console.json(results)
    else:
        bench_tables.print_cases(cases)
        console.text(f"{out / 'bench.json'}\n{out / 'bench.html'}\n")


def _configurations(engines: Sequence[str], given: list[Layer]) -> list[Config]:
    """Return one configuration for each engine; the method is FedAvg unless the user names one.

    The sequential engine is measured with 1, 2 and all cores, unless `engine.workers` is given.

    Raises:
        ConfigError: The configuration names an engine that --engines does not.
    """
    configured = resolve(given)[0].engine.name
    if configured != EngineConfig().name and configured not in engines:
        raise ConfigError(
            f"`engine.name`={configured} would not be measured, because --engines does not name it:"
            f" --engines {','.join([*engines, configured])}."
        )
    method = from_values({"algorithm": "fedavg"}, "bench")
    configs = []
    for name in engines:
        engine = from_values({"engine": name}, "--engines")
        config = resolve([method, *given, engine])[0]
        counts: Sequence[object] = [config.engine.workers]
        if name == "sequential" and config.engine.workers == "auto":
            counts = sorted({1, min(2, available_cores()), available_cores()})
        configs += [config.altered(engine=config.engine.altered(workers=one)) for one in counts]
    return configs
