"""`python -m flbench`."""

import sys

from flbench.cli import main

sys.exit(main())
