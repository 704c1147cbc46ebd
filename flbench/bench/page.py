"""The HTML page of `flbench bench`."""

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from flbench.config.schema import Config
from flbench.core.control_groups import available_cores
from flbench.core.plain_yaml import to_yaml

if TYPE_CHECKING:
    from flbench.bench.measure import Case


def render(cases: "Sequence[Case]", config: Config, run_rounds: int) -> str:
    """Return the page as HTML.

    Args:
        cases: Measurements of the engines, at least one.
        config: Configuration of the first case.
        run_rounds: Rounds of the complete run; 0 if none was measured.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    source = files("flbench.bench").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        title=f"{config.model.name} on {config.data.title}, {config.algorithm.name}",
        cases=cases,
        best=max(case.speed for case in cases),
        cores=available_cores(),
        steps=cases[0].steps,
        rounds=run_rounds,
        settings=to_yaml(config.tree(), {}),
    )
