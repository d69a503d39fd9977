"""The list of files that the package begins with names every one of them."""

from __future__ import annotations

import re
from pathlib import Path

import benchmarks


def test_the_list_names_every_file_and_no_other():
    assert benchmarks.__doc__ is not None
    _, _, listed = benchmarks.__doc__.partition("\n\n")
    lines = [line.split("  ")[0] for line in listed.splitlines() if line and not line.startswith(" ")]
    named = [name for line in lines for name in line.split(", ")]
    folder = Path(benchmarks.__file__).parent
    there = {path.stem for path in folder.glob("*.py")} | {f"{path.parent.name}/" for path in folder.glob("*/*.py")}
    there.discard("__init__")
    matched = [{name for name in there if re.fullmatch(one.replace("*", r"\w+"), name)} for one in named]
    assert [one for one, found in zip(named, matched, strict=True) if not found] == []
    assert there - set().union(*matched) == set()
