"""Answers that are remembered are those of the memory as it is, and of one snapshot a page."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.errors import Overloaded
from dualform.methods import Answers
from dualform.questions import GroupSum
from dualform_client import Client
from dualform_explorer import memories
from dualform_explorer.memories import Memories, RememberedAnswers
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.explorer.recorded import Training
from tests.explorer.served import Troubled, served


def record(path: Path, seed: int) -> None:
    training = Training(path, seed)
    with training.recorder:
        training.take(5, query_set=True)


def sums(memory: Answers) -> list[float]:
    return memory.group_sum("4", "test/1", by="label").sums[0].tolist()


def test_what_is_still_being_answered_at_the_end_leaves_no_process(tmp_path):
    record(tmp_path / "run", 0)
    with dualform.open(tmp_path / "run") as engine:
        memories = Memories({"run": lambda: Troubled(engine, lambda question: memories.close())})
        assert memories.one("run").sql("SELECT count(*) AS n FROM steps").records() == [{"n": 5}]
        assert engine._sql._child is None


def test_another_training_in_the_same_folder_is_not_answered_for_by_the_first(tmp_path):
    path = tmp_path / "run"
    record(path, 0)
    with dualform.open(path) as engine:
        memory = RememberedAnswers(engine)
        first, snapshot = sums(memory), memory.info().snapshot
        shutil.rmtree(path)
        record(path, 5)
        engine.refresh()
        assert memory.info().snapshot == snapshot
        with dualform.open(path) as own:
            assert sums(memory) == sums(own) != first


def test_a_memory_that_moves_on_amid_a_page_is_named_in_the_place_of_the_answer(tmp_path):
    asked, moved, found = threading.Event(), threading.Event(), []

    def wait(question):
        if isinstance(question, GroupSum) and not moved.is_set():
            asked.set()
            assert moved.wait(30)

    training = Training(tmp_path / "run")
    with training.recorder:
        training.take(3, query_set=True)
        engine = dualform.open(tmp_path / "run")
        opened = Troubled(engine, wait)
        opened.refresh = engine.refresh
        with served({"run": lambda: opened}) as pages:
            thread = threading.Thread(target=lambda: found.append(pages.get("/explore?item=test/1&open=data,training")))
            thread.start()
            assert asked.wait(30)
            training.take(2)
            engine.refresh()
            moved.set()
            thread.join()
            assert found[0].text.count("The memory moved on to newer steps") > 3
            assert "IndexError" not in found[0].text
            assert "data-failure" not in pages.get("/explore?item=test/1&open=data,training").text


def test_a_server_without_room_is_asked_again(memory, monkeypatch):
    monkeypatch.setattr(memories, "_PAUSES", (0.0, 0.0))
    question = GroupSum("4", "shapes/0", ("label",))
    refusals = []

    def full(question):
        if refusals:
            raise refusals.pop()

    refusals += [Overloaded("no room")] * 2
    assert RememberedAnswers(Troubled(memory, full)).ask(question).sums.tolist() == memory.ask(question).sums.tolist()
    refusals += [Overloaded("no room")] * 3
    with pytest.raises(Overloaded):
        RememberedAnswers(Troubled(memory, full)).ask(question)


def test_each_answer_says_its_snapshot_here_and_over_the_wire(memory):
    with Server(memory, ServiceConfig("127.0.0.1:0", sql=True)) as server, Client(server.address, timeout=20) as client:
        for own in (memory, client):
            answers = (
                own.topk("4", "shapes/3"),
                own.group_sum("4", "shapes/3", by="label"),
                own.distribution("4", "shapes/3"),
                own.output("4", "shapes/3"),
                own.contributions("4", "shapes/3", by="label"),
                own.cancellation("label = 1"),
                own.slots(np.arange(2), "sample"),
                own.sql("SELECT 1"),
                own.query_set("shapes"),
                own.previews([1], "shapes"),
                own.verify(),
            )
            assert {one.scan.snapshot for one in answers} == {own.info().snapshot}
