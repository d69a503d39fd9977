"""What the section on recording makes of the seconds that trainings took, and what stands beside an earlier run."""

from __future__ import annotations

import pytest
from benchmarks import trainings
from benchmarks.__main__ import _alike
from benchmarks.sections import recording

SECONDS = {"unrecorded": (10.0, 20.0, 10.0), "values": (15.0, 24.0, 14.0), "keys": (11.0, 21.0, 10.0)}
"""Of three repeats, of which a busy machine slowed the second."""


def measured(repeat: int) -> recording.Measured:
    found = {kind: {"seconds": times[repeat], "steps": 100.0, "bytes": 1e9} for kind, times in SECONDS.items()}
    return dict.fromkeys(("study", "gpt", "toy", "mlp"), found)


def test_ratios_are_of_repeats_and_tell_their_spread(monkeypatch):
    monkeypatch.setattr(recording, "cores", lambda: 2)
    rows = {row.question: row for row in recording._rows([measured(repeat) for repeat in range(3)], 4)}
    values = rows["training, keys and values recorded, 100 steps, 4 threads on 2 cores"]
    assert (values.ratio, *values.ratios) == pytest.approx((1.4, 1.2, 1.5))
    assert (values.ours.seconds, values.ours.best, values.ours.worst) == (15.0, 14.0, 24.0)
    assert values.beside_seconds == 10.0
    assert values.met is False
    assert rows["training, only keys recorded, 100 steps, 4 threads on 2 cores"].met is True
    added = rows["what recording adds to a step of a tiny MLP (64-32-10), 4 threads on 2 cores"]
    assert (added.ours.seconds, added.ours.best, added.ours.worst) == pytest.approx((0.04, 0.04, 0.05))
    assert (added.beside_seconds, added.ratio, added.target) == (0.1, None, None)


def test_trainings_run_in_the_opposite_order_every_second_time():
    found = trainings.trainings(None, 10)
    forwards, backwards = (
        [(name, kind) for name, _, kind in trainings.in_turns(found, turned)] for turned in (False, True)
    )
    assert forwards[:2] == [("gpt", "unrecorded"), ("gpt", "values")]
    assert backwards[:2] == [("gpt", "values"), ("gpt", "unrecorded")]
    assert sorted(forwards) == sorted(backwards)


@pytest.mark.parametrize("name", ["toy", "mlp"])
def test_a_training_leaves_a_durable_record(tmp_path, name):
    training = trainings.trainings(None, 10)[name]
    training.run(None, False, 2)
    training.run(tmp_path / "memory", True, 2)
    assert (tmp_path / "memory" / "memory.json").exists()


@pytest.mark.parametrize(
    ("changed", "alike"),
    [
        ({}, True),
        ({"versions": {"numpy": "2.4"}}, True),
        ({"versions": {"numpy": "2.5", "lancedb": "0.4"}}, False),
        ({"slots": 2}, False),
        ({"machine": {"cores": "4"}}, False),
    ],
)
def test_figures_stand_together_where_size_machine_and_versions_are_the_same(changed, alike):
    earlier = {"slots": 1, "machine": {"cores": "2"}, "versions": {"numpy": "2.4", "lancedb": "0.4"}}
    assert _alike({**earlier, "sections": {}, "date": "today"}, {**earlier, **changed}) is alike
