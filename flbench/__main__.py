"""The command `flbench`, which is also `python -m flbench`."""

import signal
import sys

# Ctrl-C ends the imports without a traceback; from then on `main` says what happened. Whoever has
# started this process may have told it to ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from flbench.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
