"""`python3 -m bench`, from the repository's root."""

import sys

from bench.cli import main

sys.exit(main())
