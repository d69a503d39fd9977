"""What a server says of a damaged memory names files within it, and nothing of where it lies."""

from __future__ import annotations

import logging
import shutil
from itertools import cycle, product
from pathlib import Path

import grpc
import numpy as np
import pytest

import dualform
from dualform.errors import Damaged, FolderError, NotAMemory
from dualform.questions import (
    GroupSum,
    Inventory,
    NetworkWeights,
    Output,
    PreviewLookup,
    QuerySetLookup,
    SlotLookup,
    TopK,
    Verification,
)
from dualform_client.client import is_serving
from dualform_proto.calls import call_of
from dualform_proto.errors import from_status
from dualform_service import handlers
from dualform_service.scheduling import Deadline
from dualform_service.server import Server
from tests.reliability import report, soaking
from tests.store import small_memory

HOME = "where it lies"
QUERY = np.ones((1, 6), np.float32)
QUESTIONS = [
    Inventory(),
    TopK("layer-0", QUERY, k=3),
    TopK("layer-0", QUERY, k=3, where="dataset = 'first'", by=("label",)),
    GroupSum("layer-0", QUERY, by=("label",)),
    Output("layer-0", QUERY),
    NetworkWeights(),
    SlotLookup(np.arange(3), "sample"),
    QuerySetLookup("test", "layer-0"),
    PreviewLookup(np.arange(3), "first"),
    Verification(),
]


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "memory"
    small_memory.write(path, [20, 20, 20] if soaking() else [20])
    dualform.PreviewSet.texts(["a text"]).store(path, "first")
    return path


def _gone(file: Path) -> None:
    file.unlink()


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _altered(file: Path) -> None:
    file.write_bytes(bytes(byte ^ 0x55 for byte in file.read_bytes()))


CLEAR = {grpc.StatusCode.DATA_LOSS, grpc.StatusCode.FAILED_PRECONDITION}
"""What may be said of it: which file is damaged, or what a training that was cut off lacks."""
DAMAGE = [_gone, _cut, _altered]


@pytest.mark.soak
def test_no_answer_says_where_the_memory_lies(memory, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "dualform.service")
    folder = tmp_path / HOME / "run"
    shutil.copytree(memory, folder)
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "memory.json"]
    told, codes = list[dualform.errors.DualformError](), set[grpc.StatusCode]()
    damages = list(product(files, DAMAGE)) if soaking() else list(zip(files, cycle(DAMAGE), strict=False))
    for file, damage in damages:
        content = file.read_bytes()
        with (
            dualform.open(folder) as engine,
            Server(engine) as server,
            grpc.insecure_channel(server.address) as channel,
        ):
            damage(file)
            for question in QUESTIONS:
                call = call_of(question)
                ask = channel.unary_unary(f"/dualform.v1.Memory/{call.method}")
                try:
                    ask(call.question.encode(question).SerializeToString(), timeout=60)
                except grpc.RpcError as error:
                    sent = [error.details().encode(), *(str(pair).encode() for pair in error.trailing_metadata())]
                    codes.add(error.code())
                    assert not [part for part in sent if HOME.encode() in part or str(tmp_path).encode() in part]
                    told.append(from_status(error.code(), error.details(), error.trailing_metadata(), "there"))
            assert is_serving(server.address), (file, damage)
        file.write_bytes(content)
    damaged = [error for error in told if isinstance(error, Damaged)]
    assert damaged
    assert codes <= CLEAR
    within = [str(file.relative_to(folder)) for file in files]
    assert all(any(name in error.message for name in within) for error in damaged), {str(e) for e in damaged}
    assert str(folder) in caplog.text
    report(
        "files of a served memory gone, cut or altered, and all kinds of questions asked",
        seed=0,
        count=len(damages),
        outcome=f"{len(damaged)} questions refused by the file's name within the memory, no path of the server told; "
        "it serves on",
    )


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (
            Damaged("/srv/my runs/a/shard-00000/keys.bin was altered.", hint="See /srv/my runs/a/memory.json."),
            "shard-00000/keys.bin was altered.",
            "See memory.json.",
        ),
        (NotAMemory("/srv/my runs/a has no memory.", hint="Look."), "The memory's folder cannot be read", "Look."),
        (FolderError("disk full: /srv/x", hint="see '/etc/fstab'"), "The memory's folder", "The server's log says why"),
        (
            Damaged("shard-00000 has 3 rows."),
            "shard-00000 has 3 rows.",
            "The server's log says why, under the request r",
        ),
    ],
)
def test_paths_are_cut_where_the_memory_begins(error, message, hint):
    told = handlers.as_ours("TopK", error, Deadline(None, 60.0), "r")
    assert type(told) is type(error)
    assert told.message.startswith(message)
    assert told.hint.startswith(hint)
