"""What the page says of the figures follows from them."""

from __future__ import annotations

from dualform_studies.attribution.findings import findings, leaders, measures


def way(package, value, turned=10.0):
    interval = [value, value - 0.01, value + 0.01]
    return {
        "package": package,
        "seconds": 1.5,
        "lds": {"0.5": interval},
        "leave_one_out": interval,
        "brittleness": {"mean": [turned, turned - 1, turned + 1]},
    }


REPORT = {
    "sizes": {"shares": [0.5]},
    "ways": {
        "random": way("none", 0.0),
        "attention, layer 1, dot": way("dualform", 0.005, 12.0),
        "ledger, path": way("dualform", 0.3, 5.0),
        "captum TracInCP": way("captum", 0.4, 9.0),
    },
}


def test_the_best_of_each_side_stand_beside_each_other_with_who_is_ahead():
    assert leaders(REPORT).rows == [
        ["LDS with 0.5 kept", "ledger, path: 0.30", "captum TracInCP: 0.40", "the others"],
        ["leave one out", "ledger, path: 0.30", "captum TracInCP: 0.40", "the others"],
        ["removals until a prediction turns", "ledger, path: 5", "captum TracInCP: 9", "dualform"],
    ]


def test_intervals_that_overlap_put_neither_ahead():
    report = {**REPORT, "ways": {**REPORT["ways"], "captum TracInCP": way("captum", 0.31)}}
    assert leaders(report).rows[0][-1] == "neither"


def test_alone_dualform_is_beside_nobody():
    ours = {name: own for name, own in REPORT["ways"].items() if own["package"] != "captum"}
    assert leaders({**REPORT, "ways": ours}).rows[0][2:] == [None, None]


def test_each_kind_is_told_with_its_best():
    told = list(findings(REPORT))
    assert [text.split()[0] for text in told] == ["Attention", "The", "captum's", "By"]
    assert "LDS with 0.5 kept 0.30" in told[1]
    said = 'By LDS with 0.5 kept, every way but "attention, layer 1, dot" did better than the floor called random'
    assert said in told[-1]


def test_measures_that_a_way_lacks_are_left_out():
    wrong = measures(REPORT)[-1]
    assert wrong.of(REPORT["ways"]["random"]) is None
    assert wrong.best(REPORT["ways"]) is None
