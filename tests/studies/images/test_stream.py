from __future__ import annotations

from pathlib import Path

import numpy as np

from dualform_studies.images.download import load_dataset
from dualform_studies.images.recipe import Recipe
from dualform_studies.images.split import training_rows
from dualform_studies.images.stream import batch_rows, mixed_batches


def test_an_image_of_a_mixed_batch_is_that_of_its_datasets_row(made_up_data: Path):
    pair = [load_dataset(name, made_up_data) for name in ("mnist", "fashion-mnist")]
    chosen = [np.arange(0, 400, 2), np.arange(100)]
    seen = []
    for batch in mixed_batches(pair, chosen, batch_rows(300, Recipe(batch=20, steps=30), seed=0, part=0)):
        for inputs, label, row, name in zip(batch.inputs, batch.labels, batch.rows, batch.dataset, strict=True):
            dataset = pair[["mnist", "fashion-mnist"].index(name)]
            np.testing.assert_array_equal(inputs, dataset.inputs(dataset.train, np.array([row]))[0])
            assert label == dataset.train.labels[row]
            seen.append((name, int(row)))
    everything = {("mnist", row) for row in chosen[0]} | {("fashion-mnist", row) for row in chosen[1]}
    assert len(seen) == 600
    assert set(seen[:300]) == set(seen[300:]) == everything, "each epoch holds every image once"
    assert seen[:300] != seen[300:]


def test_forty_of_sixty_thousand_images_are_trained_on():
    rows = training_rows(60_000)
    assert len(np.unique(rows)) == len(rows) == 40_000
    assert (rows[0] >= 0, rows[-1] < 60_000) == (True, True)
    np.testing.assert_array_equal(rows, training_rows(60_000))
    assert len(np.setdiff1d(rows, training_rows(60_000, split=1))) > 10_000
