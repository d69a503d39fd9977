"""weights and check."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import dualform as dualform_package
from dualform.store.manifest import Manifest


def test_weights_are_those_of_the_engine(dualform, folder, tmp_path):
    out = tmp_path / "w.safetensors"
    told = dualform("weights", folder, "--where", "step < 3", "--at-step", 5, "--out", out, "--json").json
    with dualform_package.open(folder) as memory:
        expected = memory.weights("step < 3", 5)
        removed = memory.cancellation("step < 3", 5)
    written = load_file(out)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    assert told["out"] == str(out)
    assert told["parameters"]["0.weight"] == [5, 6]
    assert told["cancellation"] == removed
    assert "not retraining" in told["note"]
    assert told["kept"] == {"sample": 24}
    assert {layer: grade["name"] for layer, grade in told["grade"].items()} == {"0": "exact", "2": "exact"}
    assert told["standing"] == {"0": 0.0, "2": 0.0}
    assert list(tmp_path.iterdir()) == [out], "nothing temporary is left"


def test_a_mask_may_be_of_one_space(dualform, folder, tmp_path):
    files = [tmp_path / "all.safetensors", tmp_path / "by-space.safetensors"]
    assert dualform("weights", folder, "--where", "step < 3", "--out", files[0]).code == 0
    assert dualform("weights", folder, "--where-space", "sample", "step < 3", "--out", files[1]).code == 0
    one, other = map(load_file, files)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("masks", "says"),
    [
        (
            ["--where", "step < 3", "--where-space", "sample", "step < 3"],
            "--where and --where-space are given together.",
        ),
        (["--where-space", "sample", "step < 3", "--where-space", "sample", "step < 4"], "names a space twice."),
        (["--where-space", "token", "step < 3"], "no space 'token'."),
    ],
    ids=["both", "twice", "unknown"],
)
def test_masks_that_do_not_go_together(dualform, folder, tmp_path, masks, says):
    told = dualform("weights", folder, *masks, "--out", tmp_path / "w.safetensors", "--json")
    assert told.code == 2
    assert says in told.json["error"]["message"]


def test_weights_say_what_a_mask_means(dualform, folder, tmp_path):
    told = dualform("weights", folder, "--where", "step < 3", "--out", tmp_path / "w.safetensors")
    assert "it is not retraining without them" in told.err
    assert "Cancellation of what was masked" in told.err
    assert dualform("weights", folder, "--out", tmp_path / "all.safetensors").err == ""


def test_a_file_is_replaced_only_by_force(dualform, folder, tmp_path):
    out = tmp_path / "w.safetensors"
    out.write_text("mine")
    told = dualform("weights", folder, "--out", out, "--json")
    assert told.code == 1
    assert told.json["error"]["code"] == "already_exists"
    assert out.read_text() == "mine"
    assert dualform("weights", folder, "--out", out, "--force").code == 0
    assert "0.weight" in load_file(out)


def test_weights_into_a_folder_that_is_not_there(dualform, folder, tmp_path):
    told = dualform("weights", folder, "--out", tmp_path / "nowhere" / "w.safetensors", "--json")
    assert told.code == 1
    assert "nowhere" in told.json["error"]["message"]


def test_weights_and_check_need_the_folder(dualform, tmp_path):
    for arguments in (("weights", "127.0.0.1:1", "--out", tmp_path / "w"), ("check", "127.0.0.1:1")):
        told = dualform(*arguments, "--json")
        assert told.json["error"]["message"] == "This needs the memory's folder, not a server."


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
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    told = dualform("check", copy, "--json")
    assert told.code == 1
    assert len(told.json["problems"]) == 1
    assert file.name in told.json["problems"][0]
    assert dualform("check", copy).out.endswith("1 problem\n")
