"""Which axis is the batch is said, or known from modules that know it, or refused, and never guessed in silence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.record.discovery.followed_rows import FollowedRows
from tests.record.listed import opened_on


def one_step(opened, model, x, **said):
    with opened.recorder.step(**said):
        model(x).square().sum().backward()


class Encoder(nn.Module):
    """A transformer with a head behind it that does not know which axis is the batch."""

    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=batch_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_square_batch_behind_a_time_first_layer_is_refused_until_it_is_said(tmp_path):
    model, x = Encoder(False), torch.randn(5, 5, 4)
    refused = opened_on(model, tmp_path / "refused")
    with refused.recorder, pytest.raises(RecordingError) as caught:
        one_step(refused, model, x)
    assert str(caught.value) == (
        "layer 'body.layers.0.self_attn.q' has the batch in axis 1, but the batch axis of layer 'head' cannot "
        "be told from [5, 5] at step 0. Pass batch_dim= to recorder.step, for all layers or for one, as "
        "batch_dim={'head': 0}."
    )
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, x, batch_dim=1, label=np.arange(5))
        one_step(opened, model, x, label=np.arange(5))
    assert opened.sink.column("label", "token") == [row for row in range(5) for _ in range(5)] * 2
    np.testing.assert_array_equal(opened.sink.keys("head")[:25], model.body(x).detach().transpose(0, 1).reshape(25, 4))


class Plain(nn.Linear):
    """A layer that knows nothing of batches."""


def test_a_square_first_batch_is_refused_where_rows_are_said(tmp_path):
    for said in ({"label": np.arange(4)}, {"word": np.zeros((4, 4), int)}, {"mask": np.ones((4, 4), bool)}):
        opened = opened_on(Plain(3, 2), tmp_path / "m")
        with opened.recorder, pytest.raises(RecordingError) as caught:
            one_step(opened, opened.recorder._controller.plan.model, torch.randn(4, 4, 3), **said)
        assert str(caught.value) == (
            "the batch axis of [4, 4] cannot be told: it is square. Pass batch_dim=0 to recorder.step, or "
            "batch_dim=1 if the batch is the second axis."
        )
        assert caught.value.field == "batch_dim"


@pytest.mark.parametrize(
    "said", [{"batch_dim": 0}, {"batch_dim": {"token": 0}}, {}], ids=["said", "by space", "nothing"]
)
def test_a_square_batch_passes_where_it_is_said_or_nothing_depends_on_it(tmp_path, said):
    model, x = Plain(3, 2), torch.randn(4, 4, 3)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, x, dataset="a", **(said and {"label": np.arange(4), **said}))
    np.testing.assert_array_equal(opened.sink.keys(""), x.reshape(16, 3).numpy())


def test_a_time_first_batch_is_said_not_fitted(tmp_path):
    model, x = Plain(3, 2), torch.randn(7, 2, 3)
    refused = opened_on(model, tmp_path / "refused")
    with refused.recorder, pytest.raises(BadInput) as caught:
        one_step(refused, model, x, label=[1, 2])
    assert str(caught.value) == (
        "label has shape [2], but the recorded layers saw batches of [7, 2] (token). Pass one value, one for each row "
        "[B], or one for each token [B, L]. If the batch is the second axis of the layers' inputs, pass batch_dim=1."
    )
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        one_step(opened, model, x, label=[1, 2], word=np.arange(14).reshape(2, 7), batch_dim=1)
        with pytest.raises(BadInput) as caught:
            one_step(opened, model, x, batch_dim=0)
        with pytest.raises(
            BadInput, match=r"^word has shape \[7, 2\], but the recorded layers saw batches of \[2, 7\]"
        ):
            one_step(opened, model, x, word=np.arange(14).reshape(7, 2))
    assert str(caught.value) == (
        "batch_dim of space 'token' changed from 1 to 0. Pass the same batch_dim in every step."
    )
    assert opened.sink.column("word", "token") == [*range(14)]
    np.testing.assert_array_equal(opened.sink.keys(""), x.transpose(0, 1).reshape(14, 3).numpy())


class Two(nn.Module):
    """Two recurrent layers that lay out a batch differently."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRU(3, 3), nn.GRU(3, 3, batch_first=True)

    def forward(self, x):
        return self.second(self.first(x)[0].transpose(0, 1))[0]


