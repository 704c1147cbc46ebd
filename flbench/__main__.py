"""`python -m flbench` is the command `flbench`."""

import os
import sys
from contextlib import suppress

with suppress(OSError):  # the current folder was deleted
    # Python searches the current folder first: a file `random.py` in it would be imported instead
    # of Python's own module. The command `flbench` searches the folder last. A checkout that is not
    # installed is found there.
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]

from flbench.cli.app import main

sys.exit(main())
