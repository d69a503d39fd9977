"""What rounding of gradients may account for is a size: it adds up whichever way an update goes."""

import numpy as np

from dualform.record.audit.drift import NormNoise
from dualform.rules import named

SETTINGS = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.3, "nesterov": False, "maximize": False,
}  # fmt: skip


def carried(**settings):
    noise = NormNoise(named("sgd"), 2)
    for _ in range(3):
        noise.gradient(np.zeros(4), np.array([1.0, 2.0]), np.array([1.0, -0.5]), np.array([0.5, 0.25]))
        noise.carry(slice(0, 2), SETTINGS | settings)
    return noise.lengths()


def test_an_error_is_carried_through_the_momentum_without_a_sign():
    buffer = 1.0 + 0.9 + 0.9**2  # of three updates, of which each brings 1
    np.testing.assert_allclose(carried(), [0.1 * buffer * 0.5, 0.1 * buffer * 0.25], rtol=1e-12)
    assert carried(maximize=True) == carried()
    assert carried(weight_decay=0.0) == carried()
