"""check."""

from __future__ import annotations

import shutil
from dataclasses import replace

from dualform.store.manifest import Manifest
from tests.damage import flip


def test_check_needs_the_folder(dualform):
    told = dualform("check", "127.0.0.1:1", "--json")
    assert told.json["error"]["message"] == "127.0.0.1:1 is a server, and this command needs the memory's folder."


def test_check_finds_nothing_wrong(dualform, folder):
    assert dualform("check", folder) == (0, "no problems\n", "")
    assert dualform("check", folder, "--json").json == {"problems": [], "cut_off": ""}


def test_a_recording_that_was_cut_off_is_said_to_be_so_and_is_sound(dualform, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    manifest = Manifest.read(copy)
    replace(manifest, recording=True).write(copy)
    steps = dualform("info", folder, "--json").json["steps"]
    sentence = f"the recording was cut off after step {steps - 1}, or still runs."
    assert dualform("check", copy) == (0, f"{sentence}\nno problems\n", "")
    assert dualform("check", copy, "--json").json == {"problems": [], "cut_off": sentence}
    assert sentence in dualform("info", copy).out.splitlines()
    assert dualform("info", copy, "--json").json["cut_off"] == sentence
    assert dualform("info", folder, "--json").json["cut_off"] == ""


def test_check_finds_a_flipped_bit(dualform, folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    file = next(copy.rglob("keys-*.faiss"))
    flip(file)
    told = dualform("check", copy, "--json")
    assert told.code == 1
    assert len(told.json["problems"]) == 1
    assert file.name in told.json["problems"][0]
    assert dualform("check", copy).out.endswith("1 problem\n")
