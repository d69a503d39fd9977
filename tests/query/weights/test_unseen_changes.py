"""Changes that leave no trace in the recorded tensors are seen all the same; of tensors of several names, too."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.errors import Inexact
from dualform.query.weights import exactness
from dualform.store.reading.snapshot import Snapshot
from tests.query.trained import train
from tests.trainings import record_steps

FEW_STEPS = 6


def net(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


def trained_net(path, **done):
    """A few steps of plain SGD, with what is done beside the optimizer."""
    return train(path, model=net(), momentum=0.0, steps=FEW_STEPS, **done)


def statuses(trained):
    return {layer.name: layer.status for layer in trained.engine.info().layers}


def test_weights_that_are_swapped_for_others_between_updates_and_swapped_back(tmp_path):
    """As for an evaluation with averaged weights: no version of the tensor moves, and the update finds it as it was."""
    own = []

    def swap(number, model, optimizer):
        if number == 2:
            own.append(model[0].weight.data)
            model[0].weight.data = torch.zeros_like(own[0])

    def update(model, optimizer, backward):
        backward()
        if own:
            model[0].weight.data = own[0]
        optimizer.step()

    memory = trained_net(tmp_path / "m", between=swap, update=update).engine
    assert memory.verify()["0"].exact
    layer = memory._view.snapshot.layer("0")
    found = [exactness.status(memory._view, layer, step).name for step in (2, 3, 4)]
    assert found == ["exact", "approximate", "exact"]


def test_a_parameter_that_another_takes_the_place_of(tmp_path):
    def replace(number, model, optimizer):
        if number == 2:
            model[0].weight = nn.Parameter(torch.zeros_like(model[0].weight))
            optimizer.param_groups[0]["params"] = list(model.parameters())

    trained = trained_net(tmp_path / "m", between=replace)
    found, memory = statuses(trained), trained.engine
    assert (found["0"].name, found["2"].name) == ("approximate", "exact")
    assert found["0"].reason == "0.weight was replaced by another tensor at step 2 (from step 2 on)."
    with pytest.raises(dualform.DualformError, match=r"0\.weight was replaced by another tensor"):
        memory.output("0", np.ones((1, 5)))
    assert memory.output("0", np.ones((1, 5)), at_step=2).status.exact


def test_a_state_that_is_assigned_at_the_end(tmp_path):
    best = {name: value.clone() for name, value in net().state_dict().items()}
    trained = trained_net(tmp_path / "m", at_end=lambda model: model.load_state_dict(best, assign=True))
    found, memory = statuses(trained), trained.engine
    assert {status.name for status in found.values()} == {"approximate"}
    assert found["2"].reason == "2.weight was replaced by another tensor at step 5 (from step 5 on)."
    assert found["2"].error is None  # the weights are where they were, so there is no way to hold the distance against
    assert memory.verify()["0"].reconstruction_error == np.inf
    output = memory.output("0", np.ones((1, 5)), allow_inexact=True)
    assert np.allclose(output, best["0.weight"].sum(1) + best["0.bias"])


def test_a_single_number_is_held_to_the_factor_of_its_layer(tmp_path):
    """A penalty on a bias of one number would pass for a factor: one number is parallel to any other."""
    model = net(outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(output, y):
        return (output[:, 0] - y).square().mean() + 3 * model[2].bias.square().sum()

    torch.nn.init.constant_(model[2].bias, 2.0)
    record_steps(
        dualform.Recorder(model, optimizer, tmp_path / "m"),
        optimizer,
        FEW_STEPS,
        lambda _: loss(model(torch.randn(12, 5)), torch.arange(12) % 3),
    )
    with dualform.open(tmp_path / "m") as memory:
        found = {layer.name: layer.status for layer in memory.info().layers}
    assert (found["0"].name, found["2"].name) == ("exact", "approximate")
    assert "of the gradient of 2.bias at step 0 is not in the recorded slots" in found["2"].reason


def test_the_last_update_before_a_crash_is_not_taken_for_granted(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    recorder = dualform.Recorder(model, optimizer, tmp_path / "m")

    def first():
        with dualform.open(tmp_path / "m") as memory:
            return memory.info().layers[0].status

    def crashed():
        """As a crash leaves it: nobody has looked at the last update."""
        recorder._controller.session.writer.put_logs()
        recorder._controller.session.writer.sink.flush()
        return first()

    early = []
    with recorder:
        for number in range(FEW_STEPS):
            with recorder.step():
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                if number == FEW_STEPS - 1:
                    model[0].weight.grad[0] *= 3
                optimizer.step()
            if number < 2:
                early.append(crashed())
        found = crashed()
        assert [str(own) for own in early] == ["approximate", "exact"]
        assert early[0].reason == "the training was cut off before its weights were held against the record."
        assert (found.name, found.since) == ("approximate", FEW_STEPS - 1)
        assert found.reason.endswith("and its weights were not seen since.")
        recorder.flush()
        assert first().name == "approximate"
        assert "not seen" not in first().reason


WIDTH = 64


class Words(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens):
        return self.head(self.words(tokens).mean(1))


def trained_words(path, rows, used, after=lambda model: None):
    """A memory of a training that uses the first rows alone; `after`: what happens behind the recorder's back."""
    model, generator = Words(rows), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.register_step_post_hook(lambda *_: after(model))
    record_steps(
        dualform.Recorder(model, optimizer, path, quiet=True),
        optimizer,
        (
            (torch.randint(used, (16, 6), generator=generator), torch.randint(10, (16,), generator=generator))
            for _ in range(10)
        ),
        lambda tokens, label: cross_entropy(model(tokens), label),
        label=lambda tokens, label: label,
    )
    return model, dualform.open(path)


