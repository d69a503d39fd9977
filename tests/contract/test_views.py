"""Views are asked alike in process, over gRPC and from the command line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, NotFound
from dualform_client import Client
from dualform_client.cli import main
from dualform_service.server import Server

B, G = 3, 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "run"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(G, 2 * G, 3, groups=G), nn.Flatten(), nn.Linear(6 * G, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, path) as recorder:
        for _ in range(3):
            with recorder.step(label=np.arange(B)):
                optimizer.zero_grad()
                model(torch.randn(B, G, 5)).square().sum().backward()
                optimizer.step()
        recorder.query_set("test", torch.randn(2, G, 5))
    with dualform.open(path) as engine:
        yield engine


def test_a_client_and_the_command_line_get_the_engines_answers(engine, capfd):
    own = engine.keys("0.2", [4])
    with Server(engine) as server, Client(server.address) as client:
        assert client.info() == engine.info()
        assert client.info().layers[0].views == ("0.0", "0.1", "0.2", "0.3")
        assert client.topk("0.2", own, k=3).flat_scores.tobytes() == engine.topk("0.2", own, k=3).flat_scores.tobytes()
        found, wanted = (asked.group_sum("0.2", "test", by="label").sums for asked in (client, engine))
        assert found.tobytes() == wanted.tobytes()
        found, wanted = (np.asarray(asked.output("0.2", own, where="label = 1")) for asked in (client, engine))
        assert found.tobytes() == wanted.tobytes()
        assert client.query_set("test", "0.3").queries.tobytes() == engine.query_set("test", "0.3").queries.tobytes()
        with pytest.raises(BadInput, match=r"Pass layer='0\.0' … '0\.3'\."):
            client.topk("0", "test")
        with pytest.raises(NotFound, match=r"There is no layer '0\.4'\. Layers: 0 \(0\.0 … 0\.3\)"):
            client.topk("0.4", "test")
        for target in (str(engine.path), server.address):
            assert main(["info", target]) == 0
            assert "0 (0.0 … 0.3)" in capfd.readouterr().out
            assert main(["topk", target, "--layer", "0", "--query", "test/1"]) != 0
            assert "Layer '0' has 4 groups of channels, which are queried one at a time." in capfd.readouterr().err
