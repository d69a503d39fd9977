"""The profile of a recorded training: its parts are there, and together they are the whole."""

from __future__ import annotations

import threading
import time

import pytest
from benchmarks.recording import trainings
from benchmarks.recording_profile import PARTS, Profile, main, measure, profiled
from click.testing import CliRunner


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_part_is_told_without_what_it_calls():
    profile = Profile()
    inner = profile.watched("inner", lambda: spin(0.02))
    outer = profile.watched("outer", lambda: (inner(), spin(0.01), inner()))
    thread = threading.Thread(target=outer)
    thread.start()
    outer()
    thread.join()
    assert profile.seconds["inner"] == pytest.approx(0.08, rel=0.2)
    assert profile.seconds["outer"] == pytest.approx(0.02, rel=0.4)


def test_every_part_of_a_recorded_training_takes_time(tmp_path):
    training = trainings(None, 10, 0.2)["mlp"]
    found = measure(training, ("values",), 1, tmp_path)["values"]
    # AdamW is watched through entries, and a short training is committed before it would be journaled.
    idle = {"training: finite, where nothing is measured", "writer: journal"}
    assert {name for name, took in found.items() if not took} <= idle
    assert sum(took for name, took in found.items() if name != "whole") == pytest.approx(found["whole"])


def test_nothing_is_watched_afterwards():
    before = [getattr(owner, name) for _, owner, name in PARTS]
    with profiled():
        assert [getattr(owner, name) for _, owner, name in PARTS] != before
    assert [getattr(owner, name) for _, owner, name in PARTS] == before


def test_a_training_is_profiled_by_its_name():
    done = CliRunner().invoke(main, ["--training", "mlp", "--steps", "5", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    head, _, *rows = done.output.splitlines()
    assert head == "| ms of the processor a step | unrecorded | values |"
    parts = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert parts[0] == "whole"
    assert "training: slots along directions and of entries, and whether they are finite" in parts


def test_the_study_is_not_profiled_without_its_data():
    done = CliRunner().invoke(main, ["--training", "study"], env={"DUALFORM_DATA": None})
    assert done.exit_code == 2
    assert "the study's training needs MNIST and Fashion-MNIST" in done.output
