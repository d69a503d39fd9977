"""A share that nobody waits for any more is work no more: the process goes on with the next question."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dualform.errors import Cancelled, TimedOut
from dualform.query.score.backends import choose
from dualform.query.shards import shard_engine
from dualform.query.shards.front import open_front
from dualform.query.shards.shard_engine import ShardEngine
from dualform.query.shards.shards import ShardQuestion
from dualform.questions import TopK, Vectors
from dualform.store.runs import opened
from dualform_service.shards.fleet import Fleet
from tests.query.shards.memories import write
from tests.service.shards.local_process import local_processes

QUERIES = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Endless:
    """A share that works until it is stopped, and leaves a file when it begins."""

    begun: Path

    def answer(self, shard, check):
        self.begun.touch()
        while True:
            check()
            time.sleep(0.001)


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "memory"
    write(path, [[3, 4, 2], [2, 2, 4]])
    return path


@pytest.fixture
def engine(memory):
    with ShardEngine(opened(memory), 0, choose("numpy")) as engine:
        yield engine


def test_a_share_ends_when_it_is_given_up_or_takes_too_long(engine, tmp_path):
    asked = ShardQuestion(Endless(tmp_path / "begun"), engine._shard.whole.snapshot.moment)
    late = engine.reply(asked, 0.01)
    assert isinstance(late.error, TimedOut)
    replies = []
    worker = threading.Thread(target=lambda: replies.append(engine.reply(asked, 60.0)))
    worker.start()
    engine.give_up(asked.name)
    worker.join(60)
    assert isinstance(replies[0].error, Cancelled)


def test_a_share_that_was_given_up_before_it_came_does_not_begin(engine, tmp_path):
    asked = ShardQuestion(Endless(tmp_path / "begun"), engine._shard.whole.snapshot.moment)
    engine.give_up(asked.name)
    assert isinstance(engine.reply(asked, 60.0).error, Cancelled)
    assert not (tmp_path / "begun").exists()


def test_names_that_came_too_late_are_not_kept_for_ever(engine, monkeypatch):
    monkeypatch.setattr(shard_engine, "_NAMES", 3)
    for number in range(9):
        engine.give_up(str(number))
    assert list(engine._given_up) == ["6", "7", "8"]


def test_a_process_goes_on_with_the_next_question_once_one_is_given_up(memory, tmp_path):
    begun, started = tmp_path / "begun", {}

    def gone():
        if begun.exists():
            raise Cancelled("gone")

    with Fleet(local_processes(memory, started), lambda: ["shard-00000", "shard-00001"], 60.0) as fleet:
        with open_front(memory, fleet, "numpy") as front:
            first = front.topk("plain", QUERIES, 5)
            processes = {number: one.process.pid for number, one in started.items()}
            with pytest.raises(Cancelled):
                fleet(ShardQuestion(Endless(begun), front._view.snapshot.moment), [0, 1], gone)
            asked = time.monotonic()
            again = front.ask(TopK("plain", Vectors(QUERIES), 5), lambda: time.monotonic() > asked + 60)
        assert again.ids.tobytes() == first.ids.tobytes()
        assert {number: one.process.pid for number, one in started.items()} == processes
