"""One section in this process: `python -m benchmarks.section_process NAME PLAN OUT`."""

from __future__ import annotations

import json
import sys
import time
import warnings
from datetime import date
from pathlib import Path

from benchmarks.plan import Plan
from benchmarks.sections import run


def main(name: str, plan_path: Path, out: Path) -> None:
    warnings.filterwarnings("ignore", message=".*not writable.*")
    began = time.perf_counter()
    section = run(name, Plan.read(plan_path))
    section.date, section.seconds = date.today().isoformat(), time.perf_counter() - began
    out.write_text(json.dumps(section.to_json()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
