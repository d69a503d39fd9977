"""Networks that people train, each recorded and held against itself unrecorded, and against plain PyTorch hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dualform

from . import samples, tokens, ways_to_train  # noqa: F401  (they name their networks)
from .capture import CONVOLUTIONS, TRANSPOSED, Capture
from .network import NETWORKS, Network, train
from .tokens import PARTS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*no update rule:RuntimeWarning"),  # of one network it is true
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),  # torch's own
]

EXACT = 1e-3
"""Of the way the weights went: what an exact record may miss."""


@pytest.fixture(scope="module", params=NETWORKS.values(), ids=NETWORKS.keys())
def network(request):
    return request.param


@pytest.fixture(scope="module")
def recorded(network: Network, tmp_path_factory):
    """The trained model, and the opened memory of its training."""
    path = tmp_path_factory.mktemp(network.name) / "run"
    model = train(network, lambda model, optimizer: dualform.Recorder(model, optimizer, path, **network.options))
    with dualform.open(path) as memory:
        yield model, memory


@pytest.fixture(scope="module")
def alone(network: Network):
    """The same training without a recorder: its model, and what plain hooks of PyTorch saw of the layers."""
    captured: list[Capture] = []

    def watch(model, optimizer):
        captured.append(Capture({name: model.get_submodule(name) for name in modules(network, model)}))

    return train(network, watch), captured[0]


def names(network: Network, model: nn.Module) -> list[str]:
    kinds = (nn.Linear, nn.Embedding, nn.EmbeddingBag, *CONVOLUTIONS, *TRANSPOSED)
    found = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    return sorted(found if network.layers is None else network.layers)


def modules(network: Network, model: nn.Module) -> list[str]:
    """Without recurrent layers, whose keys are their own states, and the parts of attention, which are no modules."""
    return [name for name in names(network, model) if not name.startswith("recurrent") and name not in PARTS]


def product(module: nn.Module, queries: torch.Tensor) -> torch.Tensor:
    """What the module computes of keys."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return queries @ module.weight
    if isinstance(module, CONVOLUTIONS):
        weight = torch.block_diag(*module.weight.flatten(1).chunk(module.groups))
        return nn.functional.linear(queries, weight, module.bias)
    if isinstance(module, TRANSPOSED):
        return queries @ module.weight.flatten(1)
    return module(queries)


def test_recording_changes_no_bit_of_the_weights(recorded, alone):
    unrecorded = alone[0].state_dict()
    assert unrecorded
    for name, value in recorded[0].state_dict().items():
        assert torch.equal(value, unrecorded[name]), name


def test_keys_and_values_are_what_the_layers_saw(network, recorded, alone):
    model, memory = recorded
    slots = {layer.name: layer.slots for layer in memory.info().layers}
    assert sorted(slots) == names(network, model)
    watched = modules(network, model)
    assert watched
    for name in watched:
        keys, errors = alone[1].rows(name, name in network.time_first)
        assert np.array_equal(memory.keys(name), keys.numpy()), name
        assert slots[name] == len(keys)
        if network.statuses.get(name) != "scores only":
            assert np.array_equal(memory.values(name), errors.numpy()), name


def test_the_status_is_what_the_pass_over_the_slots_measures(network, recorded):
    memory = recorded[1]
    reconstructions, layers = memory.verify(), memory.info().layers
    assert {layer.name for layer in layers} == set(reconstructions)
    for layer in layers:
        expected = network.statuses.get(layer.name, "exact")
        status, measured = layer.status, reconstructions[layer.name].reconstruction_error
        assert status.name == expected, (layer.name, str(status), status.reason, measured)
        if expected == "scores only":
            assert measured is None
            continue
        assert status.error == pytest.approx(measured, rel=1.5, abs=EXACT / 10)
        assert (measured <= EXACT) == (expected == "exact")


def test_the_last_output_is_the_networks_own(network, recorded):
    model, memory = recorded
    layers = {layer.name: layer for layer in memory.info().layers if layer.status.name != "scores only"}
    asked = [layers[name] for name in modules(network, model) if name in layers]
    assert asked or "scores only" in network.statuses.values()
    for layer in asked:
        queries = torch.randn(3, layer.d_in, generator=torch.Generator().manual_seed(4))
        module = model.get_submodule(layer.name)
        with torch.no_grad():
            live = product(module, queries.to(module.weight.dtype)).double().numpy()
        # Beyond the bound an answer wants to be asked for; the unrecorded change makes it that of the live network.
        found = np.asarray(memory.output(layer.name, queries.numpy(), allow_inexact=True))
        assert found == pytest.approx(live, abs=2e-5 * max(1.0, float(np.abs(live).max()))), layer.name
