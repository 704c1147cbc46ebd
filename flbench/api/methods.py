"""The methods as a DataFrame, and one of them as a card."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pandas as pd

from flbench.algorithms import ALGORITHMS, catalogue
from flbench.config.key_types import type_name

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
        travels: What the server sends (`down`), clients send (`up`) and keep (`keeps`).
        needs: What a setting must have for the method.
    """

    name: str
    paper: Mapping[str, str | None]
    about: str
    keys: pd.DataFrame = field(repr=False, compare=False)
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
        {key: entry[key] for key in TRAVELS},
        tuple(entry["needs"]),
    )
