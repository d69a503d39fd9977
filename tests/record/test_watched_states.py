"""The states that the watch runs a rule on begin with what the optimizer has, and with nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dualform.record.audit.drift import WatchedStates
from dualform.record.audit.parameters import RecordedEntries, RecordedParameters
from dualform.record.taps import ModuleTap
from dualform.rules import State, named, updated

OPTIMIZERS = {"rprop": torch.optim.Rprop, "asgd": torch.optim.ASGD, "nadam": torch.optim.NAdam}


@pytest.mark.parametrize(("name", "missing"), [("rprop", "step_size"), ("asgd", "eta"), ("nadam", "mu_product")])
def test_what_one_parameter_lacks_is_left_to_the_rule(name, missing):
    """As in a state that was put together by hand; of the other parameter there is none at all."""
    rule, generator = named(name), np.random.default_rng(0)
    layer = nn.Linear(4, 3)
    parameters = RecordedParameters([ModuleTap.kind_of(layer)("0", layer)], generator)
    image, names = RecordedEntries(parameters, generator), [own.parameter for own in parameters]
    (group,) = OPTIMIZERS[name](layer.parameters()).param_groups
    gradient, settings = np.stack([generator.normal(size=image.size)] * 3), rule.read(group)
    first, _ = updated(rule, State(np.zeros((3, 4))), generator.normal(size=(3, 4)), settings)
    held = {kind: np.asarray(own) for kind, own in first.buffers.items() if kind != missing}
    states = WatchedStates(image, names, [rule] * 2, image.weights(), {names[0]: held}, count=3)
    for index, own in enumerate((held, {})):
        start = State(states.weight[0, image.spans[index]].reshape(parameters[index].block_shape), own)
        part = gradient[0, image.spans[index]].reshape(parameters[index].block_shape)
        expected, _ = updated(rule, start, part, settings)
        states.advance(index, index, gradient, settings)
        for state in states.weight:
            np.testing.assert_allclose(state[image.spans[index]], expected.weight.reshape(-1), rtol=1e-12)
