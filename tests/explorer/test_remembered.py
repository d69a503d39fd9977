"""Answers that are remembered are those of the memory as it is, and of one snapshot a page."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import Overloaded, Unavailable
from dualform.methods import Answers
from dualform.questions import GroupSum
from dualform_client import Client
from dualform_explorer import memories
from dualform_explorer.memories import Memories, OneSnapshot, RememberedAnswers
from dualform_explorer.panels.training import steps_panel
from dualform_explorer.state import State
from dualform_explorer.view import View
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.explorer.served import served


class Training:
    """Records into a folder, as many steps at a time as it is told."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs, self.labels = torch.randn(20, 4), torch.arange(20) % 3
        self.recorder = dualform.Recorder(self.model, self.optimizer, path, quiet=True)

    def take(self, steps: int) -> None:
        for _ in range(steps):
            with self.recorder.step(label=self.labels, sample=torch.arange(20)):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()
                self.optimizer.step()
        self.recorder.flush()


def record(path: Path, seed: int) -> None:
    training = Training(path, seed)
    with training.recorder as recorder:
        training.take(5)
        recorder.query_set("test", training.inputs[:4], label=training.labels[:4])


def sums(memory: Answers) -> list[float]:
    return memory.group_sum("", "test/1", by="label").sums[0].tolist()


def test_what_is_still_being_answered_at_the_end_leaves_no_process(tmp_path):
    record(tmp_path / "run", 0)
    with dualform.open(tmp_path / "run") as engine:
        memories = Memories({"run": lambda: Late(engine, memories.close)})
        assert memories.one("run").sql("SELECT count(*) AS n FROM steps").records() == [{"n": 5}]
        assert engine._sql._child is None


class Late(Answers):
    """Closed just before it answers."""

    def __init__(self, engine, close) -> None:
        self.engine, self.end = engine, close

    def ask(self, question):
        self.end()
        return self.engine.ask(question)

    def close(self) -> None:
        self.engine.close()


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


def test_a_page_is_of_one_snapshot(tmp_path):
    training = Training(tmp_path / "run")
    with training.recorder as recorder:
        training.take(3)
        recorder.query_set("test", training.inputs[:4], label=training.labels[:4])
        recorder.flush()
        with dualform.open(tmp_path / "run") as engine:
            info = engine.info()
            memory = OneSnapshot(engine, info.snapshot)
            state = State("", "test", 1, "", ("label",))
            assert len(steps_panel(View(memory, info, state)).bars) == 3
            training.take(2)
            engine.refresh()
            with pytest.raises(Unavailable, match="moved on to newer steps"):
                steps_panel(View(memory, info, state))
            info = engine.info()
            assert len(steps_panel(View(OneSnapshot(engine, info.snapshot), info, state)).bars) == 5


def test_a_memory_that_moves_on_amid_a_page_is_named_in_the_place_of_the_answer(tmp_path):
    asked, moved = threading.Event(), threading.Event()

    class Waiting(Answers):
        """Answers sums once the memory moved on."""

        def __init__(self, engine) -> None:
            self.engine = engine

        def refresh(self) -> None:
            self.engine.refresh()

        def ask(self, question):
            if isinstance(question, GroupSum) and not moved.is_set():
                asked.set()
                assert moved.wait(30)
            return self.engine.ask(question)

        def close(self) -> None:
            self.engine.close()

    training = Training(tmp_path / "run")
    with training.recorder as recorder:
        training.take(3)
        recorder.query_set("test", training.inputs[:4], label=training.labels[:4])
        recorder.flush()
        opened = Waiting(dualform.open(tmp_path / "run"))
        with served({"run": lambda: opened}) as pages:
            found = []
            thread = threading.Thread(
                target=lambda: found.append(pages.get("/explore?item=test/1&open=data,layers,training,record"))
            )
            thread.start()
            assert asked.wait(30)
            training.take(2)
            opened.refresh()
            moved.set()
            thread.join()
            assert found[0].text.count("The memory moved on to newer steps") > 3
            assert "IndexError" not in found[0].text
            assert "data-failure" not in pages.get("/explore?item=test/1&open=data,layers,training,record").text


class Full(Answers):
    """Has no room for so many questions, then answers."""

    def __init__(self, times: int) -> None:
        self.times = times

    def ask(self, question):
        self.times -= 1
        if self.times >= 0:
            raise Overloaded("no room")
        return "answer"

    def close(self) -> None:
        pass


def test_a_server_without_room_is_asked_again(monkeypatch):
    monkeypatch.setattr(memories, "_PAUSES", (0.0, 0.0))
    question = GroupSum("0", "test/0", ("label",))
    assert RememberedAnswers(Full(2)).ask(question) == "answer"
    with pytest.raises(Overloaded):
        RememberedAnswers(Full(3)).ask(question)


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
