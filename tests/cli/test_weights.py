"""weights."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import dualform as dualform_package
from dualform.questions import MaskCancellation, NetworkWeights
from dualform_service.server import Server


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
    assert {layer: status["name"] for layer, status in told["status"].items()} == {"0": "exact", "2": "exact"}
    assert told["unrecorded_change"] == {"0": 0.0, "2": 0.0}
    assert told["not_recorded"] == []
    assert list(tmp_path.iterdir()) == [out], "nothing temporary is left"
    told = dualform("weights", folder, "--where-space", "sample", "step < 3", "--at-step", 5, "--out", out, "--force")
    assert "It is not retraining without them" in told.err
    by_space = load_file(out)
    assert all(torch.equal(by_space[name], expected[name]) for name in expected)
    assert dualform("weights", folder, "--out", out, "--force").err == ""


@pytest.mark.parametrize(
    ("masks", "says"),
    [
        (
            ["--where", "step < 3", "--where-space", "sample", "step < 3"],
            "--where and --where-space cannot be given together.",
        ),
        (["--where-space", "sample", "step < 3", "--where-space", "sample", "step < 4"], "names a space twice."),
        (["--where-space", "token", "step < 3"], "There is no space 'token'."),
    ],
    ids=["both", "twice", "unknown"],
)
def test_masks_that_do_not_go_together(dualform, folder, tmp_path, masks, says):
    told = dualform("weights", folder, *masks, "--out", tmp_path / "w.safetensors", "--json")
    assert told.code == 2
    assert says in told.json["error"]["message"]


def test_a_file_is_replaced_only_by_force(dualform, folder, tmp_path):
    out = tmp_path / "w.safetensors"
    out.write_text("mine")
    told = dualform("weights", folder, "--out", out, "--json")
    assert told.code == 1
    assert told.json["error"]["code"] == "already_exists"
    assert out.read_text() == "mine"
    assert dualform("weights", folder, "--out", out, "--force").code == 0
    assert "0.weight" in load_file(out)


def test_what_a_server_is_asked_and_says(dualform, address, engine, tmp_path):
    asked = ["weights", address, "--where-space", "sample", "step < 3", "--at-step", 2, "--allow-inexact", "--force"]
    told = dualform(*asked, "--out", tmp_path / "w.safetensors", "--json").json
    assert engine.asked == [
        NetworkWeights({"sample": "step < 3"}, 2, True),
        MaskCancellation({"sample": "step < 3"}, 2, allow_inexact=True),
    ]
    assert told["parameters"] == {"fc.weight": [2, 3], "steps": []}
    assert (told["kept"], told["unrecorded_change"], told["not_recorded"]) == ({"sample": 3}, {"fc": 0.5}, ["steps"])
    err = dualform(*asked, "--out", tmp_path / "w.safetensors").err
    assert "fc: approximate since step 3, error 2.5e-01: the weights were moved by hand." in err
    assert "Not recorded, so they stand as at the end of the training: steps." in err
    assert told["others"] == ["norm.weight"]
    assert "No slot explains these, so that --where leaves them as they are: norm.weight." in err
    assert load_file(tmp_path / "w.safetensors")["fc.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    unmasked = dualform("weights", address, "--out", tmp_path / "whole.safetensors")
    assert "Not recorded" not in unmasked.err, "they are those of the network as it is"


def test_a_mask_of_a_training_by_adam(dualform, tmp_path):
    """The trajectory is run again; how far the mask moves the weights is said in place of a cancellation."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with dualform_package.Recorder(model, optimizer, tmp_path / "run") as recorder:
        for _ in range(5):
            label = torch.randint(3, (6,))
            with recorder.step(label=label):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(torch.randn(6, 4)), label).backward()
                optimizer.step()
        recorder.query_set("test", torch.randn(2, 4))
    out = tmp_path / "w.safetensors"
    told = dualform("weights", tmp_path / "run", "--where", "label <> 1", "--out", out, "--json")
    assert told.code == 0
    assert told.json["status"]["0"]["name"] == "exact"
    with dualform_package.open(tmp_path / "run") as memory:
        expected = memory.weights("label <> 1")
        moved = memory.cancellation("label <> 1").concentrations["0"]
    assert told.json["cancellation"] == {}
    assert told.json["concentration"] == {"0": {"share": moved.share, "greatest": moved.greatest}}
    assert all(torch.equal(value, expected[name]) for name, value in load_file(out).items())
    answer = dualform(
        "output", tmp_path / "run", "--layer", "0", "--query", "test/1", "--where", "label <> 1", "--placebo", "20"
    )
    assert answer.code == 0
    assert "Concentration of the change (share of the squared change in 1 % of the entries;" in answer.err
    assert (
        f"distance that training moved the layer's weights): 0 {moved.share:.0%}, {moved.greatest:.2g}." in answer.err
    )
    assert "The status is that of the whole sum." in answer.err
    assert dualform("verify", tmp_path / "run", "--json").json["0"]["exact"]
    assert told.json["unmoved"] == []
    nothing = dualform("weights", tmp_path / "run", "--where", "label >= 0", "--out", out, "--force", "--json").json
    assert (nothing["concentration"], nothing["unmoved"]) == ({"0": {"share": "nan", "greatest": 0.0}}, ["0"])


class Averaged(torch.nn.Linear):
    """With an average of its weight that no optimizer holds."""

    def __init__(self):
        super().__init__(4, 3)
        self.average = torch.nn.Parameter(torch.zeros(3, 4), requires_grad=False)


def test_what_is_not_recorded_of_a_training_without_an_end_stands_as_before_it(dualform, tmp_path):
    torch.manual_seed(0)
    model = Averaged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = dualform_package.Recorder(model, optimizer, tmp_path / "run")
    with recorder:
        for _ in range(3):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(6, 4)).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                model.average.lerp_(model.weight, 0.5)
        recorder.flush()
        remark = "so they stand as before its first step, for there is no end: average."
        with (
            dualform_package.open(tmp_path / "run") as memory,
            pytest.warns(UserWarning, match=f"not recorded, {remark}"),
        ):
            assert not memory.weights()["average"].any()
        with dualform_package.open(tmp_path / "run") as memory, Server(memory) as server:
            for target in (tmp_path / "run", server.address):
                for asked in ((), ("--at-step", 2)):
                    out = tmp_path / "w.safetensors"
                    assert f"Not recorded, {remark}" in dualform("weights", target, *asked, "--out", out, "--force").err
                assert dualform("weights", target, "--out", out, "--force", "--json").json["ended"] is False
