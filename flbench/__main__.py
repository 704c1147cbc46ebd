"""`python -m flbench` is the command `flbench`."""

import sys

from flbench.cli.app import main

sys.exit(main())
