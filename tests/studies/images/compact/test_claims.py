"""What is concluded of the remarks, from made-up figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualform_studies.images.compact.claims import remarks
from dualform_studies.images.compact.page import compact_page
from dualform_studies.images.compact.ranks import SHARES
from dualform_studies.pages.folder import Report
from dualform_studies.pages.items import Paragraph
from dualform_studies.pages.page import Page


@pytest.fixture
def report() -> Report:
    query = {"added": 2e-6, "added_test_query": 0.3, "bias_moved": 0.02, "row": 3}
    query |= {"greatest_weight": 1e-9, "greatest_weight_test_query": 1.0}
    mixed = dict.fromkeys(("strength", "sum", "effective_slots", "cancellation", "greatest_share"), 1.0)
    shares = {str(share): 1 for share in SHARES}
    numbers = {"slots": 900, "directions": 40, "weight": 30}
    return {
        "recipe": "SGD",
        "steps": 30,
        "trained_on": "x",
        "slots": 960,
        "order": {"pairs": 9, "queries": 5, "layers": {"layer-0": {"outputs": 2e-7, "sums": 1e-7, "same_best": 1.0}}},
        "span": {"layer-0": {"width": 8, "rank": 6, "outside_mean": 0.1, "outside_most": 0.2, "query": query}},
        "accuracy": {"layer-0": {"0": 0.1, "1": 0.5}, "all layers": {"0": 0.1, "1": 0.5}},
        "energy": {"layer-0": [0.0, 1.0]},
        "ranks": {
            "layer-0": {"directions": 1, "holding_energy": shares, "keeping_accuracy": shares, "numbers": numbers}
        },
        "ranks_all": shares,
        "mixture": {"layer-0": [mixed]},
        "verify": {},
        "compact": {"accuracy": 0.5, "accuracy_all": 0.5, "numbers": 40, "slots_numbers": 900, "weights_numbers": 30},
    }


def test_what_the_shapes_alone_decide_is_no_claim(report: Report):
    assert [claim.section for claim in remarks(report)] == ["remark 3.1", "remark 3.1", "remark 3.3", "remark 3.4"]
    assert not any("smaller" in claim.claim for claim in remarks(report))


def test_a_query_outside_is_told_beside_how_far_the_bias_moved(report: Report):
    *_, orthogonal, _ = remarks(report)
    assert orthogonal.verdict == "holds"
    assert "adds 2.0e-06 of the length of W₀x at most, and the bias moved by 2.0e-02 of it" in orthogonal.ours


@pytest.mark.parametrize(("apart", "words"), [(2e-7, "no more than float32's"), (2e-3, ": more than float32's")])
def test_a_difference_is_called_rounding_where_it_is_one(
    report: Report, apart: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    report["order"]["layers"]["layer-0"]["sums"] = apart
    monkeypatch.setattr(Page, "figure", lambda self, path, caption: None)
    monkeypatch.setattr("dualform_studies.images.compact.page.draw_ranks", lambda path, report: path)
    page = compact_page(tmp_path, report)
    assert any(words in item.text for item in page.items if isinstance(item, Paragraph))
