"""Where the command `dualform` begins: Ctrl-C ends it with a word from the first moment, while it is loaded, too."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_INTERRUPTED = 130


def run() -> NoReturn:
    """The command as a process."""
    try:
        from dualform_client.cli.main import run as run_command

        run_command()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("error: Interrupted.\n")
            sys.stderr.flush()
        os._exit(_INTERRUPTED)  # what is loaded by halves is not taken apart
