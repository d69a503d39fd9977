"""The greatest resident memory of a part of a process."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path


def reset() -> None:
    """Count anew from here, where the system can (Linux); elsewhere the peak stays that of the whole process."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_bytes() -> int:
    """Greatest resident memory since the last `reset`."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
