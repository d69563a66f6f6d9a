"""`python -m evsys_sdk` is `evsys`."""

import sys

from .cli.main import main

sys.exit(main())
