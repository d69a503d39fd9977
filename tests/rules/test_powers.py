"""Powers of betas do not underflow in a long training, which takes processors thirty times as long; what rules make of
them has the same bits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dualform.rules import State, named, updated
from dualform.rules.rounding import NEGLIGIBLE, correction

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
COUNTS = np.concatenate([np.arange(1.0, 9000.0), [1e5, 7e5, 7.2e5, 1e6, 1e9]])


@pytest.mark.parametrize("beta", [0.0, 1e-8, 0.5, 0.9, 0.999, 0.99999, 1.0])
@pytest.mark.parametrize("number", [np.float32, np.float64])
def test_corrections_are_those_of_the_whole_power(beta, number):
    with np.errstate(under="ignore"):
        expected = (number(1) - np.power(number(beta), COUNTS.astype(number))).astype(np.float64)
    with np.errstate(under="raise"):
        found = correction(beta, COUNTS, {"float32_corrections": number is np.float32})
    np.testing.assert_array_equal(found, expected)
    assert np.float32(1) - np.float32(NEGLIGIBLE) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("count", [6_999.0, 999_999.0])
def test_an_update_late_in_a_training_does_not_underflow(name, count):
    """0.9 to the power of 6,724 does, and 0.999 to that of 707,000."""
    (group,) = OPTIMIZERS[name]([nn.Parameter(torch.zeros(3))]).param_groups
    rule, ones = named(name), np.ones(3)
    kept = {kind: ones for kind in (*rule.buffers, *rule.statistics) if kind != "max_exp_avg_sq"}
    with np.errstate(under="raise"):
        after, _ = updated(rule, State(ones, kept | {"step": ones * count}), ones, rule.read(group))
    assert np.isfinite(after.weight).all()
