"""`flbench bench`: the speed of engines beside a bare PyTorch loop."""

import json
from collections.abc import Sequence
from pathlib import Path

from flbench.cli import console
from flbench.cli.layers import one_run
from flbench.cli.tables import bench as bench_tables
from flbench.config.resolve import resolve
from flbench.config.schema import Config, EngineConfig
from flbench.config.sources import Layer
from flbench.core import files
from flbench.core.errors import ConfigError


def bench(
    engines: Sequence[str],
    overrides: Sequence[str],
    *,
    config: str | None,
    repeats: int,
    rounds: int,
    out: Path,
    as_json: bool,
) -> None:
    """Measure engines, write bench.json and bench.html, and print the results.

    Args:
        engines: Names of the engines.
        overrides: Overrides `key=value`.
        config: Configuration file.
        repeats: Rounds to measure.
        rounds: Rounds of the complete run to measure; 0 for none.
        out: Folder for the two files.
        as_json: Whether to print JSON instead of tables.
    """
    configs = _configurations([name.strip() for name in engines], overrides, config)
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


def _configurations(
    engines: Sequence[str], overrides: Sequence[str], config: str | None
) -> list[Config]:
    """Return one configuration for each engine; the method is FedAvg unless the user names one.

    Raises:
        ConfigError: The configuration names an engine that --engines does not.
    """
    configured = resolve(one_run(config, overrides))[0].engine.name
    if configured != EngineConfig().name and configured not in engines:
        raise ConfigError(
            f"`engine.name`={configured} would not be measured, because --engines does not name it:"
            f" --engines {','.join([*engines, configured])}."
        )
    method = Layer({"algorithm": {"name": "fedavg"}}, {"algorithm.name": "bench"})
    configs = []
    for name in engines:
        engine = Layer({"engine": {"name": name}}, {"engine.name": "--engines"})
        configs.append(resolve([method, *one_run(config, overrides), engine])[0])
    return configs
