"""The notebooks run from the top, and give the outputs that they are stored with."""

from __future__ import annotations

import json
import re

import pytest

from tests.reliability import soaking
from tests.site.notebooks import NOTEBOOKS, run

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")
ROUNDING = 1e-5
"""Of what is a rounding error itself, as a reconstruction error, another processor gives another size."""


def printed(cell) -> str:
    """What a reader sees of a code cell's outputs, but for pictures."""
    texts = [output.get("text") or output.data.get("text/plain") for output in cell.outputs]
    return "\n".join(texts + [kind for output in cell.outputs for kind in sorted(output.get("data", ()))])


def may_differ(number: str) -> float:
    """By how much another run's may be off: the last digit of what is rounded, nothing of a whole number.

    Sums of float32 scores are printed with thousands apart.
    """
    digits = number.partition("e")[0]
    if "." not in digits:
        return max(1.0, 1e-6 * float(digits.replace(",", ""))) if "," in digits else 0.0
    return max(10.0 ** -len(digits.partition(".")[2]), ROUNDING) * 1.001 if "e" not in number else ROUNDING


def words(text: str) -> str:
    """A text without its numbers, and without the padding of columns, which are as wide as their longest number."""
    return re.sub(" +", " ", NUMBER.sub("#", text))


def assert_same(stored: str, found: str, within: float = 0.0) -> None:
    """`within`: by which share of the larger one a number may differ."""
    assert words(found) == words(stored)
    for one, other in zip(NUMBER.findall(stored), NUMBER.findall(found), strict=True):
        a, b = (float(number.replace(",", "")) for number in (one, other))
        assert abs(a - b) <= max(may_differ(one), within * max(abs(a), abs(b))), (one, found)


DEEP = ("gpt2", "resnet18", "was-it-this-data")
"""They train for minutes, or dozens of times, with `make soak`. tests/coverage has the same trainers and architectures;
the page was-it-this-data asks the same of the same training (tests/site/test_examples.py)."""
SMALL = [path for path in NOTEBOOKS if path.stem not in DEEP]
LONG = [pytest.param(path, marks=pytest.mark.soak) for path in NOTEBOOKS if path.stem in DEEP and soaking()]


@pytest.fixture(scope="module")
def kernel(commands, tmp_path_factory):
    """The name of a kernel that is a fork of a warm Python."""
    folder = tmp_path_factory.mktemp("jupyter")
    (folder / "kernels" / "warm").mkdir(parents=True)
    told = {"argv": [str(commands / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    told |= {"display_name": "warm", "language": "python"}
    (folder / "kernels" / "warm" / "kernel.json").write_text(json.dumps(told))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        yield "warm"


@pytest.mark.parametrize("path", [*SMALL, *LONG], ids=lambda path: path.stem)
def test_it_gives_what_it_is_stored_with(path, kernel):
    import nbformat

    stored, found = nbformat.read(path, as_version=4), run(path, kernel)
    cells = [pair for pair in zip(stored.cells, found.cells, strict=True) if pair[0].cell_type == "code"]
    assert any(cell.outputs for cell, _ in cells)
    for one, other in cells:
        # A deep network in bfloat16 is another one on another processor: its cells say how far numbers may differ.
        assert_same(printed(one), printed(other), one.metadata.get("within", 0.0))


def test_all_are_here_and_pictures_have_words():
    import nbformat

    assert [path.stem for path in NOTEBOOKS] == [
        "digits",
        "forgetting",
        "gpt2",
        "resnet18",
        "was-it-this-data",
        "why",
    ]
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if any("image/png" in output.get("data", ()) for output in cell.get("outputs", ())):
                assert len(cell.metadata["alt"]) > 20


def test_another_number_is_seen_and_another_last_digit_is_not():
    same = "89.7% of 1,791,237, off by 7.75e-07, test/17", "89.8% of 1,791,238, off by  8.1e-07, test/17"
    assert_same(*same)
    for stored, found in (("89.7%", "89.9%"), ("slot 197", "slot 198"), ("1,791,237", "1,791,239"), ("5 a", "5 b")):
        with pytest.raises(AssertionError):
            assert_same(stored, found)
    shares = "43.4% to 87.6%, by chance 0.8%", "51.0% to 80.2%, by chance 0.8%"
    assert_same(*shares, within=0.2)
    with pytest.raises(AssertionError):
        assert_same(shares[0], shares[1].replace("51.0", "60.0"), within=0.2)
