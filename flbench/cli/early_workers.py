"""Workers of this machine, which a command prepares while it imports libraries and reads data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flbench.cli.options import ALIASES
from flbench.workers import fork_server

GPUS: Final = Path("/dev/nvidiactl")
"""File of the driver of GPUs, on which no workers of this machine train."""


def prepare(given: Mapping[str, Any]) -> None:
    """Start the server of worker processes, unless the run needs no workers.

    Args:
        given: Values that the user has given, or their texts, by dotted key.
    """
    on_gpu = given.get("engine.device", "auto") != "cpu" and GPUS.exists()
    if on_gpu or given.get("engine.name") == "ray" or given.get("engine.workers") in (1, "1"):
        return
    fork_server.prepare()


def texts_of_keys(words: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the keys that a command line names, before anything else is imported.

    They are a first guess, which need not know all forms: the configuration decides later.

    Args:
        words: Words `key=value`, and others.
        aliases: Texts of the options that stand for keys, by the name of the option.

    >>> texts_of_keys(["hfcd", "engine.workers=1"], {"rounds": "2"})
    {'engine.workers': '1', 'train.rounds': '2'}
    """
    pairs = (word.partition("=") for word in words)
    found = {key: text for key, equals, text in pairs if equals}
    return found | {ALIASES[name].key: text for name, text in aliases.items()}
