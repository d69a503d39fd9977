"""The blocks of docs/wire.md run as they stand, and what the page says of errors and sizes is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from torch import nn

import dualform
from dualform_proto.errors import STATUS_CODES
from dualform_proto.v1 import dualform_pb2 as pb, dualform_pb2_grpc
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
BLOCKS = {
    name: (kind, code)
    for name, kind, code in re.findall(r"<!-- tested: (\w+) -->\n```(\w+)\n(.*?)```", PAGE, re.DOTALL)
}
ADDRESS = "127.0.0.1:50051"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """The memory of a network like that of the README."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("wire") / "run"
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        for _ in range(4):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(25, 64)).square().sum().backward()
                optimizer.step()
        recorder.query_set("test", torch.randn(20, 64))
    return path


@pytest.fixture(scope="module")
def server(recorded) -> Iterator[Server]:
    with dualform.open(recorded) as memory, Server(memory) as server:
        yield server


def shell(name: str, server: Server) -> str:
    """What the commands of a block print."""
    kind, code = BLOCKS[name]
    assert kind == "sh"
    assert ADDRESS in code
    done = subprocess.run(
        ["sh", "-e", "-c", code.replace(ADDRESS, server.address)],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def python(server) -> Iterator[dict[str, Any]]:
    """The names of the page's blocks of Python, run one after another; `out` has what each printed."""
    names: dict[str, Any] = {"out": {}}
    for name, (kind, code) in BLOCKS.items():
        if kind == "python":
            printed: list[str] = []
            names["print"] = lambda *words, to=printed: to.append(" ".join(map(str, words)))
            exec(compile(code.replace(ADDRESS, server.address), f"the block {name}", "exec"), names)
            names["out"][name] = printed
    yield names
    names["channel"].close()


def test_a_first_look(server):
    printed = shell("look", server)
    assert "dualform.v1.Memory/TopK\n" in printed
    assert "grpc.reflection.v1.ServerReflection/ServerReflectionInfo\n" in printed
    assert '"optimizer": "SGD"' in printed
    assert '"status": "SERVING"' in shell("health", server)
    assert '"dtype": "ELEMENT_TYPE_INT64"' in printed


def test_numbers_errors_and_metadata(python, server):
    with dualform.connect(server.address) as memory:
        hits = memory.topk("2", [[0.5] * 32, [1.0] * 32], k=5)
    assert list(python["slots"]) == hits.ids.tolist()
    assert list(python["scores"]) == hits.flat_scores.tolist()
    assert len(python["slots"]) == 10
    assert python["out"]["errors"] == ["StatusCode.NOT_FOUND not_found There is no layer 'none'. Layers: 0, 2."]
    assert python["out"]["metadata"] == ["report-17"]


def test_a_memory_of_several_is_named(recorded):
    (key,) = re.findall(r"^\| `([\w-]*memory)` \|", PAGE, re.MULTILINE)
    with (
        dualform.open(recorded) as memory,
        Server({"one of two": memory, "other": memory}) as several,
        grpc.insecure_channel(several.address) as channel,
    ):
        stub = dualform_pb2_grpc.MemoryStub(channel)
        answer = stub.Info(pb.InfoRequest(), metadata=[(key, "one%20of%20two")], timeout=60)
        assert answer.optimizer == "SGD"
        with pytest.raises(grpc.RpcError) as caught:
            stub.Info(pb.InfoRequest(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_every_reason_stands_with_its_status():
    told = {}
    for statuses, reasons in re.findall(r"^\| ([A-Z_, ]+) \| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE):
        told.update(dict.fromkeys(re.findall(r"`(\w+)`", reasons), statuses.split(", ")))
    assert told.keys() == {error.code for error in STATUS_CODES}
    for error, status in STATUS_CODES.items():
        assert status.name in told[error.code], error.code


def test_sizes_and_bounds_are_those_of_a_server():
    config = ServiceConfig()
    assert f"| {config.request_bytes >> 20} MiB at most, `dualform serve --request-bytes` |" in PAGE
    assert f"| {config.answer_bytes >> 20} MiB at most, `dualform serve --answer-bytes` |" in PAGE
    assert f"one of them takes {config.connection_calls} calls at once" in " ".join(PAGE.split())
    assert (config.deadline, config.write_seconds) == (600, 10)
    assert "(`--deadline`, ten minutes)" in PAGE
