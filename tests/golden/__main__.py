"""python -m tests.golden [TRAINING ...]: compares this tree's answers with the reference commit's."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.golden.questions import answers
from tests.golden.reference import differences
from tests.golden.trainings import TRAININGS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden")
    parser.add_argument("trainings", nargs="*", metavar="TRAINING", help=f"of {', '.join(TRAININGS)}; default: all")
    parser.add_argument("--answers", type=Path, help="write this tree's answers to a file, and compare nothing")
    given = parser.parse_args()
    if unknown := set(given.trainings) - set(TRAININGS):
        parser.error(f"no such training: {', '.join(sorted(unknown))}")
    if given.answers:
        np.savez(given.answers, **_answered(given.trainings or list(TRAININGS)))
        return 0
    found = differences(given.trainings)
    said = [f"{question}: {how}" for question, how in found.items()]
    said.append(f"{len(found)} answers differ from the reference's" if found else "all answers are the reference's")
    sys.stdout.write("\n".join(said) + "\n")
    return int(bool(found))


def _answered(names: list[str]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        found = [answers(name, Path(folder) / name) for name in names]
    return {f"{q}: {part}": array for own in found for q, arrays in own.items() for part, array in arrays.items()}


if __name__ == "__main__":
    sys.exit(main())
