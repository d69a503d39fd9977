"""Answers of a real memory to many askers at once, over gRPC: the bits that each would have got alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dualform
from dualform.errors import DualformError
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.questions import GroupSum, Output, QuerySetExamples, SlotKeys, TopK, Vectors
from dualform_client import Client
from dualform_service.server import Server
from dualform_service.servicer import Question, parts
from dualform_service.settings import ServiceConfig
from tests.service.held_engine import same
from tests.store import small_memory

WIDTHS = {"layer-0": 6, "layer-1": 5}
SLOTS = 60


class Slow:
    """An engine whose questions take a while, so that others come meanwhile, on a busy machine, too."""

    def __init__(self, engine: Any, seconds: float = 0.005) -> None:
        self.engine, self.seconds, self.scans = engine, seconds, 0

    def ask(
        self, question: Question, cancelled: Callable[[], bool] | None = None, bounds: QuestionBounds = UNBOUNDED
    ) -> Any:
        time.sleep(self.seconds)
        self.scans += 1
        return self.engine.ask(question, cancelled, bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "run"
    small_memory.write(path, [20, 20, 20])
    return path


@pytest.fixture(scope="module")
def engine(memory: Path) -> Iterator[Any]:
    with dualform.open(memory) as engine:
        yield engine


def questions(count: int) -> list[Question]:
    """Of many kinds, some of them wrong: a width, a row, a slot, a query set, a column, a mask that leaves nothing."""
    rng = np.random.default_rng(3)
    wheres = [None, "label = 3", "dataset = 'first'", "seen", "slot < 0", "nothing = 1"]
    made: list[Question] = []
    for i in range(count):
        layer = ("layer-0", "layer-1")[i % 2]
        width = WIDTHS[layer] + (i % 13 == 0)
        queries = [
            Vectors(rng.normal(size=(1 + i % 3, width)).astype(np.float32)),
            QuerySetExamples("test" if i % 17 else "no-such", (i % 12 if i % 7 else 99,)),
            SlotKeys((i % SLOTS, 5) if i % 11 else (SLOTS,)),
        ][rng.integers(3)]
        where = wheres[rng.integers(len(wheres)) if i % 2 else 0]
        score = ("dot", "abs")[int(rng.integers(2))]
        by = [(), ("label",), ("dataset", "label")][rng.integers(3)]
        made.append(
            [
                TopK(layer, queries, int(rng.integers(1, 4)), where, by, score),
                TopK(layer, queries, score=score),
                GroupSum(layer, queries, by or ("step",), where),
                Output("layer-0", QuerySetExamples("test", (i % 12,)), where, allow_inexact=i % 3 > 0),
            ][rng.integers(4)]
        )
    return made


def outcome(ask: Callable[[Question], Any], question: Question) -> Any:
    try:
        return ask(question)
    except DualformError as error:
        return error


def test_every_asker_gets_the_bits_and_the_errors_that_it_would_get_alone(engine):
    asked = questions(240)
    rights = [outcome(engine.ask, question) for question in asked]
    kinds = {type(right).__name__ for right in rights}
    assert kinds >= {"Hits", "GroupSums", "Outputs", "BadInput", "EmptyMask", "Inexact", "NotFound"}
    slow = Slow(engine)
    with Server(slow) as server, Client(server.address) as client, ThreadPoolExecutor(48) as pool:
        got = list(pool.map(lambda question: outcome(client.ask, question), asked))
    for one, right in zip(got, rights, strict=True):
        if isinstance(right, DualformError):
            assert (type(one), str(one)) == (type(right), str(right))
        else:
            assert same(one, right)


def test_many_askers_of_one_kind_take_few_scans(engine):
    slow, query = Slow(engine, 0.05), np.ones((1, 5), np.float32)
    right = engine.topk("layer-1", query)
    with Server(slow) as server, Client(server.address) as client, ThreadPoolExecutor(32) as pool:
        got = list(pool.map(lambda _: client.topk("layer-1", query), range(160)))
    assert all(same(one, right) for one in got)
    assert slow.scans < 80


COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@settings(deadline=None, max_examples=12)
@given(counts=COUNTS, k=st.integers(1, 9), by=st.sampled_from([(), ("label",)]), rows=st.randoms(use_true_random=False))
def test_the_parts_of_a_joined_question_are_the_answers_to_its_parts(engine, counts, k, by, rows):
    for kind in (
        lambda queries: TopK("layer-0", queries, k, "label < 7", by),
        lambda queries: GroupSum("layer-0", queries, by or ("dataset",)),
        lambda queries: GroupSum("layer-1", queries, ("label",), score="abs"),
        lambda queries: Output("layer-0", queries, allow_inexact=True),
    ):
        asked = [kind(QuerySetExamples("test", tuple(rows.randrange(12) for _ in range(count)))) for count in counts]
        for one, question in zip(parts(engine.ask(asked[0].joined(asked[1:])), counts), asked, strict=True):
            if getattr(question, "score", None) == "abs":  # to the precision of these sums
                np.testing.assert_allclose(one.sums, engine.ask(question).sums, rtol=1e-6)
            else:
                assert same(one, engine.ask(question))


def test_an_answer_is_of_the_snapshot_that_it_names_while_the_memory_grows(tmp_path):
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    queries = rng.normal(size=(8, 5)).astype(np.float32)
    writer = small_memory.open_writer(tmp_path / "run")
    writer.append(small_memory.batch(rng, 0, 20, inputs))
    writer.commit()
    rights, got, done = {}, [], threading.Event()
    with dualform.open(tmp_path / "run") as engine:
        slow = Slow(engine)
        rights[engine.info().snapshot] = [engine.topk("layer-1", query) for query in queries]

        def ask(i: int) -> None:
            with Client(server.address) as client:
                while not done.is_set():
                    got.append((i, client.topk("layer-1", queries[i])))

        with Server(slow, ServiceConfig("127.0.0.1:0", follow=600)) as server, ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask, i) for i in range(8)]
            for step in range(1, 4):
                seen = len(got)
                while len(got) < seen + 16:
                    time.sleep(0.001)
                writer.append(small_memory.batch(rng, step, 20, inputs))
                writer.commit()
                with dualform.open(tmp_path / "run") as fresh:
                    rights[fresh.info().snapshot] = [fresh.topk("layer-1", query) for query in queries]
                engine.refresh()
            done.set()
            for one in asking:
                one.result()
    writer.abandon()
    assert len({answer.scan.snapshot for _, answer in got}) >= 3
    for i, answer in got:
        right = rights[answer.scan.snapshot][i]
        assert same(answer, right)
        assert answer.scan.slots_scanned == right.scan.slots_scanned
