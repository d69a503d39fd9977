"""Under autocast, a gradient whose rows are all but alike is explained at every update.

The residual is measured along one direction, drawn anew at each update. One in some dozens of them is all but at right
angles to such a gradient, and what bfloat16 rounded away is then much beside what is left of the gradient.
"""

import torch
from torch import nn

import dualform


def train(folder, updates=40, hide=0.0):
    """Of inputs that are one vector but for a hundredth; `hide`: the share of the loss that goes past the layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    common = torch.randn(64)
    with dualform.Recorder(model, optimizer, folder, quiet=True) as recorder:
        for _ in range(updates):
            x = common + 0.01 * torch.randn(16, 64)
            with recorder.step():
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = (model(x) - 1).square().mean()
                aside = (x @ model[0].weight.T)[:, 0].mean()
                (loss + hide * aside).backward()
                optimizer.step()
    return model


def test_it_is_graded_exact(tmp_path):
    train(tmp_path / "m")
    with dualform.open(tmp_path / "m") as memory:
        assert [(layer.status.name, layer.status.reason) for layer in memory.info().layers] == [("exact", "")] * 2
        assert all(one.reconstruction_error < 2e-5 for one in memory.verify().values())


def test_a_path_past_the_layer_is_told_all_the_same(tmp_path):
    train(tmp_path / "m", updates=10, hide=0.02)
    with dualform.open(tmp_path / "m") as memory:
        first, second = (layer.status for layer in memory.info().layers)
    assert not first.exact
    assert "of the gradient of" in first.reason
    assert second.exact
