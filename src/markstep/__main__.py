"""`python -m markstep`, the same as the `markstep` command."""

import sys

from markstep.cli import main

sys.exit(main())
