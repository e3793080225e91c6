"""`python -m mlc`: the command line."""

import sys

from mlc.tools.cli import main

sys.exit(main())
