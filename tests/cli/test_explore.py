"""dualform explore: what it says, and what it refuses before it begins."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from PIL import Image

from dualform import open as open_memory
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig


def test_it_says_its_address_and_ends_with_ctrl_c(folder):
    command = [sys.executable, "-m", "dualform_client.cli", "explore", str(folder), "--address", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            with urllib.request.urlopen(url, timeout=60) as page:
                assert "test" in page.read().decode()
        finally:
            os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--address", "0.0.0.0:0"], "0.0.0.0:0 can be reached from other machines, and no token is asked for."),
        (["--address", "nowhere"], "nowhere"),
        (["--root-path", "explorer"], "--root-path is 'explorer'."),
        (["--access", "none.txt"], "The token file none.txt cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(dualform, folder, arguments, message):
    told = dualform("explore", folder, *arguments)
    assert told.code == 2
    assert message in told.err


@pytest.mark.parametrize("command", [["explore"], ["serve", "--address", "127.0.0.1:0", "--explore"]], ids=" ".join)
def test_an_address_that_is_taken_is_refused(dualform, folder, command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        given = ["--address"] if command == ["explore"] else []
        told = dualform(command[0], folder, *command[1:], *given, address)
    assert (told.code, told.out) == (2, "")
    assert f"Nothing can listen at {address}" in told.err


def test_without_its_extra_the_command_names_it(folder):
    code = "import sys; sys.modules['starlette'] = None; from dualform_client.cli import main; main(sys.argv[1:])"
    told = subprocess.run([sys.executable, "-c", code, "explore", str(folder)], capture_output=True, text=True)
    assert "the extra [explore] brings it" in told.stderr
    assert "Traceback" not in told.stderr


def test_predictions_are_exported_to_one_file_that_is_replaced_only_by_force(dualform, folder, tmp_path):
    """From a server as from its folder."""
    out = tmp_path / "page.html"
    out.write_text("mine")
    asked = ("explore", folder, "--export", out, "--item", "test/0", "--without", "label:1")
    told = dualform(*asked)
    hint = "hint: Replace it with --force, or give another --export."
    assert (told.code, told.err, out.read_text()) == (1, f"error: {out} exists.\n{hint}\n", "mine")
    told = dualform(*asked, "--force", "--json").json
    size = out.stat().st_size
    assert told == {"out": str(out), "bytes": size, "items": ["test/0"], "without": ["label 1"], "failed": 0}
    assert list(tmp_path.iterdir()) == [out]
    here = out.read_text()
    assert here.startswith("<!doctype html>")
    assert f"<title>{folder.name} · dualform</title>" in here
    with open_memory(folder) as engine, Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        told = dualform("explore", server.address, *asked[2:], "--force")
        there = out.read_text().replace(server.address, folder.name)
    assert (told.code, told.out.startswith(f"{out}: test/0"), told.out.endswith(" MiB\n")) == (0, True, True)
    took = r"<dt>answered</dt><dd>in <data [^>]*>[^<]*</data>"
    assert re.sub(took, "", here) == re.sub(took, "", there)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}", "--export", "{}/page.html"], "--export takes one TARGET."),
        (["--item", "test/0"], "Without --export FILE there can be no --item."),
        (["--export", "{}/page.html", "--item", "test/999999"], "The query set test has no example '999999'"),
        (["--export", "{}/page.html", "--without", "dataset:none"], "There is no dataset 'none'."),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_no_file(dualform, folder, tmp_path, arguments, message):
    told = dualform("explore", folder, *(own.format(tmp_path) for own in arguments))
    assert told.code == 2
    assert message in told.err
    assert list(tmp_path.iterdir()) == []


PICTURES = """
import numpy as np

def picture(dataset, sample):
    return np.full((3, 5), sample, np.uint8)

def alone():
    return None

number = 3
"""


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder with the user's own code, from which the command is run."""
    for name, text in {
        "own_pictures.py": PICTURES,
        "own_fault.py": "def picture(dataset, sample):\n    return (\n",
        "own_raises.py": "raise KeyError('no data\\nhere')\n",
        "own_leaves.py": "raise SystemExit('bye')\n",
        "own_imports.py": "import own_absent\n",
        "own_finds.py": "from own_pictures import picture\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def test_pictures_of_an_exported_file_come_from_a_function_of_ones_own(dualform, folder, pictures):
    told = dualform("explore", folder, "--export", "page.html", "--item", "test/0", "--preview", "own_finds.py:picture")
    assert (told.code, told.err) == (0, "")
    page = (pictures / "page.html").read_text()
    # Pillow is the oracle: a picture of one number all over, which is the sample's.
    shown = re.findall(r'data-sample="(\d+)".*?src="data:image/png;base64,([^"]+)"', page, re.DOTALL)
    assert shown
    for sample, png in shown:
        with Image.open(io.BytesIO(base64.b64decode(png))) as image:
            assert (image.size, image.getextrema()) == ((5, 3), (int(sample), int(sample)))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("own_pictures", "'own_pictures' names no function."),
        (":picture", "':picture' names no function."),
        ("own_nowhere:picture", "There is no module 'own_nowhere'."),
        ("own_nowhere.inner:picture", "There is no module 'own_nowhere'."),
        ("own_nowhere.py:picture", "There is no file own_nowhere.py."),
        ("own_pictures:portrait", "own_pictures has no function 'portrait'."),
        ("own_pictures.py:number", "own_pictures.py has no function 'number'."),
        ("own_pictures:alone", "alone cannot be called as preview(dataset, sample): too many positional arguments."),
        ("own_fault:picture", "own_fault cannot be loaded: '(' was never closed, in line 2 of "),
        ("own_fault.py:picture", "own_fault.py cannot be loaded: '(' was never closed, in line 2 of "),
        ("own_raises.py:picture", "own_raises.py cannot be loaded: KeyError: 'no data\\nhere'"),
        ("own_leaves:picture", "own_leaves cannot be loaded: SystemExit: bye"),
        ("own_imports:picture", "own_imports cannot be loaded: ModuleNotFoundError: No module named 'own_absent'"),
        ("own_imports.py:picture", "own_imports.py cannot be loaded: ModuleNotFoundError: No module named"),
    ],
)
def test_a_function_that_is_not_there_is_refused_in_one_line(dualform, folder, pictures, named, message):
    told = dualform("explore", folder, "--preview", named)
    assert told.code == 2
    first, *others = told.err.splitlines()
    assert first.startswith(f"error: {message}")
    assert [line.partition(":")[0] for line in others] in ([], ["hint"])
