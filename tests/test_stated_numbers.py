"""Numbers that have to stand twice, in C and in Python or in a source and on a page, are the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualform import kernels
from dualform.kernels import loader
from dualform.query.weights import direct_outputs
from dualform.record import recorded_entries, sink
from dualform.store import writer

ROOT = Path(__file__).parents[1]
LOOPS = ROOT / "indexer" / "dualform" / "kernels"
WORDS = {1: "one", 2: "two", 5: "five", 10: "ten"}


@pytest.mark.parametrize(
    ("file", "stated", "number"),
    [
        ("codes.c", r"int32_t dualform_abi\(void\) \{ return (\d+); \}", loader.ABI),
        ("entries.c", r"#define RUN (\d+)", recorded_entries.RUN),
        ("weighed.c", r"#define JOINED (\d+)", direct_outputs._TERMS),
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


@pytest.mark.parametrize("page", ["docs/format.md", "docs/durability.md"])
def test_pages_say_after_how_many_seconds_rows_are_durable(page):
    said = re.findall(r"(?:every|last) (\w+)\s+seconds", (ROOT / page).read_text(encoding="utf-8"), re.IGNORECASE)
    assert said
    assert set(said) == {WORDS[int(writer.JOURNAL_SECONDS)]}


def test_the_page_of_durability_says_what_waits_and_what_a_frame_holds():
    page = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")
    assert page.count(f"{sink.QUEUE_BYTES >> 20} MB") == 2
    assert f"more than {writer.FRAME_BYTES >> 20} MB come" in page


def test_the_page_of_the_format_says_how_much_makes_a_commit():
    page = " ".join((ROOT / "docs" / "format.md").read_text(encoding="utf-8").split())
    assert f"at {writer.SEGMENT_BYTES >> 20} MiB of segments" in page
