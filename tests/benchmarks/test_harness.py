"""Races, processes, and what is made of seconds: who is measured, how often, and what a target says."""

from __future__ import annotations

import os
import time

import pytest
from benchmarks.harness import (
    OURS,
    Cannot,
    Cell,
    Row,
    Section,
    Target,
    apart,
    race,
)


def test_a_cell_is_the_median_and_the_best_of_its_repeats():
    assert Cell.of([3.0, 1.0, 10.0]) == Cell(3.0, 1.0, 3)
    assert Cell.of([4.0, 2.0], worst=4.0) == Cell(3.0, 2.0, 2, worst=4.0)


def test_contestants_take_turns():
    order: list[str] = []

    def slow(name: str) -> str:
        order.append(name)
        time.sleep(0.006)  # longer than SAMPLE, so that one measurement is one call
        return name

    ran = race(
        {"a": lambda: slow("a"), "b": lambda: slow("b")}, 3, 60, lambda name, answer: ("", f"{name} says {answer}")
    )
    assert order == [*"aabb", *"aaabbb" * 3], "two calls to warm up, then three turns: untimed, for the pace, timed"
    assert [ran[name].repeats for name in "ab"] == [3, 3]
    assert [ran[name].remark for name in "ab"] == ["a says a", "b says b"]


def test_who_cannot_answer_says_why_and_is_not_measured():
    def refuse() -> None:
        raise Cannot("no such search")

    ran = race({"able": lambda: 1, "unable": refuse}, repeats=2, patience=60)
    assert list(ran) == ["able", "unable"]
    assert (ran["unable"].seconds, ran["unable"].why_not) == (None, "no such search")


def test_a_failure_that_nobody_foresaw_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        race({"broken": lambda: 1 // 0}, repeats=1, patience=60)


def test_who_is_out_of_patience_keeps_one_time():
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    cell = race({"slow": slow}, repeats=5, patience=0.01)["slow"]
    assert (calls, cell.repeats) == (1, 1), "the warm-up is its time"
    assert cell.seconds >= 0.02


@pytest.mark.parametrize("patience", [60, 0.2])
def test_what_is_kept_after_the_first_answer_is_timed_as_fast_as_it_then_is(patience: float):
    kept: list[int] = []
    calls = 0

    def answer() -> None:
        nonlocal calls
        calls += 1
        if not kept:
            kept.append(1)
            time.sleep(0.06)  # longer than PAUSE, after which a contestant is warmed up anyway

    cell = race({"kept": answer}, repeats=2, patience=patience)["kept"]
    assert cell.repeats == 2
    assert cell.seconds < 0.005
    assert calls > 100, "repeated within a measurement, though its first answer was slow"


def environment(name: str) -> tuple[int, str | None]:
    return os.getpid(), os.environ.get(name)


def test_another_process_gets_arguments_and_environment():
    process, value = apart(environment, "BENCHMARKED", BENCHMARKED="yes")
    assert process != os.getpid()
    assert value == "yes"
    assert "BENCHMARKED" not in os.environ


def test_the_fastest_peer_is_one_whose_answer_is_right():
    cells = {
        OURS: Cell(0.001),
        f"{OURS}, no filter": Cell(0.002),
        "wrong": Cell(0.01, wrong="slots"),
        "absent": Cell(why_not="not installed"),
        "slow": Cell(0.3),
        "right": Cell(0.2),
    }
    section = Section("topk", "Top")
    section.compare_fastest("fast", cells)
    section.compare_fastest("many times as fast", cells, times=True)
    section.compare_fastest("alone", {OURS: Cell(0.001)})
    assert [row.ratio for row in section.rows] == [pytest.approx(0.005), pytest.approx(200), None]
    assert [row.beside for row in section.rows] == ["fastest peer: right", "fastest peer: right", ""]


@pytest.mark.parametrize(
    ("ratio", "target", "met", "used"),
    [
        (0.5, Target("at most", 0.5), True, 1.0),
        (0.51, Target("at most", 0.5), False, 1.02),
        (8.0, Target("at least", 8), True, 1.0),
        (7.9, Target("at least", 8), False, 8 / 7.9),
        (None, Target("at most", 1), None, None),
        (0.1, None, None, None),
    ],
)
def test_targets_bound_from_above_or_from_below(ratio, target, met, used):
    row = Row("q", {OURS: Cell(1.0)}, "peer", 10.0, ratio, target)
    assert (row.met, row.used) == (met, used if used is None else pytest.approx(used))


def test_a_wrong_answer_meets_no_target():
    row = Row("q", {OURS: Cell(1.0, wrong="a score is off")}, "peer", 10.0, 0.1, Target("at most", 0.5))
    assert row.met is False
