"""The study of ResNet-18 in miniature, on made-up images: its figures are those of the memory's own keys."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import dualform
from dualform_studies.assignment import Assignment
from dualform_studies.images.data.download import load_dataset
from dualform_studies.networks.resnet18.masks import draw_masks
from dualform_studies.networks.resnet18.network import build_network
from dualform_studies.networks.resnet18.page import resnet18_page
from dualform_studies.networks.resnet18.recipe import Recipe
from dualform_studies.networks.resnet18.study import probed_rows, run_resnet18
from dualform_studies.networks.resnet18.training import new_statistics
from dualform_studies.pages.folder import Report, report_folder
from tests.coverage.rows import convolutions_are_one_product

pytestmark = pytest.mark.filterwarnings("ignore")  # the package's own, of loaders and settings

_RECIPE = Recipe(width=2, images=60, epochs=2, batch=20, lr=1e-2, asked=8)
_LAYER = "network.layer3.1.conv2"


@pytest.fixture(scope="module")
def run(coarse_figures: None, made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    out = tmp_path_factory.mktemp("runs") / "resnet18"
    return out, run_resnet18(Assignment(out=out, data=made_up_data, seed=1), _RECIPE)


def test_every_layer_is_recorded_and_exact(run: tuple[Path, Report]) -> None:
    report = run[1]
    assert len(report["verify"]) == 1 + 16 + 3 + 1
    # Where torch rounds the gradient of a bfloat16 convolution sample by sample (docs/exactness.md), grades say so.
    convolved = "exact" if convolutions_are_one_product() else "exact to bfloat16"
    for layer, one in report["verify"].items():
        assert one["status"] == ("exact" if layer == "network.fc" else convolved), layer
        assert one["reconstruction_error"] < {"exact": 1e-3, "exact to bfloat16": 2**-7}[one["status"]], layer
    assert all("BatchNorm2d" in reason for reason in report["skipped"].values())
    assert report["asked"]["as_the_network"] == 1.0
    with dualform.open(run[0]) as memory:
        slots = memory.sql("SELECT DISTINCT sample, label FROM slots").arrays
    assert len(slots["sample"]) == _RECIPE.images


def test_attention_to_classes_and_images_is_that_of_every_key(run: tuple[Path, Report], made_up_data: Path) -> None:
    out, report = run
    dataset = load_dataset("fashion-mnist", made_up_data)
    with dualform.open(out) as memory:
        info = next(layer for layer in memory.info().layers if layer.name == _LAYER)
        keys = memory.keys(_LAYER, np.arange(info.slots)).astype(np.float64)
        slots = memory.slots(np.arange(info.slots), info.space)
        queries = memory.query_set("test", _LAYER).queries.astype(np.float64).reshape(_RECIPE.asked, -1, info.d_in)
        labels = memory.query_set("test").labels
    told = report["attention"][_LAYER]
    assert queries.shape[1] == told["places"] == 16
    scores = np.einsum("qpd,sd->qps", queries, keys).sum(1)
    classes, images = np.unique(slots["label"]), np.unique(slots["sample"])
    of_classes = np.stack([scores[:, slots["label"] == label].mean(1) for label in classes], 1)
    of_images = np.stack([scores[:, slots["sample"] == image].mean(1) for image in images], 1)
    rows = probed_rows(dataset, _RECIPE, seed=1)
    true = dataset.test.labels[rows]
    np.testing.assert_array_equal(labels, true)
    assert told["true"] == (classes[of_classes.argmax(1)] == true).mean()
    leading = images[of_images.argmax(1)]
    counts = {str(image): count / len(rows) for image, count in Counter(leading.tolist()).items()}
    assert (told["images"], told["leads_for"]) == (len(counts), counts)
    for example in report["examples"]:
        at = int(np.flatnonzero(rows == example["row"])[0])
        assert example["label"] == true[at]
        (one,) = (layer for layer in example["layers"] if layer["layer"] == _LAYER)
        assert one["image"] == leading[at]
        assert one["label"] == dataset.train.labels[leading[at]]
        assert bytes.fromhex(one["pixels"]) == dataset.train.pixels[leading[at]].tobytes()
        assert one["of_mean"] == pytest.approx(of_images[at].max() / of_images[at].mean(), rel=1e-4)


def test_samples_and_the_query_set_know_what_they_looked_like(run: tuple[Path, Report], made_up_data: Path) -> None:
    with dualform.open(run[0]) as memory:
        (dataset,) = memory.info().previews
        samples = memory.sql("SELECT DISTINCT sample FROM slots ORDER BY sample").arrays["sample"]
        assert memory.previews(samples[:1000], dataset).known.all()
        assert memory.info().query_sets[0].previews == "images"


def test_the_mask_of_a_class_stands_beside_as_many_images_drawn_at_random(run: tuple[Path, Report]) -> None:
    report = run[1]
    whole, of_class, drawn = report["masks"]
    assert (whole["label"], of_class["label"], drawn["label"]) == (None, report["examples"][0]["said"], None)
    for one in (whole, of_class, drawn):
        assert len(one["recognised"]) == len(one["new_statistics"]) == 10
    assert whole["new_statistics"] != whole["recognised"]
    for mask in (of_class, drawn):
        assert 0 < mask["share"] <= 1
        assert 0 < mask["greatest"] <= mask["furthest"]
    assert "dualform weights RUN --where 'sample NOT IN (DRAWN)' --out FILE.safetensors --force" in report["commands"]


def test_the_control_is_drawn_at_random_among_all_images() -> None:
    rows, labels = np.arange(100, 120), np.repeat([3, 7], [5, 15])
    found = [draw_masks(rows, labels, [3], np.random.default_rng(seed)) for seed in range(30)]
    assert all(list(masks.values()) == [3, None] and "label <> 3" in masks for masks in found)
    drawn = [set(map(int, re.findall(r"\d+", list(masks)[1]))) for masks in found]
    assert all(len(one) == 5 for one in drawn)
    assert set.union(*drawn) == set(rows.tolist())


def test_statistics_are_taken_anew_and_put_back() -> None:
    network, images = build_network(2, 10, seed=0).eval(), torch.randn(40, 1, 28, 28)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with new_statistics(network, images):
        channels = network.conv1(images)
        torch.testing.assert_close(network.bn1.running_mean, channels.mean((0, 2, 3)))
        torch.testing.assert_close(network.bn1.running_var, channels.var((0, 2, 3)))
        assert not network.training
    assert network.bn1.momentum == 0.1
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_page_shows_each_example_and_names_the_commands(run: tuple[Path, Report]) -> None:
    out, report = run
    page = (report_folder(out) / "index.md").read_text()
    for example in report["examples"]:
        assert f"(images-{example['kind']}.png)" in page
    for command in (
        "verify RUN",
        "group-sum RUN --layer LAYER --query QUERIES.npy --by sample,label",
        "weights RUN --where",
    ):
        assert f"dualform {command}" in page


def test_the_page_is_made_again_from_the_report_alone(run: tuple[Path, Report], tmp_path: Path) -> None:
    report = json.loads((report_folder(run[0]) / "report.json").read_text())
    resnet18_page(tmp_path, report).write(report)
    for name in ("index.md", "report.json", "classes.png", "images-right.png", "images-wrong.png"):
        again, first = (report_folder(one) / name for one in (tmp_path, run[0]))
        assert first.exists() == again.exists()
        assert not first.exists() or again.read_bytes() == first.read_bytes()
