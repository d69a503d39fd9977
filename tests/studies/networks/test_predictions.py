from __future__ import annotations

import numpy as np

from dualform_studies.networks.gpt2.predictions import beside_network


def test_a_token_that_shares_the_greatest_logit_is_likeliest_too() -> None:
    logs = np.array([[0, -1, -2], [-3, 0, 0], [0, -1, 0], [-1, -2, 0]], dtype=np.float32)
    found = beside_network(np.array([0, 2, 1, 2]), logs)
    assert found == {"as_the_network": 3 / 4, "several_likeliest": 2 / 4}
