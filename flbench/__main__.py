"""The command `flbench`, which is also `python -m flbench`."""

import os
import signal
import sys
from contextlib import suppress

with suppress(OSError):  # the current folder was deleted
    # Python searches the current folder first: a file `random.py` in it would be imported instead
    # of Python's own module. The command `flbench` searches the folder last. A checkout that is not
    # installed is found there.
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]

# Ctrl-C ends the imports without a traceback; from then on `main` says what happened. Whoever has
# started this process may have told it to ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from flbench.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
