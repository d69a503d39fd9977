"""Places that cannot be written or read, and interruptions: a message and a code, and no traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dualform_client.cli.help import INTERRUPTED

DEVICE = Path("/dev/null")


@pytest.fixture
def places(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("not to be lost")
    return {
        "missing folder": tmp_path / "missing" / "x",
        "folder": tmp_path / "folder",
        "in a file": tmp_path / "file" / "x",
        "a device": DEVICE,
        "nothing": "",
    }


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("missing folder", "There is no folder "),
        ("folder", "folder is not a regular file."),
        ("in a file", "file is a file."),
        ("a device", "/dev/null is not a regular file."),
        ("nothing", ". is not a regular file."),
    ],
)
def test_weights_are_not_written_where_they_cannot_be(dualform, folder, places, place, says):
    told = dualform("weights", folder, "--out", places[place], "--force", "--json")
    error = told.json["error"]
    assert told.err == ""
    assert says in error["message"]
    assert (told.code, error["code"]) == (1, "folder")
    assert (places["folder"].parent / "file").read_text() == "not to be lost"
    assert [*places["folder"].iterdir()] == []
    assert DEVICE.is_char_device()


COMMANDS = {
    "copy": ["copy", "RUN"],
    "repair": ["check", "DAMAGED", "--repair", "--out"],
    "demo": ["demo", "--out"],
    "study": ["study", "limits", "--out"],
    "token": ["token", "alice", "--file"],
}


@pytest.mark.parametrize("place", ["in a file", "folder"])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_writes_says_where_it_cannot(dualform, folder, places, place, command, tmp_path):
    if place == "folder" and command[0] in ("demo", "study"):
        pytest.skip("an empty folder is one that they write into")
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    shutil.rmtree(damaged / "probes")
    words = [{"RUN": folder, "DAMAGED": damaged}.get(word, word) for word in command]
    told = dualform(*words, places[place], "--json")
    assert told.code in (1, 2)
    assert told.json["error"]["code"] not in ("internal", "usage") or command[0] == "token"
    assert "Traceback" not in told.err
    assert (tmp_path / "file").read_text() == "not to be lost"


ASKED = ["topk", "--layer", "2", "--query", "test"]
CONTENTS = [b"", b"null", b"[1,2]", bytes(range(256))]
EMPTIED = ["memory.json", "shard-00000/slots.duckdb", "weights/initial.safetensors", "probes/test/labels.npy"]


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (command, place)
        for number, command in enumerate([["info"], ["check"], ["copy"], ["verify"], ASKED])
        for place in (number % 4, (number + 2) % 4)
    ],
)
def test_a_file_of_a_memory_that_holds_something_else_is_damage(dualform, folder, tmp_path, place, command):
    name, content = EMPTIED[place], CONTENTS[(place + len(command[0])) % len(CONTENTS)]
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    words = [tmp_path / "copy"] if command[0] == "copy" else command[1:]
    told = dualform(command[0], tmp_path / "run", *words, "--json")
    assert told.code == 1
    if command[0] == "check":
        assert name.rpartition("/")[2] in told.json["problems"][0]
    else:
        assert told.json["error"]["code"] == "damaged"
        assert name.rpartition("/")[2] in told.json["error"]["message"]


INTERRUPTED_WHILE_LOADING = """
import sys
module = sys.argv[1]
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == module:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from dualform_client.command import run
sys.argv = ["dualform", "info", "runs/none"]
run()
"""


@pytest.mark.parametrize("module", ["click", "dualform_client.cli.inspection"])
def test_ctrl_c_while_the_command_is_loaded_is_no_traceback(module):
    command = [sys.executable, "-c", INTERRUPTED_WHILE_LOADING, module]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout, told.stderr.strip()) == (INTERRUPTED, "", "error: Interrupted.")
