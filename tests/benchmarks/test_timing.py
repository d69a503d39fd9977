"""Races: who is measured, how often, and what is said of who cannot answer."""

from __future__ import annotations

import time

import pytest
from benchmarks.timing import Cannot, Timing, race


def test_a_timing_is_the_median_and_the_best_of_its_repeats():
    assert Timing.of([3.0, 1.0, 10.0]) == Timing(3.0, 1.0, 3)
    assert Timing.of([4.0, 2.0]) == Timing(3.0, 2.0, 2)


def test_contestants_take_turns():
    order: list[str] = []

    def slow(name: str) -> str:
        order.append(name)
        time.sleep(0.006)  # longer than timing.SAMPLE, so that one measurement is one call
        return name

    ran = race({"a": lambda: slow("a"), "b": lambda: slow("b")}, repeats=3, patience=60)
    assert order == [*"aabb", *"aaabbb" * 3], "two calls to warm up, then three turns: untimed, for the pace, timed"
    assert [ran[name].answer for name in "ab"] == ["a", "b"]
    assert [ran[name].timing.repeats for name in "ab"] == [3, 3]


def test_what_is_fast_is_repeated_within_a_measurement():
    calls = 0

    def fast() -> None:
        nonlocal calls
        calls += 1

    timing = race({"fast": fast}, repeats=2, patience=60)["fast"].timing
    assert timing is not None
    assert timing.repeats == 2
    assert calls > 100
    assert timing.seconds < 0.005


def test_who_cannot_answer_says_why_and_is_not_measured():
    def refuse() -> None:
        raise Cannot("no such search")

    ran = race({"able": lambda: 1, "unable": refuse}, repeats=2, patience=60)
    assert list(ran) == ["able", "unable"]
    assert (ran["unable"].timing, ran["unable"].why_not) == (None, "no such search")


def test_a_failure_that_nobody_foresaw_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        race({"broken": lambda: 1 // 0}, repeats=1, patience=60)


def test_who_is_out_of_patience_keeps_one_time():
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.02)

    timing = race({"slow": slow}, repeats=5, patience=0.01)["slow"].timing
    assert timing is not None
    assert (calls, timing.repeats) == (1, 1), "the warm-up is its time"
    assert timing.seconds >= 0.02


@pytest.mark.parametrize("patience", [60, 0.2])
def test_what_is_kept_after_the_first_answer_is_timed_as_fast_as_it_then_is(patience: float):
    kept: list[int] = []
    calls = 0

    def answer() -> None:
        nonlocal calls
        calls += 1
        if not kept:
            kept.append(1)
            time.sleep(0.06)  # longer than timing.PAUSE, after which a contestant is warmed up anyway

    race({"kept": answer}, repeats=1, patience=patience)
    assert calls > 100, "repeated within a measurement, though its first answer was slow"
