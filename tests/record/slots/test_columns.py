"""step(...): its arguments as columns of slots, also of a resumed training; and what it refuses."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, RecordingError
from dualform.record.slots.columns import Metadata
from tests.record.listed import Opened, batches, rows_of, small_net
from tests.trainings import learn, record_steps


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


def test_columns_are_those_of_the_first_step(tmp_path):
    model = small_net()
    opened = opened_on(model, tmp_path)
    x = batches(1)[0][0]
    with opened.recorder:
        one_step(opened, model, x, weight=1)
        with pytest.raises(
            BadInput,
            match=r"^Column 'other' first appears at step 1\. Pass other from the first step on; None "
            r"where it is missing\.$",
        ):
            one_step(opened, model, x, weight=1, other=2)
        one_step(opened, model, x)
    assert opened.sink.column("weight") == [1] * 8 + [None] * 8


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


@pytest.mark.parametrize(
    ("what", "inside", "values"), [("key", True, True), ("error signal", True, False), ("error signal", False, True)]
)
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


ROWS, STEPS = 4, 3

NUMBERS = np.arange(ROWS)

PAIRS = np.arange(2 * ROWS).reshape(ROWS, 2)


class Resumed:
    """A training that is recorded, saved, and resumed, with other columns and options each time."""

    def __init__(self, path) -> None:
        self.path, self.states, self.done = path, None, 0

    def record(self, said, **options) -> None:
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if self.states:
            model.load_state_dict(self.states[0])
            optimizer.load_state_dict(self.states[1])
        resume = bool(self.states)
        with dualform.Recorder(model, optimizer, self.path, quiet=True, resume=resume, **options) as recorder:
            for step in range(self.done, self.done + STEPS):
                generator = torch.Generator().manual_seed(step)
                with recorder.step(**said):
                    learn(optimizer, model(torch.randn(ROWS, 2, 5, generator=generator)).square().mean())
            recorder.flush()
            self.done += STEPS
            self.states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def tokens(**columns):
    """Said of single slots."""
    return {"at": {"token": columns}}


REFUSED_LATER = [
    ({"w": NUMBERS / 2}, "Column 'w' is DOUBLE, but BIGINT in the training that is resumed."),
    ({"w": "a"}, "Column 'w' is VARCHAR, but BIGINT in the training that is resumed."),
    (tokens(v=PAIRS / 2), "Column 'v' is DOUBLE, but BIGINT in the training that is resumed."),
    ({"W": NUMBERS}, "Columns 'w' and 'W' differ only in case, which SQL ignores."),
    (tokens(W=PAIRS), "Columns 'w' and 'W' differ only in case, which SQL ignores."),
]


def test_a_resumed_training_keeps_types_and_names_of_its_columns(tmp_path):
    with pytest.raises(BadInput, match="Columns 'W' and 'w' differ only in case, which SQL ignores"):
        Resumed(tmp_path / "m").record({"w": NUMBERS, **tokens(W=PAIRS)})
    training, first = Resumed(tmp_path / "m"), {"w": NUMBERS, "Share": NUMBERS, **tokens(v=PAIRS)}
    training.record(first)
    for then, message in REFUSED_LATER:
        with pytest.raises(BadInput) as caught:
            training.record(then)
        assert message in str(caught.value)
    with pytest.raises(RecordingError, match="has its own column 'share'"):
        training.record({}, budget="1 GB")
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == STEPS
    training.record(first)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 2 * STEPS


def test_a_column_does_not_take_the_name_of_a_budget_s(tmp_path):
    training = Resumed(tmp_path / "n")
    training.record({}, budget="1 GB")
    for said in ({"share": NUMBERS / 8}, {"SHARE": NUMBERS}, tokens(share=PAIRS)):
        for again, options in ((Resumed(tmp_path / "m"), {"budget": "1 GB"}), (training, {})):
            with pytest.raises(BadInput, match="is filled by a recorder with a budget"):
                again.record(said, **options)
    with dualform.open(tmp_path / "n") as memory:
        assert memory.info().steps == STEPS


@pytest.mark.parametrize("name", ["Run"])
def test_where_a_column_named_run_was_not_said_it_is_missing(tmp_path, name):
    training, slots = Resumed(tmp_path / "m"), 2 * ROWS * STEPS
    training.record({})
    training.record({name: 70 + NUMBERS})
    with dualform.open(tmp_path / "m") as memory:
        columns = memory.slots(range(2 * slots)).arrays
        assert [own for own in columns if own.lower() == "run"] == [name]
        assert columns[name].tolist() == [None] * slots + np.repeat(np.tile(70 + NUMBERS, STEPS), 2).tolist()
        assert len(memory.topk("", np.ones((1, 5), np.float32), 99, where="run = 73").ids) == 2 * STEPS


def test_a_label_has_the_name_that_was_said_last(tmp_path):
    training = Resumed(tmp_path / "m")
    for names in (["a", "b", "c", "d"], ["A", "B", "C", "D"]):
        training.record({"label": NUMBERS, "dataset": "d"}, label_names={"d": names})
    labels = sorted(rows_of(tmp_path / "m", "labels"), key=lambda row: row["label"])
    assert [row["name"] for row in labels] == ["A", "B", "C", "D"]
