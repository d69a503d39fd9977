"""A fork copies one thread, and every lock as others hold it: what was opened before is refused, what is opened anew
answers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import Forked, RecordingError
from dualform.query.engine import Engine
from dualform.store import locks as locks_file, query_sets, shard
from tests.store.small_memory import write
from tests.trainings import learn

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
CONTAINERS = (dict, list, tuple, deque, types.MethodType, types.MappingProxyType, threading.Condition, threading.Event)
LOCKS = (type(threading.Lock()), type(threading.RLock()))
QUERIES = np.ones((2, 6), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("forks") / "memory"
    write(path, [5, 6, 7])
    return path


def in_a_fork(work: Callable[[], None]) -> None:
    """Fails where the child does not come through within a minute."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    if child.exitcode is None:
        child.kill()
        child.join()
    assert child.exitcode == 0


def locks_of(*roots: Any) -> list[Any]:
    """Every lock of ours within reach of some objects, or of the modules of dualform."""
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("dualform")]
    waiting, seen, found = [*roots, *modules], set[int](), []
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, LOCKS):
            found.append(one)
        elif isinstance(one, CONTAINERS) or type(one).__module__.startswith("dualform"):
            waiting += gc.get_referents(one)
    own_lock = gc.get_referents(vars(locks_file._changed))  # what a fork waits for is never held while it happens
    return [lock for lock in found if not any(lock is other for other in own_lock)]


@contextmanager
def held_by_a_thread(locks: list[Any]) -> Iterator[None]:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        over.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    try:
        yield
    finally:
        over.set()
        thread.join()


def asked(engine: Engine) -> list[Any]:
    best = engine.topk("layer-0", QUERIES, k=3, where="label < 9")
    sums = engine.group_sum("layer-0", "test/0", by="label")
    rows = engine.sql("SELECT count(*) AS n FROM slots")
    return [best.ids.tolist(), sums.sums.tolist(), rows["n"].tolist()]


def test_with_every_lock_held_a_fork_refuses_what_was_opened_and_answers_what_it_opens(folder):
    with dualform.open(folder, ram="2 GB") as engine:
        wanted = asked(engine)
        locks = locks_of(engine)
        assert any(lock is engine._refreshing for lock in locks)
        assert any(lock is query_sets._PARSING for lock in locks)

        def child() -> None:
            refused: list[Callable[[], object]] = [
                lambda: asked(engine), lambda: engine.sql("SELECT 1"), lambda: engine.keys("layer-0"), engine.refresh,
            ]  # fmt: skip
            for ask in refused:
                with pytest.raises(
                    Forked,
                    match=r"was opened before this process was forked.* Call dualform\.open in the child.* or "
                    r"start processes by spawn",
                ):
                    ask()
            engine.close()
            assert str(folder) in repr(engine)
            with dualform.open(folder) as own:
                assert asked(own) == wanted

        # A fork waits until no query set is parsed, as another test has it.
        with held_by_a_thread([lock for lock in locks if lock is not query_sets._PARSING]):
            in_a_fork(child)
        assert asked(engine) == wanted


def test_the_parent_goes_on_where_its_fork_closed_the_engine(folder):
    """What runs SQL is the parent's child, and not for the fork to end."""
    with dualform.open(folder) as engine:
        wanted = asked(engine)
        in_a_fork(engine.close)
        assert engine._sql._child is not None
        assert engine._sql._child.process.poll() is None
        assert asked(engine) == wanted


def test_a_fork_waits_for_what_would_leave_duckdb_locked():
    done, inside = [], threading.Event()

    def work() -> None:
        with locks_file.held_back():
            inside.set()
            time.sleep(0.3)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if not child:
        os._exit(0 if done and locks_file.forked() and not locks_file._inside else 1)
    assert done == [True]
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert not locks_file.forked()


def test_a_fork_of_whoever_is_inside_waits_no_longer_than_it_must_and_leaves_nothing_to_wait_for(monkeypatch):
    monkeypatch.setattr(locks_file, "MOST_SECONDS", 0.1)
    with locks_file.held_back():
        child = os.fork()
    if not child:
        os._exit(0 if locks_file._inside == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert locks_file._inside == 0


def test_forks_wait_while_a_file_of_duckdb_is_open(folder):
    path = next(folder.glob("shard-*")) / shard.FILE
    with shard.opened(path):
        assert locks_file._inside == 1
    with shard._writing(path):
        assert locks_file._inside == 1
    assert locks_file._inside == 0


def test_forks_wait_while_a_query_set_is_parsed(folder, monkeypatch):
    inside, parse = [], np.lib.format.read_array_header_1_0

    def parsed(*args: Any, **named: Any) -> Any:
        inside.append(locks_file._inside)
        return parse(*args, **named)

    monkeypatch.setattr(query_sets.np.lib.format, "read_array_header_1_0", parsed)
    with dualform.open(folder) as engine:
        engine.query_set("test", "layer-0")
    assert inside
    assert set(inside) == {1}


def test_a_fork_scores_without_the_threads_that_openmp_had():
    """OpenMP waits for its threads for ever in a fork of a thread that has used them."""
    script = """
import os, signal, faiss, numpy as np, torch
from dualform.query.score.backends import choose
torch.set_num_threads(2); faiss.omp_set_num_threads(2)
keys, queries = np.ones((20_000, 64), np.float32), np.ones((64, 64), np.float32)

def ask(own):
    for asked in (queries, queries[:2]):  # few are not multiplied as a block
        assert (own.scores(keys, asked) == 64).all()
        if hasattr(own, "top"):
            assert (own.top(keys, asked, 3)[0] == 64).all()

parents = [choose("torch"), choose("faiss")]
for parent in parents:
    ask(parent)
child = os.fork()
if not child:
    signal.alarm(60)
    for own in (*parents, choose("torch"), choose("faiss")):
        ask(own)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment)


def trained(tmp_path: Path) -> tuple[dualform.Recorder, Callable[[dualform.Recorder], None]]:
    """A recorder of a network, and what trains that for a step of two slots."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(recorder: dualform.Recorder) -> None:
        with recorder.step():
            learn(optimizer, model(torch.ones(2, 3)).sum())

    return dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True), train


def test_a_recorder_is_of_the_process_that_records_wherever_it_was_made(tmp_path):
    """As launchers have it that make all they need, and fork what trains."""
    recorder, train = trained(tmp_path)

    def child() -> None:
        with recorder:
            train(recorder)

    in_a_fork(child)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().slots == {"sample": 2}


def test_a_recorder_leaves_its_forks_alone(tmp_path):
    made, train = trained(tmp_path)
    with made as recorder:
        train(recorder)

        def child() -> None:
            for say in (lambda: train(recorder), recorder.flush):
                with pytest.raises(RecordingError, match="was called in a fork of the recording process"):
                    say()
            recorder.__exit__(None, None, None)

        in_a_fork(child)
        train(recorder)
    with dualform.open(tmp_path / "m") as memory:
        assert memory.info().slots == {"sample": 4}
