"""Several memories behind one server: which one a call asks, what each says of its health, and what they share."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.errors import BadInput, NotAMemory, NotFound, Unauthenticated
from dualform.store.files.ram_budget import RamBudget
from dualform_client import AsyncClient, Client
from dualform_client.client import is_serving
from dualform_service.memories import named, opening
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
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


def test_a_folder_that_is_gone_shows_in_health_and_one_that_is_back_too(tmp_path):
    run = tmp_path / "run"
    small_memory.write(run, [4])
    with dualform.open(run) as memory, Server(memory, QUICK) as server:
        assert is_serving(server.address)
        shutil.move(run, tmp_path / "elsewhere")
        until(lambda: not is_serving(server.address))
        shutil.move(tmp_path / "elsewhere", run)
        until(lambda: is_serving(server.address))


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


def test_a_memory_that_grows_is_seen_though_it_had_ended(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    small_memory.write(run, [4])
    small_memory.write(other, [4, 4])
    with dualform.open(run) as memory, Server({"run": memory}, QUICK) as server, Client(server.address) as client:
        assert list(client.info().slots.values()) == [4]
        time.sleep(0.1)
        shutil.rmtree(run)
        shutil.move(other, run)
        until(lambda: list(client.info().slots.values()) == [8])
