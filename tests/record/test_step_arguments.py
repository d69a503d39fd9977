"""step(...): its arguments as slot columns, for samples and for tokens; and what it refuses."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from dualform.errors import BadInput, RecordingError
from dualform.record.discovery.followed_rows import FollowedRows
from dualform.record.slots.columns import Metadata
from tests.trainings import record_steps

from .listed import Opened, batches, small_net


def opened_on(model, tmp_path, **options):
    return Opened(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m", **options)


def one_step(opened, model, x, **columns):
    with opened.recorder.step(**columns):
        model(x).square().mean().backward()


class Tokens(nn.Module):
    """A layer on tokens, a layer on their mean."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token, self.sample = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.sample(torch.relu(self.token(x)).mean(1))


def test_samples(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path)
    (x, y), (other, _) = batches(2, rows=4)
    with opened.recorder:
        one_step(
            opened,
            model,
            x,
            dataset="a",
            label=y,
            sample=np.arange(10, 14),
            weight=[0.5, 1, 2, 3],
            kind=["p", None, "q", "p"],
        )
        one_step(opened, model, other, dataset=["a", "b", "a", "b"])
    sink = opened.sink
    assert sink.column("row") == [0, 1, 2, 3] * 2
    assert sink.column("position") == [None] * 8
    assert sink.column("dataset") == ["a"] * 4 + ["a", "b", "a", "b"]
    assert sink.column("label") == [*y.tolist(), None, None, None, None]
    assert sink.column("sample") == [10, 11, 12, 13, None, None, None, None]
    assert sink.column("weight") == [0.5, 1.0, 2.0, 3.0, None, None, None, None]
    assert sink.column("kind") == ["p", None, "q", "p", None, None, None, None]
    types = {name: column.dtype for name, column in sink.batches[1].samples.items()}
    assert types == {
        "dataset": object, "label": np.int64, "sample": np.int64, "weight": np.float64, "kind": object,
    }  # fmt: skip
    assert [(e.space, e.call, e.rows, e.length, e.row, e.position) for e in sink.batches[1].extents] == [
        ("sample", 0, 4, None, None, None)
    ]
    assert [layer.repeats for layer in sink.header.layers] == [True, False, False]
    assert {layer.space for layer in sink.header.layers} == {"sample"}


def test_tokens_and_samples_side_by_side(tmp_path):
    model = Tokens()
    opened = opened_on(model, tmp_path)
    x, words = torch.randn(2, 3, 5), torch.arange(6).view(2, 3)
    with opened.recorder:
        one_step(opened, model, x, label=[7, 8], word=words)
    sink = opened.sink
    assert [(layer.name, layer.space) for layer in sink.header.layers] == [("token", "token"), ("sample", "sample")]
    assert torch.equal(torch.from_numpy(sink.keys("token")), x.reshape(6, 5))
    assert sink.column("row", "token") == [0, 0, 0, 1, 1, 1]
    assert sink.column("position", "token") == [0, 1, 2, 0, 1, 2]
    assert sink.column("label", "token") == [7, 7, 7, 8, 8, 8]
    assert sink.column("word", "token") == [0, 1, 2, 3, 4, 5]
    assert sink.column("label") == [7, 8]
    assert sink.column("word") == [None, None]


def test_padding_becomes_no_slots(tmp_path):
    model = Tokens()
    opened = opened_on(model, tmp_path)
    x = torch.randn(2, 3, 5)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    with opened.recorder, opened.recorder.step(mask=mask, position=torch.tensor([[4, 5, 6], [9, 10, 11]])):
        pooled = (torch.relu(model.token(x)) * mask[..., None]).sum(1)
        model.sample(pooled).square().mean().backward()
        opened.optimizer.step()
    sink = opened.sink
    assert torch.equal(torch.from_numpy(sink.keys("token")), x[mask])
    assert sink.column("position", "token") == [4, 5, 9]
    assert sink.column("row", "token") == [0, 0, 1]
    assert sink.column("row") == [0, 1]
    assert sink.defects == []


def test_padding_that_reaches_the_loss_is_a_defect(tmp_path):
    model = Tokens()
    opened = opened_on(model, tmp_path)
    record_steps(
        opened.recorder,
        opened.optimizer,
        1,
        lambda _: model(torch.randn(2, 3, 5)).square().mean(),
        mask=[[True, True, False], [True, False, False]],
    )
    assert {layer for layer, _, _ in opened.sink.defects} == {"token"}


