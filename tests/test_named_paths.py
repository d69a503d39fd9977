"""What pages, sources and C files name, number and offer is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualform import kernels
from dualform.kernels import loader
from dualform.query.weights import output
from dualform.record.audit import parameters

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs" / "decisions").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
GUIDES = ("recording", "wire", "exactness", "platforms", "format", "rules")
PAGES += [ROOT / "docs" / f"{name}.md" for name in GUIDES]
PARENTS = [ROOT, *(ROOT / room for room in ("indexer", "indexer/dualform", "protos", "service", "clients"))]
SOURCES = [path for parent in PARENTS[1:] for kind in ("*.py", "*.[ch]") for path in parent.rglob(kind)]
NAMES = {path.name for parent in PARENTS[2:] for path in parent.rglob("*.py")} | {"setup.py"}


def named(page: str) -> list[str]:
    """The *.py paths of a page; a bare name may be that of any file of ours."""
    return re.findall(r"[\w./-]*\w\.py\b", page)


def exists(path: str) -> bool:
    return any((parent / path).is_file() for parent in PARENTS) if "/" in path else path in NAMES


def is_of_others(path: str) -> bool:
    """Torch's, whose paths begin with it, or whatever file a user names."""
    return path.startswith("torch/") or path == "FILE.py"


def test_every_file_that_a_page_or_a_source_names_exists():
    lost = {}
    for path in (*PAGES, *SOURCES):
        found = named(path.read_text(encoding="utf-8"))
        lost[path.relative_to(ROOT).as_posix()] = [own for own in found if not (exists(own) or is_of_others(own))]
    assert len(lost) > 100
    assert {page: own for page, own in lost.items() if own} == {}


def test_contributing_says_what_is_in_every_folder():
    indexer = [f"{path.parent.name}/" for path in (ROOT / "indexer" / "dualform").glob("*/__init__.py")]
    others = [
        f"{path.parent.relative_to(ROOT).as_posix()}/"
        for top in ("protos", "service", "clients")
        for path in (ROOT / top).glob("*/__init__.py")
    ]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Where things live")[2].partition("Two paths to read first")[0]
    assert len(indexer) > 10
    assert [folder for folder in (*indexer, *others) if f"`{folder}`" not in table] == []


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
