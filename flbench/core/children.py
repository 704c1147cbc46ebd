"""Processes of Python that flbench starts."""

import os
from typing import Final

SAFE_PATH: Final = {"PYTHONSAFEPATH": "1"}
"""Environment in which `python -m` does not search the current folder first.

The current folder may be one of somebody else, and a file `uuid.py` in it would be executed instead
of Python's own module. `flbench.core.parts.find` appends the folder to `sys.path` in a process
that needs a module which the user names.
"""


def environment(**added: str) -> dict[str, str]:
    """Return the environment of a new process of Python, which its own children inherit.

    Args:
        added: Variables that differ from those of this process.
    """
    return {**os.environ, **SAFE_PATH, **added}