def test_of_some_neighbouring_rows_a_few_are_watched(tmp_path):
    rows = 20_000

    def shrink(model):
        model.words.weight.detach().numpy()[:30] *= 0.999  # which no version counter sees

    _, memory = trained_words(tmp_path / "memory", rows, 30, shrink)
    with memory:
        assert memory.verify()["words"].status.name == "approximate"
        with pytest.raises(Inexact, match="'words' cannot be reconstructed exactly"):
            memory.output("words", np.eye(1, rows, 3, dtype=np.float32), at_step=8)


@pytest.mark.parametrize("shrinks", [False, True], ids=["as the optimizer does", "shrunk by hand"])
def test_where_none_of_them_is_watched_a_pass_at_the_end_tells(tmp_path, shrinks):
    def shrink(model):
        if shrinks:
            model.words.weight.detach().numpy()[:2] *= 0.999

    model, memory = trained_words(tmp_path / "memory", 50_000, 2, shrink)
    query = np.eye(1, 50_000, 1, dtype=np.float32)
    with memory:
        (layer,) = (own for own in memory.info().layers if own.name == "words")
        why = "none of the watched numbers of words.weight moved"
        assert str(layer.status) == "approximate"
        assert layer.status.reason == f"{why} while training; `verify` measures the end of it."
        with pytest.raises(Inexact, match=f"{why} while training"):
            memory.output("words", query, at_step=8)
        found = memory.verify()["words"]
        if shrinks:
            assert found.status.name == "approximate"
            assert found.status.reason.endswith(f" of the distance it moved; {why}.")
            with pytest.raises(Inexact, match=why):
                memory.output("words", query)
            return
        assert found.status.name == "exact"
        assert 0 < found.reconstruction_error < 1e-4
        output = memory.output("words", query)
        assert output.status.name == "exact"
        moved = np.linalg.norm(model.words.weight.detach()[1] - Words(50_000).words.weight.detach()[1])
        assert np.linalg.norm(output.values[0] - model.words.weight.detach()[1].numpy()) < 1e-4 * moved


def test_every_block_at_rest_is_asked_not_the_first_alone(tmp_path, monkeypatch):
    _, memory = trained_words(tmp_path / "memory", 50, 50)
    with memory:
        layer = memory._view.snapshot.layers["head"]
        at_rest = [SimpleNamespace(way=np.zeros(1)) for _ in layer.parameters]
        monkeypatch.setattr(exactness, "distances", lambda view, layer: at_rest)
        before = {name: own.copy() for name, own in memory._view.stored_weights("initial").items()}
        after = before | {"head.bias": before["head.bias"] + 1}
        stored = {"initial": before, "final": after}
        monkeypatch.setattr(memory._view, "stored_weights", stored.__getitem__)
        assert exactness.unwatched(memory._view, layer) == "none of the watched numbers of head.bias moved"
        stored["final"] = before
        assert exactness.unwatched(memory._view, layer) == ""


class Copied(nn.Module):
    """Two layers that begin alike, and only the first of which is trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.online, self.target = nn.Linear(5, 3), nn.Linear(5, 3)
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, x):
        return self.online(x)


class Aliased(nn.Module):
    """A layer under two names, and a buffer that is its weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = nn.Linear(5, 5), nn.Linear(5, 3)
        self.again = nn.Module()
        self.again.layer = self.layer
        self.register_buffer("shown", None)
        self._buffers["shown"] = self.layer.weight
        self.register_buffer("kept_out", None, persistent=False)
        self._buffers["kept_out"] = self.layer.weight

    def forward(self, x):
        return self.last(torch.tanh(self.again.layer(torch.tanh(self.layer(x)))))


def copy_online(number, model, optimizer):
    model.target.load_state_dict(model.online.state_dict())


@pytest.mark.filterwarnings("ignore:not recorded")
def test_a_copy_of_a_weight_is_not_rewritten(tmp_path):
    trained = train(tmp_path / "m", model=Copied(), between=copy_online)
    for where, at_step in ((None, 3), ("sample < 100", None)):
        found = trained.engine.weights(where, at_step)
        assert found.not_recorded == ("target.bias", "target.weight")
        for name in found.not_recorded:
            assert np.array_equal(found.arrays[name], trained.history[-1][name].numpy()), "it stands as at the end"
        assert not np.array_equal(found.arrays["online.weight"], found.arrays["target.weight"])


def test_a_tensor_has_each_of_its_names(tmp_path):
    trained = train(tmp_path / "m", model=Aliased())
    aliases = {"again.layer.weight": "layer.weight", "again.layer.bias": "layer.bias", "shown": "layer.weight"}
    assert Snapshot.open(tmp_path / "m").aliases == aliases
    found = trained.engine.weights("sample < 100")
    assert found.not_recorded == ()
    assert found.arrays.keys() == trained.model.state_dict().keys()
    assert not np.array_equal(found.arrays["layer.weight"], trained.history[-1]["layer.weight"].numpy())
    for other, name in aliases.items():
        assert np.array_equal(found.arrays[other], found.arrays[name])