def test_nothing_is_fitted_by_its_number_of_elements(tmp_path):
    model = nn.Linear(5, 3)
    opened = opened_on(model, tmp_path)
    with opened.recorder, pytest.raises(BadInput) as caught:
        one_step(opened, model, torch.randn(6, 5), position=[[0, 1, 2], [0, 1, 2]])
    assert str(caught.value) == (
        "position has shape [2, 3], but the recorded layers saw batches of [6] (sample). Pass one value, one for each "
        "row [B], or one for each token [B, L]."
    )


REFUSED = {
    "a built-in column": (
        {"row": 1}, "Column 'row' is filled by the recorder. Choose another name.",
    ),
    "labels that are no integers": (
        {"label": [0.5] * 8},
        "label must be whole numbers, not float64. Record other values under another name, "
            "for example step(my_label=…).",
    ),
    "a dataset that is no text": ({"dataset": 3}, 'dataset must be text, not int64. For '
        'example step(dataset="mnist").'),
    "objects": ({"thing": [{}] * 8}, "thing cannot hold dict. A column holds integers, floats, booleans or texts."),
    "a ragged column": ({"thing": [[1], [1, 2]]}, "thing must have rows of one length. Pass an array "
        "or a tensor, padded if necessary."),
    "a mask of numbers": ({"mask": [1] * 8}, "mask must be bool, not int64. Pass True for "
        "real tokens: mask=mask.bool()."),
    "a wrong length": (
        {"label": [1, 2, 3]},
        "label has shape [3], but the recorded layers saw batches of [8] (sample). Pass one value, one for each row "
        "[B], or one for each token [B, L].",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_columns(tmp_path, columns, message):
    model = small_net()
    opened = opened_on(model, tmp_path)
    with opened.recorder:
        with pytest.raises(BadInput) as caught:
            one_step(opened, model, batches(1)[0][0], **columns)
        assert str(caught.value) == message
        assert caught.value.field == next(iter(columns))
        one_step(opened, model, batches(1)[0][0])
    assert [batch.step for batch in opened.sink.recorded] == [0]


def test_columns_are_those_of_the_first_step(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path)
    x = batches(1)[0][0]
    with opened.recorder:
        one_step(opened, model, x, weight=1)
        with pytest.raises(
            BadInput,
            match=r"^Column 'weight' changed its type from int64 to float64\. Pass floats from the first step on",
        ):
            one_step(opened, model, x, weight=1.5)
        with pytest.raises(
            BadInput,
            match=r"^Column 'other' first appears at step 1\. Pass other from the first step on; None "
            r"where it is missing\.$",
        ):
            one_step(opened, model, x, weight=1, other=2)
        one_step(opened, model, x)
    assert opened.sink.column("weight") == [1] * 8 + [None] * 8


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.rows = 3

    def forward(self, x):
        return self.first(x).sum() + self.second(x[: self.rows]).sum()


def test_layers_that_see_different_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(FollowedRows, "of", lambda *_: None)  # as in compiled code
    model = Uneven()
    for x, space in ((torch.randn(8, 5), "sample"), (torch.randn(8, 2, 5), "token")):
        opened = opened_on(model, tmp_path)
        with opened.recorder, pytest.raises(RecordingError) as caught:
            one_step(opened, model, x)
        shapes = "[8] and [3]" if space == "sample" else "[8, 2] and [3, 2]"
        assert str(caught.value) == (
            f"layers 'first' and 'second' saw different batches at step 0: {shapes}. Give layers that see another "
            f"batch their own space, as spaces={{'second': '{space}_2'}}, or leave them out with layers=."
        )
        assert opened.sinks == []
        assert not (tmp_path / "m").exists()


def test_a_layer_that_parts_later_has_no_rows_at_that_step(tmp_path, monkeypatch):
    monkeypatch.setattr(FollowedRows, "of", lambda *_: None)  # as in compiled code
    model = Uneven()
    model.rows = 8
    opened = opened_on(model, tmp_path)
    with opened.recorder:
        for rows in (8, 3, 8):
            model.rows = rows
            with pytest.warns(RuntimeWarning, match="^layers 'first'") if rows == 3 else nullcontext():
                one_step(opened, model, torch.randn(8, 5), label=np.arange(8))
    assert [list(batch.layers) for batch in opened.sink.recorded] == [
        ["first", "second"],
        ["first"],
        ["first", "second"],
    ]
    assert opened.sink.defects == [
        ("second", 1, "layers 'first' and 'second' saw different batches at step 1: [8] and [3]")
    ]


def test_a_layer_whose_rank_changes_has_no_rows_at_that_step(tmp_path):
    model = nn.Linear(5, 3)
    opened = opened_on(model, tmp_path)
    with opened.recorder:
        one_step(opened, model, torch.randn(8, 5), label=np.arange(8))
        with pytest.warns(RuntimeWarning, match="^layer '' was called with rows at first"):
            one_step(opened, model, torch.randn(8, 2, 5), label=np.arange(8))
        one_step(opened, model, torch.randn(8, 5), label=np.arange(8))
    assert [list(batch.layers) for batch in opened.sink.recorded] == [[""], [], [""]]
    assert opened.sink.defects == [
        ("", 1, "layer '' was called with rows at first and is called with tokens at step 1: its input is [8, 2, 5]")
    ]


@pytest.mark.parametrize(("what", "inside"), [("key", True), ("error signal", True), ("error signal", False)])
@pytest.mark.parametrize("values", [True, False])
def test_a_step_with_nan_is_not_recorded_and_the_training_goes_on(tmp_path, what, inside, values):
    trained = []
    for recorded in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        opened = Opened(model, optimizer, tmp_path / "m", values=values)
        with opened.recorder if recorded else nullcontext():
            for number in range(4):
                x, weight = torch.randn(8, 5), torch.ones(8, 3)
                if number == 2:
                    (x if what == "key" else weight)[6, 1] = float("nan" if what == "key" else "inf")
                with opened.recorder.step() if recorded else nullcontext():
                    optimizer.zero_grad()
                    loss = (model(x) * weight).sum()
                    loss.backward()
                    if number != 2 or inside:
                        optimizer.step()
        trained.append([p.detach().clone() for p in model.parameters()])
        if recorded:
            sink = opened.sink
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*trained, strict=True))
    assert [batch.step for batch in sink.recorded] == ([0, 1] if inside else [0, 1, 2])
    reason = (
        "after step 1 the optimizer updated with NaN or infinity in a key or error signal, in a step that was not "
        "recorded"
    )
    assert sorted(sink.defects) == ([("0", 1, reason), ("1", 1, reason)] if inside else [])


