"""`python -m flbench`."""

import sys

from flbench.cli.app import main

sys.exit(main())
