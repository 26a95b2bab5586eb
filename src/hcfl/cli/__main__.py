"""`python -m hcfl.cli`."""

import sys

from hcfl.cli import main

sys.exit(main())
