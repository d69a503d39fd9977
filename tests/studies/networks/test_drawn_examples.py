from __future__ import annotations

import numpy as np

from dualform_studies.networks.drawn_examples import draw_examples


def test_one_of_each_kind_is_drawn_at_random() -> None:
    right = np.array([True, False, True, True, False])
    drawn = [draw_examples(right, np.random.default_rng(seed)) for seed in range(40)]
    assert {one["right"] for one in drawn} == {0, 2, 3}
    assert {one["wrong"] for one in drawn} == {1, 4}
    assert draw_examples(right, np.random.default_rng(3)) == drawn[3]


def test_a_kind_without_predictions_is_missing() -> None:
    assert draw_examples(np.ones(3, dtype=bool), np.random.default_rng(0)).keys() == {"right"}
