"""`python -m dualform_client.cli`, where the command itself is not on the path."""

from __future__ import annotations

import sys

from dualform_client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
