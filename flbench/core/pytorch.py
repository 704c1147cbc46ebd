"""The first import of PyTorch of a process."""

import os
from importlib import import_module


def load() -> None:
    """Import PyTorch while the current folder is `/`.

    Libraries of its wheel are linked to `libcuda.so.1`, which the system takes from the current
    folder where no driver is installed. That folder may be one of somebody else.
    """
    here = os.getcwd()
    os.chdir("/")
    try:
        import_module("torch")
    finally:
        os.chdir(here)
