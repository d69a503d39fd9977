from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.data.split import Split
from dualform_studies.images.training.recipe import Recipe
from dualform_studies.images.training.stream import drawn_rows, mixed_batches


def test_an_image_of_a_mixed_batch_is_that_of_its_datasets_row(made_up_data: Path):
    chosen = [np.arange(0, 400, 2), np.arange(100)]
    pair = [
        replace(load_dataset(name, made_up_data), split=Split(np.arange(400), rows))
        for name, rows in zip(("mnist", "fashion-mnist"), chosen, strict=True)
    ]
    seen = []
    for batch in mixed_batches(pair, Recipe(batch=20, steps=30), seed=0):
        for inputs, label, row, name in zip(batch.inputs, batch.labels, batch.rows, batch.dataset, strict=True):
            dataset = pair[["mnist", "fashion-mnist"].index(name)]
            np.testing.assert_array_equal(inputs, dataset.inputs(dataset.train, np.array([row]))[0])
            assert label == dataset.train.labels[row]
            seen.append((name, int(row)))
    everything = {("mnist", row) for row in chosen[0]} | {("fashion-mnist", row) for row in chosen[1]}
    assert len(seen) == 600
    assert set(seen[:300]) == set(seen[300:]) == everything, "each epoch holds every image once"
    assert seen[:300] != seen[300:]


def test_rows_drawn_by_chance_come_again_before_all_have_come():
    rows = np.concatenate(list(drawn_rows(np.arange(10, 20), Recipe(batch=5, steps=200), seed=0)))
    assert set(rows) == set(range(10, 20))
    assert len(set(rows[:10])) < 10
