"""What a column cannot hold is refused where it is said; what is masked is NULL."""

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput
from dualform.record.recorder import Recorder

X = torch.randn(3, 4)


def recorder_of(model, path, **options):
    return Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), path, **options)


def test_masked_entries_are_null(tmp_path):
    model = nn.Linear(4, 2)
    recorder = recorder_of(model, tmp_path / "m")

    def masked(values):
        return np.ma.MaskedArray(values, mask=[False, True, False])

    with recorder:
        for said in (
            {"label": masked([1, 2, 3]), "weight": masked([0.5, 1.5, 2.5]), "seen": masked([True, True, False])},
            {"label": np.ma.MaskedArray(5, mask=True), "dataset": masked(["a", "b", "c"])},
            {"sample": masked(np.array([1, 2**64 - 1, 3], np.uint64)), "at": {"sample": {"w": masked([7, 8, 9])}}},
        ):
            with recorder.step(**said):
                model(X).sum().backward()
    records = dualform.open(tmp_path / "m").slots(np.arange(9)).records()
    assert [r["label"] for r in records] == [1, None, 3] + [None] * 6
    assert [r["weight"] for r in records] == [0.5, None, 2.5] + [None] * 6
    assert [r["seen"] for r in records] == [True, None, False] + [None] * 6
    assert [r["dataset"] for r in records] == [None] * 3 + ["a", None, "c"] + [None] * 3
    assert [r["sample"] for r in records] == [None] * 6 + [1, None, 3]
    assert [r["w"] for r in records] == [None] * 6 + [7, None, 9]


def test_masked_entries_of_tokens_are_null(tmp_path):
    model, words = nn.Linear(4, 2), np.ma.MaskedArray([[1, 2], [3, 4], [5, 6]], mask=[[0, 1], [0, 0], [1, 0]])
    recorder = recorder_of(model, tmp_path / "m")
    with recorder, recorder.step(word=words, label=np.ma.MaskedArray([7, 8, 9], mask=[0, 0, 1])):
        model(torch.randn(3, 2, 4)).sum().backward()
    records = dualform.open(tmp_path / "m").slots(np.arange(6)).records()
    assert [r["word"] for r in records] == [1, None, 3, 4, None, 6]
    assert [r["label"] for r in records] == [7, 7, 8, 8, None, None]


REFUSED = {
    "an integer beyond int64": (
        {"sample": np.array([2**63 + 5, 1, 3], np.uint64)},
        "sample holds 9223372036854775813, and integers are at most 9223372036854775807. Record it as text.",
    ),
    "a lone surrogate": (
        {"word": ["a", "b\ud800", "c"]},
        "word holds text that is no Unicode: a lone surrogate. Replace it.",
    ),
    "a dataset with a lone surrogate": (
        {"dataset": "a\udfff"},
        "dataset holds text that is no Unicode: a lone surrogate. Replace it.",
    ),
    "a column without a name": ({"": 1}, "'' cannot name a column. Give it a name of Unicode text."),
    "a name that is no Unicode": ({"\ud800": 1}, "'\\ud800' cannot name a column. Give it a name of Unicode text."),
    "a mask with masked entries": (
        {"mask": np.ma.MaskedArray([True, True, False], mask=[0, 1, 0])},
        "mask has entries that are masked. Fill them with true or false.",
    ),
    "positions with masked entries": (
        {"position": np.ma.MaskedArray([1, 2, 3], mask=[0, 1, 0])},
        "position has entries that are masked. Every slot has one; leave slots out with mask=.",
    ),
}


@pytest.mark.parametrize("to_a_space", [False, True])
@pytest.mark.parametrize(("said", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_column_holds_is_refused_as_it_is_said(tmp_path, said, message, to_a_space):
    model, ran = nn.Linear(4, 2), []
    recorder = recorder_of(model, tmp_path / "m")
    with (
        recorder,
        pytest.raises(BadInput) as caught,
        recorder.step(**({"at": {"sample": said}} if to_a_space else said)),
    ):
        ran.append(1)
    assert str(caught.value) == message
    assert caught.value.field == next(iter(said))
    assert not ran
    assert recorder.steps == 0


@pytest.mark.parametrize(
    ("spaces", "pair"),
    [
        ({"0": "Target", "1": "target"}, "'Target' and 'target'"),
        ({"0": "Token"}, "'token' and 'Token'"),
        ({"1": "SAMPLE"}, "'sample' and 'SAMPLE'"),
    ],
)
def test_spaces_that_differ_only_in_case_are_refused(tmp_path, spaces, pair):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(BadInput) as caught:
        recorder_of(model, tmp_path / "m", spaces=spaces)
    assert str(caught.value) == f"spaces {pair} differ only in case, which SQL does not see. Choose another name."
    assert caught.value.field == "spaces"
