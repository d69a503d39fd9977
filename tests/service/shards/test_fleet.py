"""What the fleet makes of answerers that answer, err, die, say nothing or cannot be started, and of actors of a real
Ray; and what is given up.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import dualform
from dualform.errors import BadInput, Cancelled, Inexact, MissingPackage, TimedOut, Unavailable
from dualform.query.score.backends import choose
from dualform.query.shards import engines
from dualform.query.shards.engines import Reply, ShardEngine, open_front
from dualform.query.shards.shards import ShardQuestion
from dualform.store.reading.runs import opened
from dualform_client import Client
from dualform_service import shards
from dualform_service.server import Server
from dualform_service.shards import Fleet, _Actor, ray_answerers
from tests.query.shards.in_process import front_of
from tests.query.shards.memories import write


class Made:
    """An answerer whose reply is known beforehand: a Reply, an error of the process, or None for none at all."""

    def __init__(self, reply, ready=True):
        self.reply, self.ready, self.closed, self.seconds, self.given_up = reply, ready, threading.Event(), [], []

    def ask(self, asked, seconds):
        future = Future()
        if asked is None:
            self.begin = future
            if self.ready:
                future.set_result(Reply())
            return future
        self.seconds.append(seconds)
        if isinstance(self.reply, Reply):
            future.set_result(self.reply)
        elif self.reply is not None:
            future.set_exception(self.reply)
        return future

    def give_up(self, name):
        self.given_up.append(name)

    def close(self):
        self.closed.set()


ASKED = ShardQuestion(None, (), None)


def never():
    pass


def fleet_of(*lists, seconds=60.0):
    """A fleet whose shards have answerers of those lists, the next one whenever one is replaced."""
    waiting = [list(own) for own in lists]
    return Fleet(lambda n: waiting[n].pop(0), lambda: [f"shard-{n}" for n in range(len(lists))], seconds)


@contextmanager
def hurried(fleet):
    """Its shards have a twentieth of a second."""
    usual, fleet._seconds = fleet._seconds, 0.05
    try:
        yield
    finally:
        fleet._seconds = usual


def test_an_error_of_the_question_is_raised_and_replaces_nobody():
    made = Made(Reply(error=Inexact("not so")))
    with fleet_of([made]) as fleet:
        for _ in range(2):
            with pytest.raises(Inexact, match="not so"):
                fleet(ASKED, [0], never)
        assert not made.closed.is_set()


def test_one_that_is_gone_is_named_and_replaced():
    dead = Made(ConnectionError("end of file"))
    with fleet_of([Made(Reply("a"))], [dead, Made(Reply("b"))]) as fleet:
        with pytest.raises(Unavailable, match="shard-1 went away") as caught:
            fleet(ASKED, [0, 1], never)
        assert caught.value.shards == (1,)
        assert fleet(ASKED, [0, 1], never) == {0: "a", 1: "b"}
        assert dead.closed.wait(60)


def test_one_that_is_silent_is_named_in_time_and_replaced():
    def seconds_until_named() -> float:
        silent = Made(Reply("b"))
        with fleet_of([Made(Reply("a"))], [silent, Made(Reply("new"))]) as fleet:
            fleet(ASKED, [1], never)
            silent.reply = None
            with hurried(fleet):
                began = time.monotonic()
                with pytest.raises(Unavailable, match=r"shard-1 did not answer within 0.05 s"):
                    fleet(ASKED, [0, 1], never)
                took = time.monotonic() - began
            assert fleet(ASKED, [1], never) == {1: "new"}
            assert silent.closed.wait(60)
        return took

    # Where others have the processor, one or another is late.
    assert any(seconds_until_named() < 0.05 + 0.2 for _ in range(20))


def test_one_that_starts_is_given_time_and_is_not_asked_what_nobody_waits_for(monkeypatch):
    starting = Made(Reply("ready"), ready=False)
    with fleet_of([starting, Made(Reply("new"))]) as fleet:
        for _ in range(2):
            with pytest.raises(Unavailable, match="did not answer"), hurried(fleet):
                fleet(ASKED, [0], never)
        starting.begin.set_result(Reply())
        assert starting.seconds == []
        assert fleet(ASKED, [0], never) == {0: "ready"}
        assert len(starting.seconds) == 1


def test_one_that_never_begins_is_replaced(monkeypatch):
    monkeypatch.setattr(shards, "START_SECONDS", 0.0)
    with fleet_of([Made(None, ready=False), Made(Reply("new"))]) as fleet:
        with pytest.raises(Unavailable, match="did not answer"), hurried(fleet):
            fleet(ASKED, [0], never)
        assert fleet(ASKED, [0], never) == {0: "new"}


def test_one_that_says_that_it_is_late_is_at_work_and_stays():
    slow = Made(Reply(error=TimedOut("too slow")))
    with fleet_of([slow]) as fleet:
        with pytest.raises(Unavailable, match=r"shard-0 did not answer within 60 s"):
            fleet(ASKED, [0], never)
        slow.reply = Reply("a")
        assert fleet(ASKED, [0], never) == {0: "a"}
        assert not slow.closed.is_set()


def test_one_that_cannot_be_started_is_tried_again():
    starts = [Made(ConnectionError()), RuntimeError("no machine"), Made(Reply("a"))]

    def launch(number):
        start = starts.pop(0)
        if isinstance(start, Exception):
            raise start
        return start

    with Fleet(launch, lambda: ["shard-0"]) as fleet:
        with pytest.raises(Unavailable, match="went away"):
            fleet(ASKED, [0], never)
        while len(starts) > 1:
            time.sleep(0.001)
        assert fleet(ASKED, [0], never) == {0: "a"}


def gone():
    raise Cancelled("gone")


@pytest.mark.parametrize(
    ("end", "check"),
    [
        (Reply(error=Inexact("not so")), never),
        (ConnectionError("end of file"), never),
        (Reply("a"), gone),
    ],
)
def test_an_answer_that_cannot_be_whole_is_given_up_by_the_other_shards(end, check):
    there, busy = Made(end), Made(None)
    with fleet_of([there, Made(Reply("a"))], [busy]) as fleet:
        with pytest.raises((Inexact, Unavailable, Cancelled)):
            fleet(ASKED, [0, 1], check)
        assert (there.given_up, busy.given_up) == ([], [ASKED.name])
        assert not busy.closed.is_set()


def test_what_was_given_up_before_a_process_began_is_not_sent():
    starting = Made(Reply("ready"), ready=False)
    with fleet_of([starting]) as fleet:
        with pytest.raises(Cancelled):
            fleet(ASKED, [0], gone)
        starting.begin.set_result(Reply())
        assert (starting.seconds, starting.given_up) == ([], [])
        assert fleet(ASKED, [0], never) == {0: "ready"}


def test_closing_ends_all_and_no_question_starts_one_again():
    made = [Made(Reply("a")), Made(Reply("b"))]
    fleet = fleet_of([made[0]], [made[1]])
    fleet.close()
    assert all(one.closed.is_set() for one in made)
    with pytest.raises(Unavailable, match="was closed"):
        fleet(ASKED, [0], never)


def test_a_deadline_must_be_above_0():
    with pytest.raises(BadInput, match="deadline"):
        fleet_of([Made(None)], seconds=0.0)


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingPackage, match=r"extra \[ray\]"):
        ray_answerers(tmp_path)


def test_a_shard_that_came_later_gets_a_process():
    names = ["shard-0"]
    with Fleet(lambda n: Made(Reply(n)), lambda: names) as fleet:
        assert fleet(ASKED, [0], never) == {0: 0}
        names = ["shard-0", "run-1/shard-0"]
        assert fleet(ASKED, [0, 1], never) == {0: 0, 1: 1}
        with pytest.raises(Unavailable, match="has 2 shards") as caught:
            fleet(ASKED, [1, 2], never)
        assert caught.value.shards == (2,)


def test_an_actor_answers_once_it_is_told_for_which_shard(tmp_path):
    actor = _Actor(str(tmp_path / "memory"), "numpy")
    assert isinstance(actor.reply(None, 0.0).error, TimedOut)
    actor.give_up("nothing yet")
    actor.open(0)
    assert "not a dualform memory" in str(actor.reply(None, 60.0).error)
    write(tmp_path / "memory", [[2]])
    assert actor.reply(None, 60.0).error is None


def test_an_actor_that_cannot_open_its_shard_fails_so_that_it_is_replaced(monkeypatch):
    def stale(*_):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(shards, "open_shard", stale)
    actor = _Actor("memory", "numpy")
    actor.open(0)
    with pytest.raises(OSError, match="Stale"):
        actor.reply(None, 60.0)


QUERIES = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)


def endless(shard, check, begun):
    """A share that works until it is stopped, and leaves a file when it begins."""
    begun.touch()
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
    asked = ShardQuestion(endless, (tmp_path / "begun",), engine._shard.whole.snapshot.moment)
    late = engine.reply(asked, 0.01)
    assert isinstance(late.error, TimedOut)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(engine.reply, asked, 60.0)
        engine.give_up(asked.name)
    assert isinstance(reply.result().error, Cancelled)


def test_a_share_that_was_given_up_before_it_came_does_not_begin(engine, tmp_path):
    asked = ShardQuestion(endless, (tmp_path / "begun",), engine._shard.whole.snapshot.moment)
    engine.give_up(asked.name)
    assert isinstance(engine.reply(asked, 60.0).error, Cancelled)
    assert not (tmp_path / "begun").exists()


def test_names_that_came_too_late_are_not_kept_for_ever(engine, monkeypatch):
    monkeypatch.setattr(engines, "_NAMES", 3)
    for number in range(9):
        engine.give_up(str(number))
    assert list(engine._given_up) == ["6", "7", "8"]


def test_answers_and_missing_shards_cross_the_wire(tmp_path):
    write(tmp_path / "memory", [[3, 4, 2], [2, 2, 4]])
    front, shards = front_of(tmp_path / "memory")
    with (
        dualform.open(tmp_path / "memory", backend="numpy") as one,
        Server(front, "127.0.0.1:0") as server,
        Client(server.address) as client,
    ):
        found, expected = (each.topk("plain", QUERIES, 4, by="label") for each in (client, one))
        assert (found.ids.tobytes(), found.flat_scores.tobytes()) == (
            expected.ids.tobytes(),
            expected.flat_scores.tobytes(),
        )
        assert found.scan.missing == ()
        shards.dead = {1}
        with pytest.raises(Unavailable, match="shard-00001 did not answer"):
            client.topk("plain", QUERIES, 4)
        assert client.topk("plain", QUERIES, 4, allow_partial=True).scan.missing == ("shard-00001",)
        assert client.group_sum("plain", QUERIES, "label", allow_partial=True).scan.missing == ("shard-00001",)
    front.close()


SIZES = [[3, 4, 2], [2, 2, 4]]
SECONDS = 10.0
"""For a share: where other tests run, too, a process that works may be late by seconds."""


@pytest.mark.filterwarnings("ignore")
def test_actors_answer_as_one_engine_and_are_replaced(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'dualform[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    write(tmp_path / "memory", SIZES)
    launch = ray_answerers(
        tmp_path / "memory", "local", "numpy", questions=1, num_cpus=2, object_store_memory=80_000_000
    )
    started, launched = {}, []

    def watched(number):
        launched.append(number)
        started[number] = launch(number)
        return started[number]

    try:
        memory, names = dualform.open(tmp_path / "memory", backend="numpy"), ["a", "b"]
        with memory as one, Fleet(watched, lambda: names, SECONDS) as fleet:
            front = open_front(tmp_path / "memory", fleet, "numpy")
            expected = one.topk("plain", QUERIES, 5)
            answered(front, expected)
            _given_up_in_the_midst(fleet, front, tmp_path / "begun")
            assert answered(front, expected) < SECONDS  # an actor that works on would be replaced
            assert list(launched) == [0, 1]
            with Server(front, "127.0.0.1:0") as server, Client(server.address) as client:
                sums, own = (each.group_sum("plain", QUERIES, by="label") for each in (client, one))
                assert sums.sums.tobytes() == own.sums.tobytes()
                out, own = (
                    each.output("plain", QUERIES, where="label > 1", allow_inexact=True) for each in (client, one)
                )
                assert out.values.tobytes() == own.values.tobytes()
                for number, blow in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
                    actor = started[number]._actor
                    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), blow)
                    began = time.monotonic()
                    with pytest.raises(Unavailable, match="ab"[number]):
                        client.topk("plain", QUERIES, 5)
                    named = time.monotonic() - began
                    assert named < SECONDS + 5
                    assert answered(front, expected) < 30
    finally:
        ray.shutdown()


def _given_up_in_the_midst(fleet, front, begun):
    def gone():
        if begun.exists():
            raise Cancelled("gone")

    with pytest.raises(Cancelled):
        fleet(ShardQuestion(endless, (begun,), front._view.snapshot.moment), [0, 1], gone)


def answered(front, expected) -> float:
    """Seconds until there is an answer, which is whole and right, whatever happens to a process meanwhile."""
    began = time.monotonic()
    while True:
        try:
            found = front.topk("plain", QUERIES, 5)
        except Unavailable:
            assert time.monotonic() - began < 60
            continue
        assert (found.ids.tobytes(), found.flat_scores.tobytes()) == (
            expected.ids.tobytes(),
            expected.flat_scores.tobytes(),
        )
        assert found.scan.missing == ()
        return time.monotonic() - began
