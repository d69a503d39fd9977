from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dualform_studies.assignment import Assignment
from dualform_studies.images.data.download import load_dataset
from dualform_studies.images.data.split import draw_split
from dualform_studies.images.single.study import SingleRecipe, run_single
from dualform_studies.images.single.variants import RECIPE as THE_RECIPE, VARIANTS, run_variants
from dualform_studies.images.training.recipe import Recipe

RECIPE = SingleRecipe(Recipe(hidden=(48, 32), lr=0.004, batch=32, steps=40), moments=(20,))


@pytest.fixture(scope="module")
def miniature(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("variants") / "run"
    return out, run_variants(Assignment(out, made_up_data, runs=1), RECIPE)


def test_only_the_report_stays(miniature):
    out, report = miniature
    assert [path.name for path in out.iterdir()] == ["report"]
    (table,) = report["tables"]
    names = [THE_RECIPE.name, "20 updates", *(variant.name for variant in VARIANTS)]
    assert [row[0] for row in table["rows"]] == ["the paper", *names]
    assert list(report["variants"]) == names
    assert {len(row) for row in table["rows"]} == {len(table["columns"])} == {2 + 9 + 1}


@pytest.mark.usefixtures("blank_figures")
def test_the_recipes_own_cells_are_those_of_the_single_study(miniature, made_up_data: Path, tmp_path: Path):
    single = run_single(Assignment(tmp_path / "run", made_up_data, runs=1), RECIPE)
    for look, name in (("20", "20 updates"), ("40", "the recipe")):
        assert miniature[1]["variants"][name]["cells"] == single["table_1"][look]
        assert miniature[1]["variants"][name]["accuracy"] == single["accuracy"][look]


def test_each_variant_is_trained_on_what_it_says(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    by_name = {variant.name: variant for variant in (THE_RECIPE, *VARIANTS)}

    def first_epoch(name: str, images: int) -> np.ndarray:
        own = by_name[name].dataset(dataset)
        return np.sort(np.concatenate(list(by_name[name].order(own, Recipe(batch=1, steps=images), 0))))

    kept = np.sort(draw_split(400).trained)
    np.testing.assert_array_equal(first_epoch("the recipe", len(kept)), kept)
    other = np.sort(draw_split(400, draw=1).trained)
    np.testing.assert_array_equal(first_epoch("another draw of the training images", len(other)), other)
    np.testing.assert_array_equal(first_epoch("all training images", 400), np.arange(400))
    drawn = first_epoch("batches drawn with replacement", len(kept))
    assert set(drawn) < set(kept.tolist())
    assert by_name["no momentum"].recipe(Recipe()) == Recipe(momentum=0.0)
    assert by_name["no clipping"].recipe(Recipe()).clip == float("inf")
    assert by_name["the recipe"].recipe(Recipe()) == Recipe()
