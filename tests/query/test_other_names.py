"""A tied weight has two names in a state dict; a copy of a weight is a parameter of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.store.files.durable_files import checksum
from dualform.store.manifest import FILE, Manifest
from dualform.store.reading.snapshot import Snapshot
from tests.query.trained import train


class Copied(nn.Module):
    """Two layers that begin alike, and only the first of which is trained."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.online, self.target = nn.Linear(5, 3), nn.Linear(5, 3)
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, x):
        return self.online(x)


class Tied(nn.Module):
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


def copy(number, model, optimizer):
    model.target.load_state_dict(model.online.state_dict())


@pytest.mark.filterwarnings("ignore:not recorded")
def test_a_copy_of_a_weight_is_not_rewritten(tmp_path):
    trained = train(tmp_path / "m", model=Copied(), between=copy)
    for where, at_step in ((None, 3), ("sample < 100", None)):
        found = trained.engine.weights(where, at_step)
        assert found.not_recorded == ("target.bias", "target.weight")
        for name in found.not_recorded:
            assert np.array_equal(found.arrays[name], trained.history[-1][name].numpy()), "it stands as at the end"
        assert not np.array_equal(found.arrays["online.weight"], found.arrays["target.weight"])


def test_a_tensor_has_each_of_its_names(tmp_path):
    trained = train(tmp_path / "m", model=Tied())
    aliases = {"again.layer.weight": "layer.weight", "again.layer.bias": "layer.bias", "shown": "layer.weight"}
    assert Snapshot.open(tmp_path / "m").aliases == aliases
    found = trained.engine.weights("sample < 100")
    assert found.not_recorded == ()
    assert found.arrays.keys() == trained.model.state_dict().keys()
    assert not np.array_equal(found.arrays["layer.weight"], trained.history[-1]["layer.weight"].numpy())
    for other, name in aliases.items():
        assert np.array_equal(found.arrays[other], found.arrays[name])


def test_a_memory_that_was_recorded_without_them_has_none(tmp_path):
    train(tmp_path / "m", model=Tied())
    fields = json.loads((tmp_path / "m" / FILE).read_text())
    del fields["aliases"], fields["checksum"]
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    (tmp_path / "m" / FILE).write_text(json.dumps(fields | {"checksum": checksum(canonical)}))
    assert Manifest.read(tmp_path / "m").aliases == {}
    with pytest.warns(UserWarning, match=r"^not recorded, .*: again\.layer\.bias, again\.layer\.weight, shown\.$"):
        found = dualform.open(tmp_path / "m").weights("sample < 100")
    assert found.not_recorded == ("again.layer.bias", "again.layer.weight", "shown")
