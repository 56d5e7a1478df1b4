"""`python -m chronik.sim`: see --help."""

import sys

from chronik.sim.runner import main

sys.exit(main())
