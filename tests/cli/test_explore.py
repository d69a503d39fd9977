"""dualform explore: what it says, and what it refuses before it begins."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from PIL import Image


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


def test_a_folder_that_is_no_memory_is_refused_at_once(dualform, tmp_path):
    assert "There is no folder" in dualform("explore", tmp_path / "none").err
    assert "A TARGET is given twice." in dualform("explore", tmp_path, tmp_path).err


@pytest.mark.parametrize("options", [["explore"], ["serve", "--explore", "127.0.0.1:0"]], ids=" ".join)
def test_without_its_extra_the_command_names_it(folder, options):
    code = """
import sys
sys.modules["starlette"] = None
from dualform_client.cli import main
sys.exit(main(sys.argv[1:]))
"""
    told = subprocess.run([sys.executable, "-c", code, *options, str(folder)], capture_output=True, text=True)
    assert told.returncode == 1
    assert "the extra [explore] brings it" in told.stderr
    assert "Traceback" not in told.stderr


def test_predictions_are_exported_to_one_file(dualform, folder, tmp_path):
    out = tmp_path / "page.html"
    told = dualform("explore", folder, "--export", out, "--item", "test/0", "--without", "label:1", "--json")
    assert told.code == 0
    assert told.json == {
        "out": str(out),
        "bytes": out.stat().st_size,
        "items": ["test/0"],
        "without": ["label 1"],
        "failed": 0,
    }
    assert f"<title>{folder.name} · dualform</title>" in out.read_text()
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_that_is_there_is_replaced_only_when_told_to(dualform, folder, tmp_path):
    out = tmp_path / "page.html"
    out.write_text("mine")
    told = dualform("explore", folder, "--export", out, "--item", "test/0")
    assert told.code == 1
    assert told.err == f"error: {out} exists.\nhint: Replace it with --force, or give another --export.\n"
    assert out.read_text() == "mine"
    told = dualform("explore", folder, "--export", out, "--item", "test/0", "--force")
    assert told.code == 0
    assert told.out.startswith(f"{out}: test/0")
    assert told.out.endswith(" MiB\n")
    assert out.read_text().startswith("<!doctype html>")


def test_a_server_elsewhere_is_exported_alike(dualform, folder, tmp_path):
    import dualform as library
    from dualform_service.config import ServiceConfig
    from dualform_service.server import Server

    here, there = tmp_path / "here.html", tmp_path / "there.html"
    assert dualform("explore", folder, "--export", here, "--item", "test/1").code == 0
    with library.open(folder) as engine, Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server:
        assert dualform("explore", server.address, "--export", there, "--item", "test/1").code == 0
        texts = [file.read_text().replace(server.address, folder.name) for file in (here, there)]
    took = r"<dt>answered</dt><dd>in <data [^>]*>[^<]*</data>"
    assert re.sub(took, "", texts[0]) == re.sub(took, "", texts[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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


def test_one_memory_is_exported_at_a_time(dualform, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    told = dualform("explore", folder, tmp_path / "other", "--export", tmp_path / "page.html")
    assert (told.code, "--export takes one TARGET." in told.err) == (2, True)


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


@pytest.mark.parametrize("named", ["own_pictures:picture", "own_finds.py:picture"])
def test_pictures_of_an_exported_file_come_from_a_function_of_ones_own(dualform, folder, pictures, named):
    told = dualform("explore", folder, "--export", "page.html", "--item", "test/0", "--preview", named)
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
