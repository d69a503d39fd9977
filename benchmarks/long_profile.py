"""What grows in a long training of small steps while it is recorded: `python -m benchmarks.long_profile`.

Processor time by part, as in recording_profile.py, and what the process holds, window by window.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import click

from benchmarks.memory_process import resident
from benchmarks.recording_profile import WHOLE, profiled, show_parts, show_row
from benchmarks.sections.long_training import recorded_steps

RESIDENT, MOST = "MB resident at its end", "MB resident at most until then"
OBJECTS = "thousands of objects that Python's collector knows"


def measure(steps: int, window: int, folder: Path) -> list[Mapping[str, float]]:
    """Of each window: milliseconds of the processor a step by part, and what there is at its end."""
    found = list[Mapping[str, float]]()
    with profiled() as profile, closing(recorded_steps(folder / "memory", steps)) as taken:
        before, began = dict.fromkeys(profile.seconds, 0.0), time.process_time()
        for step, _ in enumerate(taken, 1):
            if step % window:
                continue
            now, ended = dict(profile.seconds), time.process_time()
            parts = {name: 1e3 * (now[name] - before.get(name, 0.0)) / window for name in now}
            status = resident()
            held = {RESIDENT: status["VmRSS"] / 1e6, MOST: status["VmHWM"] / 1e6, OBJECTS: len(gc.get_objects()) / 1e3}
            found.append({WHOLE: 1e3 * (ended - began) / window, **parts, **held})
            before, began = now, time.process_time()
    return found


@click.command(help="What grows in a long training of small steps while it is recorded.")
@click.option("--steps", default=100_000, help="[100,000]")
@click.option("--windows", default=5, help="Into which they are cut. [5]")
def main(steps: int, windows: int) -> None:
    window = max(1, steps // windows)
    with tempfile.TemporaryDirectory(prefix="dualform-profile-") as folder:
        found = measure(steps, window, Path(folder))
    stops = [f"to {number * window:,}" for number in range(1, len(found) + 1)]
    show_parts(dict(zip(stops, found, strict=True)), [WHOLE])
    for name in (RESIDENT, MOST, OBJECTS):
        show_row(name, [f"{own[name]:,.0f}" for own in found])


if __name__ == "__main__":
    main()
