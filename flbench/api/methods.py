"""The methods as a DataFrame, and one of them as a card."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pandas as pd
import torch

from flbench.algorithms import ALGORITHMS, Setting, catalogue
from flbench.config.key_types import type_name
from flbench.config.resolve import resolve
from flbench.config.sources import from_overrides, from_values
from flbench.core.errors import ConfigError
from flbench.models.base import build, describe
from flbench.tuning import deployments, library

PAPER: Final = ("title", "authors", "venue", "doi")
TRAVELS: Final = ("down", "up", "keeps")


def methods() -> pd.DataFrame:
    """List the methods, one per row.

    Columns, all str: `name`; `title`, `authors`, `venue` and `doi` of the paper (`doi` is missing
    where there is none); `down`, what the server sends to a client in a round; `up`, what a client
    sends; `keeps`, what a client keeps. There w stands for all parameters and buffers of the net, C
    for the number of classes and D for the number of features.
    """
    rows = [{**entry, **entry["paper"]} for entry in catalogue.methods()]
    return pd.DataFrame(rows, columns=["name", *PAPER, *TRAVELS], dtype="str")


@dataclass(frozen=True)
class Method:
    """The card of a method.

    Attributes:
        name: Name of the method.
        paper: The publication: `title`, `authors`, `venue`, `doi` (None where there is none).
        about: The documentation.
        keys: Its keys in the section `algorithm`. Columns: `key`, `type` and `range` str, `default`
            (a value of any type), `unit` str (missing for a number without one), `meaning` str.
        space: Search space that comes with the method, for `train.rounds` of the default
            configuration. Columns, str: `key`, dotted; `values`. None for a method without one.
        deployments: Names of the models that are evaluated, with its default keys; `personal` is
            first, and `gm` is one model for all clients. It is empty if the method needs a package
            that is not installed.
        travels: What the server sends (`down`), clients send (`up`) and keep (`keeps`).
        needs: What a setting must have for the method.
    """

    name: str
    paper: Mapping[str, str | None]
    about: str
    keys: pd.DataFrame = field(repr=False, compare=False)
    space: pd.DataFrame | None = field(repr=False, compare=False)
    deployments: tuple[str, ...]
    travels: Mapping[str, str]
    needs: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(self.keys["key"])
        return f"<Method {self.name}: {self.paper['title']} ({self.paper['venue']}); keys: {names}>"


def method(name: str | type) -> Method:
    """Return the card of a method.

    Args:
        name: Name of the method, its import path `package.module:Class`, or its class.

    Raises:
        ConfigError: There is no such method; the message names a similar one.

    >>> method("fedprox").keys["key"].tolist()
    ['agg_weights', 'finetune_epochs', 'mu']
    """
    entry = catalogue.method(name)
    registered: str = entry["name"]
    fields = ALGORITHMS.find(registered).Config.model_fields
    columns = ["key", "type", "default", "range", "unit", "meaning"]
    rows = [
        {**item, "key": item["name"], "type": type_name(fields[item["name"]].annotation)}
        for item in entry["parameters"]
    ]
    frame = pd.DataFrame(rows, columns=columns)
    frame["default"] = pd.Series([item["default"] for item in rows], dtype="object")
    return Method(
        registered,
        entry["paper"],
        entry["about"],
        frame,
        _space(registered),
        _deployments(registered, entry["example"]),
        {key: entry[key] for key in TRAVELS},
        tuple(entry["needs"]),
    )


def _space(name: str) -> pd.DataFrame | None:
    """Return the search space of a method; None if it comes without one."""
    rounds = resolve([])[0].train.rounds
    try:
        space = library.built_in(name, rounds=rounds)
    except ConfigError:
        return None
    rows = [(path, parameter.values) for path, parameter in space.parameters.items()]
    return pd.DataFrame(rows, columns=["key", "values"], dtype="str")


def _deployments(name: str, example: Sequence[str]) -> tuple[str, ...]:
    """Return the deployments of a method with its default keys, on four clients with digits."""
    config, _ = resolve([from_values({"algorithm": name}, "fl.method"), from_overrides(example)])
    shape, classes, clients = (1, 8, 8), 10, 4
    try:
        net = build(config.model, shape, classes, config.seed)
    except ConfigError:
        if example:  # a package that is not installed
            return ()
        raise
    setting = Setting(
        seed=config.seed,
        rounds=config.train.rounds,
        train=config.train,
        clients=clients,
        sizes=torch.full((clients,), 10),
        classes=classes,
        net=describe(net, shape),
        model=config.model.name,
    )
    algorithm = ALGORITHMS.find(name)(config.algorithm, setting)
    return deployments.names(algorithm, net)
