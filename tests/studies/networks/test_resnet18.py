"""The study of ResNet-18 in miniature, on made-up images: its figures are those of the memory's own keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.images.data.download import load_dataset
from dualform_studies.networks.resnet18.recipe import Recipe
from dualform_studies.networks.resnet18.study import probed_rows, run_resnet18
from dualform_studies.pages.folder import Report, report_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # the package's own, of loaders and settings

_RECIPE = Recipe(width=2, images=60, epochs=2, batch=20, lr=1e-2, asked=8, masks=1)
_LAYER = "network.layer3.1.conv2"


@pytest.fixture(scope="module")
def run(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    out = tmp_path_factory.mktemp("runs") / "resnet18"
    return out, run_resnet18(Assignment(out=out, data=made_up_data, seed=1), _RECIPE)


def test_every_layer_is_recorded_and_exact(run: tuple[Path, Report]) -> None:
    report = run[1]
    assert len(report["verify"]) == 1 + 16 + 3 + 1
    assert all(one["exact"] and one["relative_error"] < 1e-3 for one in report["verify"].values())
    assert all("BatchNorm2d" in reason for reason in report["skipped"].values())
    assert report["asked"]["as_the_network"] == 1.0
    with dualform.open(run[0]) as memory:
        slots = memory.sql("SELECT DISTINCT sample, label FROM slots").arrays
    assert len(slots["sample"]) == _RECIPE.images


def test_sums_by_label_and_image_are_those_of_every_key(run: tuple[Path, Report], made_up_data: Path) -> None:
    out, report = run
    dataset = load_dataset("fashion-mnist", made_up_data)
    with dualform.open(out) as memory:
        info = next(layer for layer in memory.info().layers if layer.name == _LAYER)
        keys = memory.keys(_LAYER, np.arange(info.slots)).astype(np.float64)
        slots = memory.slots(np.arange(info.slots), info.space)
        queries = memory.probe("test", _LAYER).queries.astype(np.float64).reshape(_RECIPE.asked, -1, info.d_in)
    assert queries.shape[1] == report["labels"][_LAYER]["places"] == 16
    scores = queries.sum(1) @ keys.T
    labels = np.unique(slots["label"])
    means = np.stack([scores[:, slots["label"] == label].mean(1) for label in labels], 1)
    rows = probed_rows(dataset, _RECIPE, seed=1)
    true = dataset.test.labels[rows]
    assert report["labels"][_LAYER]["true"] == (labels[means.argmax(1)] == true).mean()
    for example in report["examples"]:
        at = int(np.flatnonzero(rows == example["row"])[0])
        assert example["label"] == true[at]
        images = np.unique(slots["sample"])
        drawn = np.array([scores[at, slots["sample"] == image].mean() for image in images])
        (told,) = (one for one in example["layers"] if one["layer"] == _LAYER)
        assert told["image"] == images[drawn.argmax()]
        assert told["label"] == dataset.train.labels[told["image"]]
        assert told["of_mean"] == pytest.approx(drawn.max() / drawn.mean(), rel=1e-4)


def test_masks_stand_beside_the_whole_and_chance(run: tuple[Path, Report]) -> None:
    whole, of_label, by_chance = run[1]["masks"]
    assert (whole["where"], by_chance["where"]) == (None, "sample % 10 <> 0")
    assert of_label["where"] == f"label <> {of_label['label']}"
    assert all(len(one["recognised"]) == 10 for one in (whole, of_label, by_chance))
    assert 0 < of_label["share"] <= 1
    assert of_label["greatest"] > 0


def test_the_page_shows_each_example_and_names_the_commands(run: tuple[Path, Report]) -> None:
    out, report = run
    page = (report_folder(out) / "index.md").read_text()
    for example in report["examples"]:
        assert f"(images-{example['kind']}.png)" in page
    for command in ("verify RUN", "sums RUN --layer LAYER --query test --by label", "weights RUN --where"):
        assert f"dualform {command}" in page
