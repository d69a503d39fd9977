"""Several memories behind one server: which one a call asks, what each says of its health, and what they share. What is
said of a damaged one names files within it, and nothing of where it lies.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import grpc
import numpy as np
import pytest

import dualform
from dualform.errors import BadInput, Damaged, FolderError, NotAMemory, NotFound, Unauthenticated
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
from dualform.store.files.ram_budget import RamBudget
from dualform_client import AsyncClient, Client
from dualform_client.client import is_serving
from dualform_proto.calls import call_of
from dualform_proto.errors import from_status
from dualform_service import handlers
from dualform_service.memories import named, opening
from dualform_service.scheduling import Deadline
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.reliability import report, soaking
from tests.service.canned import INFO, Canned
from tests.service.held_engine import until
from tests.store import small_memory

NAMES = ("a", "b c/ü%日本")
QUICK = ServiceConfig("127.0.0.1:0", follow=0.02)


def canned(steps):
    engine = Canned()
    engine.contents = replace(INFO, steps=steps)
    return engine


@pytest.fixture
def engines():
    return {name: canned(steps) for steps, name in enumerate(NAMES, 10)}


@pytest.fixture
def several(engines):
    with Server(engines, QUICK) as server:
        yield server


@pytest.mark.parametrize("name", NAMES)
async def test_each_is_asked_by_its_name(several, engines, name):
    with Client(f"{several.address}/{name}") as client:
        assert client.info().steps == 10 + NAMES.index(name)
    async with AsyncClient(f"{several.address}/{name}") as asking:
        assert (await asking.info()).steps == 10 + NAMES.index(name)
    with dualform.connect(f"{several.address}/{name}") as served:
        served.topk("fc", np.ones(3))
    assert len(engines[name].asked) == 3
    assert not [one for other, engine in engines.items() if other != name for one in engine.asked]


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("", BadInput, r"the call does not name one\. Memories: a, b c/ü%日本\. Ask at host:port/NAME"),
        *((name, NotFound, "This server does not serve a memory") for name in ("c", "../a", "a/", "x" * 5000)),
    ],
)
def test_a_call_that_names_none_of_several_is_refused(several, name, kind, says):
    with Client(f"{several.address}{name and '/'}{name}") as client, pytest.raises(kind, match=says):
        client.info()


@pytest.mark.parametrize("name", ["", "run"])
def test_the_only_one_needs_no_name(engine, name):
    with Server({"run": canned(3)}) as server, Client(f"{server.address}/{name}") as client:
        assert client.info().steps == 3
    nameless = pytest.raises(NotFound, match="It serves one memory, without a name")
    with Server(engine) as server, Client(f"{server.address}/run") as client, nameless:
        client.info()


def test_a_wrong_token_learns_no_names(engines):
    with Server(engines, ServiceConfig("127.0.0.1:0", token="right")) as server:
        for name in ("", "a", "c"):
            with Client(f"{server.address}/{name}", token="wrong") as client, pytest.raises(Unauthenticated) as told:
                client.info()
            assert "The token is wrong." in str(told.value)


def test_two_folders_of_one_name_are_refused():
    assert named([Path("x/a/"), Path("b")]) == {"a": Path("x/a"), "b": Path("b")}
    with pytest.raises(BadInput, match="have the same name 'a'"):
        named([Path("x/a"), Path("y/a")])


def test_health_is_each_memorys_own(several, engines):
    both = [f"{several.address}/{name}" for name in NAMES]
    assert is_serving(several.address)
    assert all(map(is_serving, both))
    with pytest.raises(NotFound):
        is_serving(f"{several.address}/c")

    def gone():
        raise NotAMemory("gone")

    for engine in engines.values():
        engine.refresh = gone
        until(lambda: [is_serving(one) for one in both] != [True, True])
        if engine is engines["a"]:
            assert [is_serving(one) for one in both] == [False, True]
            assert is_serving(several.address)
    until(lambda: not is_serving(several.address))
    del engines["a"].refresh
    until(lambda: is_serving(both[0]))
    assert is_serving(several.address)


def test_all_draw_on_one_budget(tmp_path, monkeypatch):
    made = []
    shared = RamBudget.shared
    monkeypatch.setattr(RamBudget, "shared", lambda most: made.append(most) or shared(most))
    runs = [tmp_path / name for name in "ab"]
    open_one = opening(4 * 10**9, several=True)
    for run in runs:
        small_memory.write(run, [4])
    engines = [open_one(run) for run in runs]
    assert made == [4 * 10**9]
    budgets = {id(engine._budget) for engine in engines}
    assert len(budgets) == 1
    # What the process held counts once: a second memory takes its own tables' bytes.
    assert engines[0]._budget._taken < 2 * 10**9
    for engine in engines:
        engine.close()


def test_a_folder_that_is_gone_shows_in_health_and_one_that_has_grown_is_seen_though_it_had_ended(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    small_memory.write(run, [4])
    small_memory.write(other, [4, 4])
    with dualform.open(run) as memory, Server({"run": memory}, QUICK) as server, Client(server.address) as client:
        assert list(client.info().slots.values()) == [4]
        assert is_serving(server.address)
        shutil.rmtree(run)
        until(lambda: not is_serving(server.address))
        shutil.move(other, run)
        until(lambda: list(client.info().slots.values()) == [8])
        until(lambda: is_serving(server.address))


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


CLEAR = {grpc.StatusCode.DATA_LOSS, grpc.StatusCode.FAILED_PRECONDITION}
"""What may be said of it: which file is damaged, or what a training that was cut off lacks."""
DAMAGE = [
    Path.unlink,
    lambda file: file.write_bytes(file.read_bytes()[:-1]),
    lambda file: file.write_bytes(bytes(byte ^ 0x55 for byte in file.read_bytes())),
]


@pytest.mark.soak
def test_no_answer_says_where_the_memory_lies(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "dualform.service")
    folder = tmp_path / HOME / "run"
    small_memory.write(folder, [20, 20, 20] if soaking() else [20])
    dualform.PreviewSet.texts(["a text"]).store(folder, "first")
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
