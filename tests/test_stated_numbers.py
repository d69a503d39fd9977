"""Numbers that have to stand twice, in C and in Python, are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualform import kernels
from dualform.kernels import loader
from dualform.query.weights import output
from dualform.record.audit import parameters

LOOPS = Path(__file__).parents[1] / "indexer" / "dualform" / "kernels"


@pytest.mark.parametrize(
    ("file", "stated", "number"),
    [
        ("codes.c", r"int32_t dualform_abi\(void\) \{ return (\d+); \}", loader.ABI),
        ("entries.c", r"#define RUN (\d+)", parameters.RUN),
        ("weighed.c", r"#define JOINED (\d+)", output._TERMS),
        ("kernels.h", r"#define ROWS (\d+)", kernels.ROWS),
        ("kernels.h", r"#define DIRECTIONS (\d+)", kernels.DIRECTIONS),
    ],
    ids=["ABI", "RUN", "JOINED", "ROWS", "DIRECTIONS"],
)
def test_c_and_python_say_the_same(file, stated, number):
    assert re.findall(stated, (LOOPS / file).read_text(encoding="utf-8")) == [str(number)]


def test_the_forms_of_the_loops_are_numbered_alike():
    (listed,) = re.findall(r"enum \{ (.*) \};", (LOOPS / "kernels.h").read_text(encoding="utf-8"))
    assert listed.split(", ") == ["PORTABLE_FORM", "AVX2_FORM", "VNNI_FORM"]
    assert loader.FORMS == ("portable", "avx2", "avx512vnni")