def test_what_a_step_refuses_to_be(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path)
    optimizer, x = opened.optimizer, batches(1)[0][0]
    with pytest.raises(
        RecordingError, match=r"^recorder\.step was called outside `with recorder`\. Call it inside `with recorder:`\.$"
    ):
        one_step(opened, model, x)
    with opened.recorder:
        nothing = r"^No gradient reached a recorded layer inside the first step\."
        model[0].weight.grad = torch.ones_like(model[0].weight)
        with pytest.raises(RecordingError, match=nothing), opened.recorder.step():
            pass
        model.zero_grad()
        with pytest.raises(RecordingError, match=r"^Step 0 has not ended\."), opened.recorder.step():
            one_step(opened, model, x)
        with opened.recorder.step():
            model(x).sum().backward()
            optimizer.step()
            with pytest.raises(RecordingError, match=r"^the optimizer stepped twice inside step 0\."):
                optimizer.step()
    with (
        pytest.raises(RecordingError, match=r"^A recorder records one training and cannot be entered again\."),
        opened.recorder,
    ):
        pass


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"query": 1}, "'query' cannot name a column: results have a field of this name."),
        ({"Count": 1}, "'Count' cannot name a column: results have a field of this name."),
        ({"seen": 1, "Seen": 2}, "Two columns are called 'seen' and differ only in case, which SQL ignores."),
    ],
)
def test_a_column_that_answers_or_sql_could_not_tell_apart_is_refused_before_training(columns, message):
    with pytest.raises(BadInput, match=message):
        Metadata(dataset=None, label=None, sample=None, position=None, mask=None, columns=columns)
