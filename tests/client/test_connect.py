"""A memory by its place: a folder or an address, the same questions and the same answers."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import dualform
from dualform.errors import BadInput, NotAMemory
from dualform_client import AsyncClient, Client, connect
from dualform_service.server import Server


def test_a_folder_and_its_server_give_the_same_answers(small_run):
    query = np.ones((2, 6))
    with dualform.connect(small_run) as folder, Server(folder) as server, dualform.connect(server.address) as served:
        assert (type(folder), type(served)) == (dualform.Engine, Client)
        for ask in (
            lambda memory: memory.topk("0", query).ids.tobytes(),
            lambda memory: memory.output("0", query, where="step < 3").values.tobytes(),
            lambda memory: {name: array.tobytes() for name, array in memory.weights().arrays.items()},
            lambda memory: dict(memory.cancellation("step < 3")),
        ):
            assert ask(folder) == ask(served)


def test_a_text_names_a_folder_as_a_path_does(small_run):
    with connect(str(small_run)) as memory:
        assert memory.info().slots == {"sample": 48}


def test_neither_a_folder_nor_an_address():
    with pytest.raises(BadInput) as caught:
        connect("mnist")
    assert caught.value.message == "'mnist' is neither a folder nor host:port."
    with pytest.raises(NotAMemory, match=r"^There is no folder runs/nowhere\."):
        connect("runs/nowhere")


def test_the_memory_of_a_server_is_not_bounded_from_here(small_run):
    with pytest.raises(BadInput, match=r"limits this process, and 127\.0\.0\.1:1 answers in another") as caught:
        dualform.connect("127.0.0.1:1", ram="2 GB")
    assert (caught.value.field, caught.value.hint) == (
        "ram",
        "Limit the server: dualform serve RUN --ram BYTES.",
    )


def test_connecting_to_a_server_loads_neither_torch_nor_faiss_nor_duckdb(small_run):
    code = (
        "import sys, dualform\n"
        "dualform.connect('127.0.0.1:1').close()\n"
        "print(sorted({'torch', 'faiss', 'duckdb', 'pyarrow'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_without_the_engines_packages_a_folder_names_the_extra_and_a_server_still_answers(small_run):
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['duckdb', 'faiss', 'torch', 'pyarrow']))\n"
        "import dualform\n"
        "dualform.connect('127.0.0.1:1').close()\n"
        "try:\n    dualform.connect(sys.argv[1])\n"
        "except dualform.DualformError as error:\n    print(type(error).__name__, error.hint)"
    )
    told = subprocess.run([sys.executable, "-c", code, str(small_run)], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("MissingPackage pip install 'dualform[cpu]'")


class Best(Dataset):
    """The best slot of each of some queries, as several memories say it."""

    def __init__(self, *memories):
        self.memories = memories

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return [int(memory.topk("0", np.eye(6)[index : index + 1], k=1).ids[0]) for memory in self.memories]


def test_memories_in_a_data_set_are_opened_again_by_workers_that_are_spawned(small_run):
    with dualform.open(small_run) as folder, Server(folder) as server, Client(server.address) as client:
        there = Best(folder, client)
        loader = DataLoader(there, batch_size=None, num_workers=1, multiprocessing_context="spawn")
        assert [*loader] == [there[0], there[1]]


@pytest.mark.parametrize("options", [{"ram": "2 GB"}, {"backend": "numpy", "held_bytes": 1 << 20}])
@pytest.mark.parametrize("several", [False, True])
def test_a_pickled_engine_is_opened_as_it_was(small_run, options, several):
    with (
        dualform.open([small_run] if several else small_run, **options) as engine,
        pickle.loads(pickle.dumps(engine)) as again,
    ):
        assert again.answered_by == engine.answered_by
        assert again.info() == engine.info()
        assert again.sql("SELECT count(*) AS n FROM slots").records() == [{"n": 48}]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_pickled_client_has_the_same_arguments(kind):
    client = kind("127.0.0.1:1/name", timeout=5.0, token="secret")
    assert pickle.loads(pickle.dumps(client)).connection == client.connection