def test_layers_that_disagree_are_refused_and_agree_in_spaces_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(FollowedRows, "of", lambda *_: None)  # as in compiled code
    model, x = Two(), torch.randn(5, 2, 3)
    refused = opened_on(model, tmp_path / "refused")
    with refused.recorder, pytest.raises(RecordingError) as caught:
        one_step(refused, model, x)
    assert str(caught.value) == (
        "layers 'first.gates' and 'second.gates' of space 'token' have the batch in axis 1 and 0. Pass "
        "batch_dim= to recorder.step, or give one of them another space with spaces=."
    )
    opened = opened_on(model, tmp_path / "m", spaces={"second.*": "later"})
    with opened.recorder:
        one_step(opened, model, x, label=[7, 8])
    for space in ("token", "later"):
        assert opened.sink.column("label", space) == [7] * 5 + [8] * 5


class TimeFirst(nn.Module):
    """A recurrent layer that has time first, and a head that the training calls as it likes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.r, self.h = nn.LSTM(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.h(x)


def step_of(opened, model, x, head=None, **said):
    """`x` [B, L, 3]; `head`: what the head sees of it, None for nothing."""
    words = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2])
    with opened.recorder.step(word=words, **said):
        loss = model.r(x.transpose(0, 1))[0].square().sum()
        if head is not None:
            loss = loss + model.h(head).square().sum()
        loss.backward()


SQUARE, OBLONG = torch.randn(5, 5, 3), torch.randn(4, 5, 3)

DOUBT = "layer 'r' has the batch in axis 1, but the batch axis of layer 'h' cannot be told from [5, 5] at step 1"


def test_a_late_layer_on_a_square_batch_has_no_rows_until_a_batch_tells(tmp_path):
    model = TimeFirst()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        step_of(opened, model, OBLONG)
        with pytest.warns(RuntimeWarning) as told:
            step_of(opened, model, SQUARE, SQUARE.transpose(0, 1))
        step_of(opened, model, OBLONG, OBLONG.transpose(0, 1))
        step_of(opened, model, SQUARE, SQUARE.transpose(0, 1))
    assert [str(warning.message) for warning in told] == [
        f"{DOUBT}. The slots of that call are not recorded, and scores of layer 'h' leave them out, also in "
        "later steps. Pass batch_dim= to recorder.step, for all layers or for one, as batch_dim={'h': 0}."
    ]
    assert ["h" in batch.layers for batch in opened.sink.recorded] == [False, False, True, True]
    np.testing.assert_array_equal(opened.sink.keys("h"), torch.cat([OBLONG.reshape(-1, 3), SQUARE.reshape(-1, 3)]))


def test_a_late_layer_with_the_batch_first_is_recorded_where_that_is_said(tmp_path):
    model = TimeFirst()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        step_of(opened, model, OBLONG)
        step_of(opened, model, SQUARE, SQUARE, batch_dim={"h": 0})
        step_of(opened, model, OBLONG, OBLONG)
        with pytest.raises(BadInput) as caught:
            step_of(opened, model, OBLONG, OBLONG, batch_dim={"h": 1})
        opened.recorder.query_set("test", OBLONG)
    np.testing.assert_array_equal(opened.sink.query_sets["test"][0]["h"], OBLONG.reshape(-1, 3))
    np.testing.assert_array_equal(opened.sink.keys("h"), torch.cat([SQUARE.reshape(-1, 3), OBLONG.reshape(-1, 3)]))
    assert str(caught.value) == "batch_dim of layer 'h' changed from 0 to 1. Pass the same batch_dim in every step."


@pytest.mark.parametrize(
    ("error", "head", "said", "message"),
    [
        (
            RecordingError, OBLONG, {},
            "layers 'r' and 'h' saw different batches at step 0: [4, 5] and [5, 4]. Give layers that see another "
            "batch their own space, as spaces={'h': 'token_2'}, pass batch_dim={'h': 0} to recorder.step, or leave "
            "them out with layers=.",
        ),
        (
            BadInput, None, {"batch_dim": {"head": 0}},
            "batch_dim names 'head', which is neither a space nor a layer. Spaces: 'sample', 'token'.",
        ),
    ],
    ids=["a batch that lies the other way", "a layer that there is not"],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_the_first_step(tmp_path, error, head, said, message):
    model = TimeFirst()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder, pytest.raises(error) as caught:
        step_of(opened, model, OBLONG, head, **said)
    assert str(caught.value) == message


def test_a_batch_of_one_proves_nothing(tmp_path):
    model = TimeFirst()
    opened = opened_on(model, tmp_path / "m")
    one = torch.randn(1, 1, 3)
    with opened.recorder:
        step_of(opened, model, one, one)
        with pytest.warns(RuntimeWarning, match="^layer 'r' has the batch in axis 1"):
            step_of(opened, model, SQUARE, SQUARE)
    assert [(layer, step, reason) for layer, step, reason in opened.sink.defects if reason == DOUBT] == [
        ("h", 1, DOUBT)
    ]
    np.testing.assert_array_equal(opened.sink.keys("h"), one.reshape(1, 3))


def test_a_late_layer_that_knows_another_axis_has_no_rows(tmp_path):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.late = nn.Linear(3, 3), nn.GRU(3, 3)

    model = Late()
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        with opened.recorder.step(label=np.arange(4)):
            model.first(OBLONG).sum().backward()
        with (
            pytest.warns(RuntimeWarning, match=r"^layer 'late\.\w+' has the batch in axis 1, but space"),
            opened.recorder.step(label=np.arange(5)),
        ):
            (model.first(SQUARE).sum() + model.late(SQUARE)[0].sum()).backward()
    assert opened.sink.skipped == {
        f"late.{part}": f"layer 'late.{part}' has the batch in axis 1, but space 'token' has it in axis 0"
        for part in ("gates", "candidate_input", "candidate_hidden")
    }


@pytest.mark.parametrize("order", [0, 1])
def test_the_order_of_a_flattened_head_beside_time_first_layers_is_said(tmp_path, order):
    model = TimeFirst()
    flat = (OBLONG.transpose(0, 1) if order else OBLONG).reshape(-1, 3)
    refused = opened_on(model, tmp_path / "refused", spaces={"h": "token"})
    with refused.recorder, pytest.raises(RecordingError) as caught:
        step_of(refused, model, OBLONG, flat)
    assert str(caught.value) == (
        "layer 'h' saw the tokens of space 'token' as one list at step 0, and their order is unknown. Pass "
        "batch_dim={'h': 0} to recorder.step if they come row after row, or batch_dim={'h': 1} if the first "
        "tokens of all rows come first."
    )
    opened = opened_on(model, tmp_path / "m", spaces={"h": "token"})
    with opened.recorder:
        step_of(opened, model, OBLONG, flat, batch_dim={"h": order})
        step_of(opened, model, OBLONG, flat)
    np.testing.assert_array_equal(opened.sink.keys("h"), np.tile(OBLONG.reshape(-1, 3), (2, 1)))
    assert opened.sink.column("word", "token") == [*range(20)] * 2


def test_rows_said_later_on_a_square_batch_are_not_recorded_and_the_training_goes_on(tmp_path):
    model = nn.Linear(3, 3)
    recorder = dualform.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "m")
    words = np.arange(25).reshape(5, 5)
    with recorder:
        with recorder.step(label=3, dataset="a"):
            model(SQUARE).sum().backward()
        with pytest.warns(RuntimeWarning) as told, recorder.step(label=np.arange(5), dataset="a", word=words):
            model(SQUARE).sum().backward()
        with recorder.step(label=np.arange(5), mask=words > 3):  # warned of once
            model(SQUARE).sum().backward()
        with recorder.step(label=np.arange(4)):
            model(OBLONG).sum().backward()
        with recorder.step(label=np.arange(5), word=words):
            model(SQUARE).sum().backward()
    assert [str(warning.message) for warning in told] == [
        "at step 1 the batch axis of [5, 5] cannot be told: it is square. The columns passed to step() are not "
        "recorded for space 'token', also in later steps. Pass batch_dim=0 to recorder.step, or batch_dim=1 if "
        "the batch is the second axis."
    ]
    slots = dualform.open(tmp_path / "m").slots(np.arange(120)).records()
    assert [r["label"] for r in slots] == (
        [3] * 25 + [None] * 50 + [*np.repeat(np.arange(4), 5)] + [*np.repeat(np.arange(5), 5)]
    )
    assert [r["row"] for r in slots[:75]] == [*np.repeat(np.arange(5), 5)] + [None] * 50
    assert [r["word"] for r in slots] == [None] * 95 + [*range(25)]
    assert [r["dataset"] for r in slots] == ["a"] * 50 + [None] * 70


def test_an_axis_that_is_said_later_is_known_from_then_on(tmp_path):
    model = nn.Linear(3, 3)
    opened = opened_on(model, tmp_path / "m")
    with opened.recorder:
        for said in ({"label": 3}, {"label": np.arange(5), "batch_dim": 0}, {"label": np.arange(5)}):
            with opened.recorder.step(**said):
                model(SQUARE).sum().backward()
    assert opened.sink.column("label", "token") == [3] * 25 + [*np.repeat(np.arange(5), 5)] * 2
