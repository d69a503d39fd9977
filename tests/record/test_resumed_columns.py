"""What a resumed training may say of its samples: what nobody could read behind it is refused before it is recorded."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, RecordingError
from tests.trainings import learn

ROWS, STEPS = 4, 3
NUMBERS = np.arange(ROWS)


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Resumed:
    """A training that is recorded, saved, and resumed, with other columns and options each time."""

    def __init__(self, path) -> None:
        self.path = path
        self.states = None
        self.done = 0

    def record(self, said, **options) -> None:
        model, optimizer = network()
        if self.states:
            model.load_state_dict(self.states[0])
            optimizer.load_state_dict(self.states[1])
        resume = bool(self.states)
        with dualform.Recorder(model, optimizer, self.path, quiet=True, resume=resume, **options) as recorder:
            for _ in range(STEPS):
                generator = torch.Generator().manual_seed(self.done)
                with recorder.step(**said):
                    learn(optimizer, model(torch.randn(ROWS, 2, 5, generator=generator)).square().mean())
                self.done += 1
            recorder.flush()
            self.states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def tokens(**columns):
    """Said of single slots."""
    return {"at": {"token": columns}}


PAIRS = np.arange(2 * ROWS).reshape(ROWS, 2)


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({"w": NUMBERS}, {"w": NUMBERS / 2}, "Column 'w' is DOUBLE, but BIGINT in the training that is resumed."),
        ({"w": NUMBERS}, {"w": "a"}, "Column 'w' is VARCHAR, but BIGINT in the training that is resumed."),
        (tokens(w=PAIRS), tokens(w=PAIRS / 2), "Column 'w' is DOUBLE, but BIGINT in the training that is resumed."),
        ({"w": NUMBERS}, {"W": NUMBERS}, "Columns 'w' and 'W' differ only in case, which SQL ignores."),
        ({"w": NUMBERS}, tokens(W=PAIRS), "Columns 'w' and 'W' differ only in case, which SQL ignores."),
    ],
)  # fmt: skip
def test_a_column_keeps_its_type_and_its_name(tmp_path, first, then, said):
    training = Resumed(tmp_path / "m")
    training.record(first)
    with pytest.raises(BadInput) as caught:
        training.record(then)
    assert said in str(caught.value)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == STEPS
    training.done = STEPS
    training.record(first)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == 2 * STEPS


def test_columns_of_one_step_do_not_differ_in_case_alone(tmp_path):
    with pytest.raises(BadInput, match="Columns 'W' and 'w' differ only in case, which SQL ignores"):
        Resumed(tmp_path / "m").record({"w": NUMBERS, **tokens(W=PAIRS)})


def test_a_budget_does_not_take_the_name_of_a_column(tmp_path):
    training = Resumed(tmp_path / "m")
    training.record({"Share": NUMBERS})
    with pytest.raises(RecordingError, match="has its own column 'share'"):
        training.record({}, budget="1 GB")
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().steps == STEPS


@pytest.mark.parametrize("said", [{"share": NUMBERS / 8}, {"SHARE": NUMBERS}, tokens(share=PAIRS)])
def test_a_column_does_not_take_the_name_of_a_budget_s(tmp_path, said):
    training = Resumed(tmp_path / "m")
    with pytest.raises(BadInput, match="is filled by a recorder with a budget"):
        training.record(said, budget="1 GB")
    training = Resumed(tmp_path / "n")
    training.record({}, budget="1 GB")
    with pytest.raises(BadInput, match="is filled by a recorder with a budget"):
        training.record(said)
    with dualform.open(tmp_path / "n") as memory:
        assert memory.info().steps == STEPS


def test_where_a_column_named_run_was_not_said_it_is_missing(tmp_path):
    training = Resumed(tmp_path / "m")
    training.record({})
    training.record({"run": 70 + NUMBERS})
    slots = 2 * ROWS * STEPS
    with dualform.open(tmp_path / "m") as memory:
        found = memory.slots(range(2 * slots))["run"].tolist()
        assert found == [None] * slots + np.repeat(np.tile(70 + NUMBERS, STEPS), 2).tolist()
        statement = "SELECT count(run) AS said, count(*) AS slots FROM slots WHERE step < 3"
        assert memory.sql(statement).records() == [{"said": 0, "slots": slots}]


def test_a_column_that_is_called_run_but_for_case_is_the_only_one(tmp_path):
    training = Resumed(tmp_path / "m")
    training.record({})
    training.record({"Run": 70 + NUMBERS})
    with dualform.open(tmp_path / "m") as memory:
        assert [name for name in memory.slots([0]).arrays if name.lower() == "run"] == ["Run"]
        assert memory.sql('SELECT max("run") AS last FROM slots').records() == [{"last": 73}]


def test_a_label_has_the_name_that_was_said_last(tmp_path):
    training = Resumed(tmp_path / "m")
    for names in (["a", "b", "c", "d"], ["A", "B", "C", "D"]):
        training.record({"label": NUMBERS, "dataset": "d"}, label_names={"d": names})
    with dualform.open(tmp_path / "m") as memory:
        assert memory.sql("SELECT name FROM labels ORDER BY label")["name"].tolist() == ["A", "B", "C", "D"]
        joined = "SELECT count(*) AS slots FROM slots JOIN labels USING (dataset, label)"
        assert memory.sql(joined).records() == [{"slots": 2 * 2 * ROWS * STEPS}]
