"""What test images attend to, hubs and dates, against NumPy; claims on made-up rankings, and figures of examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from dualform.query.engine import Engine, open_memory
from dualform.questions import QuerySetExamples
from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.images import attention
from dualform_studies.images.attention import (
    COMPARED,
    Datapoints,
    ask_attention,
    ask_datapoints,
    ask_greatest,
    ask_hubs,
    ask_key_norms,
    best_slots,
    hub_claims,
    layer_hubs,
    often_found,
    sampled_rows,
)
from dualform_studies.images.datasets import Dataset, Split, digits, load_dataset, permuted
from dualform_studies.images.prediction import (
    LayerSpotlight,
    Query,
    ask_spotlight,
    draw_distribution,
    draw_sums,
    draw_top_images,
)
from dualform_studies.images.single import SAMPLED, ask_dates, date_claims, kolmogorov, thirds
from dualform_studies.images.training import Checkpoint, Recipe, mixed_batches, record

LAYERS = ("layer-0", "layer-1", "layer-2")
STEPS, BATCH = 60, 32
GROUPS = [(name, label) for name in ("mnist", "fashion-mnist") for label in range(10)]


@dataclass(frozen=True)
class Recorded:
    """A memory of both datasets learned together, half learned, and what its slots are, row by row."""

    memory: Engine
    datasets: tuple[Dataset, Dataset]
    groups: np.ndarray
    """bool[T, G]: whether a slot is of each group."""
    samples: list[tuple[str, int]]
    points: Datapoints

    def checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(self.datasets[number], STEPS, last=True)

    def queries(self, layer: str, number: int) -> np.ndarray:
        return self.memory.query_set(self.checkpoint(number).query_set, layer).queries.astype(np.float64)

    def keys(self, layer: str) -> np.ndarray:
        return self.memory.keys(layer).astype(np.float64)

    def products(self, layer: str, number: int) -> np.ndarray:
        """Float64 scores of the test images of a dataset, and of all slots; those of equal keys are equal.

        Each key is scored once: a matrix product may round the same key differently at another place of the matrix.
        """
        keys, slots = np.unique(self.keys(layer), axis=0, return_inverse=True)
        return (self.queries(layer, number) @ keys.T)[:, slots]


@pytest.fixture(scope="module")
def recorded(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    whole = load_dataset("mnist", made_up_data), load_dataset("fashion-mnist", made_up_data)
    mnist, fashion = (replace(one, split=Split(one.split.kept, one.split.trained[:100])) for one in whole)
    datasets, recipe = (mnist, fashion), Recipe(hidden=(48, 32), lr=0.004, batch=BATCH, steps=STEPS)
    folder = tmp_path_factory.mktemp("claims") / "run"
    record(datasets, mixed_batches(datasets, recipe, seed=3), recipe, 3, folder)
    batches = list(mixed_batches(datasets, recipe, seed=3))
    groups = [(name, int(label)) for one in batches for name, label in zip(one.dataset, one.labels, strict=True)]
    samples = [(name, int(row)) for one in batches for name, row in zip(one.dataset, one.rows, strict=True)]
    with open_memory(folder) as memory:
        member = np.array([[one == group for group in GROUPS] for one in groups])
        points = ask_datapoints(memory)
        assert list(zip(points.datasets, points.labels.tolist(), strict=True)) == groups
        yield Recorded(memory, datasets, member, samples, points)


def best_images(scores: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The images of the best slots by score descending, then number; each once, three of each query."""
    ranked = np.argsort(-scores, axis=1, kind="stable")
    return np.array([list(dict.fromkeys(row.tolist()))[:3] for row in images[ranked]])


def test_datapoints_are_those_that_were_trained_on(recorded: Recorded):
    points, kinds = recorded.points, sorted(set(recorded.samples))
    assert points.steps.tolist() == [slot // BATCH for slot in range(STEPS * BATCH)]
    assert [kinds[image] for image in points.images] == recorded.samples
    assert points.visits.tolist() == [recorded.samples.count(kind) for kind in kinds]
    assert [recorded.samples[slot] for slot in points.first_slots] == kinds
    assert points.image_datasets.tolist() == [name for name, _ in kinds]
    values = np.random.default_rng(0).random(len(points.images))
    of_image = [np.mean(values[points.images == image]) for image in range(len(kinds))]
    np.testing.assert_allclose(points.mean_by_image(values), of_image)


@pytest.mark.parametrize("number", [0, 1])
def test_attention_is_that_of_float64(recorded: Recorded, number: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attention, "_AT_ONCE", 17)
    memory, points, checkpoint = recorded.memory, recorded.points, recorded.checkpoint(number)
    rows = np.array([0, 6, 16])
    for one in ask_attention(memory, LAYERS, checkpoint, recorded.datasets, points).layers:
        scores = np.abs(recorded.products(one.layer, number))
        assert list(one.groups) == GROUPS
        np.testing.assert_allclose(one.sums, scores @ recorded.groups, rtol=1e-6)
        np.testing.assert_array_equal(one.best, best_images(scores, points.images))
        assert all(len(set(row)) == 3 for row in one.best.tolist()), "three images, not three visits"
        found = ask_greatest(memory, one.layer, checkpoint, rows, recorded.datasets)
        expected = [[scores[at, recorded.groups[:, group]].max() for group in range(20)] for at in rows]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        lengths = np.linalg.norm(recorded.keys(one.layer), axis=1)
        np.testing.assert_allclose(ask_key_norms(memory, one.layer), lengths, rtol=1e-12)


def test_a_checkpoint_leaves_out_what_came_later(recorded: Recorded):
    begun = Checkpoint(recorded.datasets[0], 1, last=True)
    (found,) = ask_attention(recorded.memory, ["layer-1"], begun, recorded.datasets, recorded.points).layers
    trained = recorded.groups[:BATCH].any(axis=0)
    assert 0 < trained.sum() < 20
    np.testing.assert_array_equal(found.sums.any(axis=0), trained)
    ten = Checkpoint(recorded.datasets[0], 10, last=True)
    slots = best_slots(recorded.memory, "layer-1", ten, np.array([3, 5]), 4, "dot")
    assert slots.shape == (2, 4)
    assert (slots < 10 * BATCH).all()


def test_hubs_and_dates_are_those_of_float64(recorded: Recorded):
    memory, points, both = recorded.memory, recorded.points, (recorded.checkpoint(0), recorded.checkpoint(1))
    seen = [ask_attention(memory, LAYERS, one, recorded.datasets, points) for one in both]
    dates = ask_dates(memory, LAYERS, both[1], points)
    assert min(COMPARED // 2, SAMPLED) >= 60, "all test images are compared, and dated"
    for layer, hubs in ask_hubs(memory, seen).items():
        products = [recorded.products(layer, number) for number in (0, 1)]
        asked = np.concatenate([recorded.queries(layer, number) for number in (0, 1)])
        keys = np.linalg.norm(recorded.keys(layer), axis=1)
        signed, cosine = (
            np.concatenate(products),
            np.concatenate(products) / np.outer(np.linalg.norm(asked, axis=1), keys),
        )
        best = (best_images(scores, points.images) for scores in (np.abs(signed), signed, cosine))
        shares = [np.bincount(images.ravel(), minlength=len(points.visits)) / 120 for images in best]
        expected = layer_hubs(points, points.mean_by_image(ask_key_norms(memory, layer)), *shares)
        assert hubs == {"queries": 120, "compared": 120} | expected
        ranked = np.argsort(-products[1], axis=1, kind="stable")[:, :500]
        np.testing.assert_array_equal(dates[layer], points.steps[ranked])


def test_rows_are_drawn_once_each():
    assert sampled_rows(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = sampled_rows(1000, 200, 1).tolist()
    assert len(set(drawn)) == 200
    assert drawn == sorted(drawn) == sampled_rows(1000, 200, 1).tolist() != sampled_rows(1000, 200, 2).tolist()


ZERO, SEVEN, SHIRT = ("mnist", 4, 0), ("mnist", 8, 7), ("fashion-mnist", 4, 0)
Settings = dict[str, dict[tuple[str, int, int], float]]


def claimed(*layers: Settings) -> list[tuple[str, str]]:
    """Verdict and measure of both claims; by layer, the images that are often found and their shares."""
    keys = ("dataset", "sample", "label", "weight")
    found = [
        often_found({name: {"often": [dict(zip(keys, (*image, share), strict=True)) for image, share in own.items()]}
                     for name, own in one.items()})
        for one in layers
    ]  # fmt: skip
    return [(claim.verdict, claim.ours) for claim in hub_claims(dict(zip(("single", "joint"), found, strict=False)))]


def test_one_image_is_a_hub_in_two_studies():
    for single, joint, verdicts in (
        ({"layer-0": {ZERO: 0.06}}, {"layer-1": {ZERO: 0.05, SEVEN: 0.9}}, [HOLDS, HOLDS]),
        ({"layer-0": {ZERO: 0.2, SEVEN: 0.1}}, {"layer-0": {SEVEN: 0.05}}, [HOLDS, IN_PART]),
        ({"layer-0": {SHIRT: 0.2}, "layer-1": {SHIRT: 0.2}}, {"layer-0": {}}, [IN_PART, FAILS]),
        ({"layer-0": {}}, {"layer-0": {}}, [FAILS, FAILS]),
    ):
        assert [verdict for verdict, _ in claimed(single, joint)] == verdicts
    (_, ours), _ = claimed({"layer-0": {ZERO: 0.06}, "layer-1": {ZERO: 0.08}}, {"layer-2": {ZERO: 0.051}})
    assert "mnist image 4, class 0: 8.0 % in single (layer-1), 5.1 % in joint (layer-2)" in ours
    assert claimed({"layer-0": {ZERO: 0.06}}) == [], "layers of one study are no different settings"


def test_the_report_tells_of_the_greatest_and_of_those_often_found():
    names = np.array(["fashion-mnist", "mnist", "mnist", "mnist", "fashion-mnist", "mnist"], dtype=object)
    points = Datapoints(names, np.array([0, 0, 7, 1, 9, 2]), np.array([4, 4, 8, 9, 11, 12]), np.arange(6))
    shares = (
        np.array(counts) / queries
        for counts, queries in (([0, 4, 30, 10, 20, 5], 100), ([0, 9, 0, 9, 0, 8], 50), ([0, 0, 0, 10, 0, 0], 50))
    )
    one = layer_hubs(points, np.arange(1.0, 7.0), *shares)
    told = [(image["sample"], image["weight"]) for ranking in ("by weight", "by cosine") for image in one[ranking]]
    assert told == [(11, 0.18), (8, 0.18), (12, 0.16), (8, 0.2)], "what was never found is not among them"
    assert [image["weight"] for image in one["often"]] == [0.3, 0.1, 0.2, 0.05], "from 1/20 on"
    assert one["often"][0] == {"dataset": "mnist", "sample": 4, "label": 0, "weight": 0.3, "norm": 3.0}


def dated(*parts: tuple[int, int]) -> list[tuple[str, str]]:
    """Verdict and measure of both claims, where of 100 datapoints so many are of the first and of the last third; the
    first layer, of which nothing is claimed, comes before."""
    steps = [np.repeat([0, 15, 29], [early, 100 - early - late, late]) for early, late in ((0, 100), *parts)]
    layers = {f"layer-{at}": np.tile(own, (3, 1)) for at, own in enumerate(steps)}
    return [(claim.verdict, claim.ours) for claim in date_claims(layers, 30)]


def test_dates_are_judged_by_thirds_of_the_training():
    assert thirds(np.array([[0, 9, 10, 29], [19, 20, 21, 22]]), 30) == [0.25, 0.25, 0.5]
    for late, verdict in (((37, 20), HOLDS), ((39, 20), IN_PART), ((39, 50), FAILS)):
        assert dated(*((30, share) for share in late))[0][0] == verdict
    for first, second, verdict in (
        ((66, 17), (17, 66), HOLDS),
        ((66, 17), (66, 16), IN_PART),
        ((34, 0), (66, 16), IN_PART),
        ((67, 16), (33, 33), FAILS),
        ((33, 67), (33, 33), FAILS),
        ((16, 16), (33, 33), FAILS),
    ):
        found, ours = dated(first, second)[1]
        assert found == verdict
        assert f"{first[0]}.0 / {100 - sum(first)}.0 / {first[1]}.0 % at layer-1" in ours
    steps = np.random.default_rng(2).integers(0, 30, (4, 25))
    expected = [max(abs(np.mean(row <= step) - (step + 1) / 30) for step in range(30)) for row in steps]
    np.testing.assert_allclose(kolmogorov(steps, 30), expected)


@pytest.fixture(scope="module")
def pair() -> tuple[Dataset, Dataset]:
    return digits(), permuted(digits())


@pytest.fixture
def layers(pair: tuple[Dataset, Dataset]) -> list[LayerSpotlight]:
    groups = tuple((dataset.name, label) for dataset in pair for label in range(10))
    top = [{"dataset": "digits", "label": 3, "sample": row, "step": row, "score": 9.5 - row} for row in range(3)]
    rng = np.random.default_rng(0)
    return [
        LayerSpotlight(
            layer=f"layer-{number}",
            groups=groups,
            best=[np.sort(rng.random(40 + at, dtype=np.float32))[::-1] for at in range(20)],
            sums=rng.random(20) * 1000,
            counts=np.full(20, 480),
            top=top[: 3 - number],
        )
        for number in range(2)
    ]


def panels_of(figure: Any) -> list[Axes]:
    return [axes for axes in figure.get_axes() if axes.get_ylabel()]


@pytest.mark.parametrize("draw", [draw_distribution, draw_sums])
def test_figures_name_axes_leaders_and_the_papers_figure_and_mark_the_querys_classes(
    draw, tmp_path: Path, pair, layers, drawn
):
    true = int(pair[0].test.labels[4])
    given = (true + 1) % 10
    layers[0].best[7][0] = layers[1].best[13][0] = 2.0
    draw(tmp_path / "figure.png", layers, Query(pair[0], 4, given), pair, "Figure 4")
    panels = panels_of(drawn[0])
    if draw is draw_distribution:
        label, what, leaders = "attention weight", "greatest weight", ["digits 7", "permuted-digits 3"]
        assert panels[-1].get_xlabel() == (
            "training class; within each, its 59 datapoints of greatest weight from the left,\n"
            "ranks on a logarithmic scale (dots: ranks 1, 10)"
        )
    else:
        label, what = "summed weights", "greatest sum"
        best = [divmod(int(layer.sums.argmax()), 10) for layer in layers]
        leaders = [f"{pair[dataset].name} {number}" for dataset, number in best]
        assert panels[-1].get_xlabel() == "training class"
    titles = [f"layer-{at}: the {what} goes to {leader}" for at, leader in enumerate(leaders)]
    assert [panel.get_title(loc="left") for panel in panels] == titles
    assert all(panel.get_ylabel().startswith(label) for panel in panels)
    ticks = panels[-1].get_xticklabels()
    names = [str(number) for number in range(10)] * 2
    names[true] += " ★"
    for at in (given, 10 + given):
        names[at] += " ●"
    assert [tick.get_text() for tick in ticks] == names
    assert {tick.get_weight() for tick in ticks if tick.get_text()[-1] in "★●"} == {"bold"}
    framed = [patch for patch in panels[0].patches if patch.get_facecolor()[3] == 0]
    assert sorted(round(patch.get_x()) for patch in framed) == [given, 10 + given]
    legends = [axes.get_legend() for axes in drawn[0].get_axes() if axes.get_legend()]
    assert [text.get_text() for one in legends for text in one.texts] == ["★ its class", "● the class recognised"]
    words = " ".join(text.get_text() for axes in drawn[0].get_axes() for text in axes.texts)
    assert "(Figure 4 of the paper)" in words
    assert f"digits test image 4, class {true}, recognised as {given}" in words
    assert "permuted-digits" in words


def test_a_query_that_is_recognised_has_one_mark(tmp_path: Path, pair, layers, drawn):
    true = int(pair[0].test.labels[4])
    draw_sums(tmp_path / "sums.png", layers, Query(pair[0], 4, true), pair, "Figure 5")
    ticks = panels_of(drawn[0])[-1].get_xticklabels()
    assert [tick.get_text() for tick in ticks if not tick.get_text().isdigit()] == [f"{true} ★"]


def test_a_line_is_the_weights_by_rank_and_its_first_is_seen(tmp_path: Path, pair, layers, drawn):
    layers[0].best[0] = np.linspace(9, 1, 500, dtype=np.float32)
    draw_distribution(tmp_path / "best.png", layers, Query(pair[0], 4, 3), pair, "Figure 4")
    line, dots = (one for one in panels_of(drawn[0])[0].get_lines() if one.get_ydata()[0] == 9)
    np.testing.assert_array_equal(dots.get_ydata(), layers[0].best[0][[0, 9, 99]])
    np.testing.assert_allclose(dots.get_xdata(), 0.08 + 0.84 * np.log([1, 10, 100]) / np.log(500))
    ranks = np.exp((np.asarray(line.get_xdata()) - 0.08) / 0.84 * np.log(500)).round().astype(int)
    np.testing.assert_array_equal(line.get_ydata(), layers[0].best[0][ranks - 1])
    assert (ranks[0], ranks[-1]) == (1, 500)


def test_top_images_name_dataset_class_step_and_weights_of_the_same_decimals(tmp_path: Path, pair, layers, drawn):
    layers[1] = replace(layers[1], top=[hit | {"score": hit["score"] + 338} for hit in layers[1].top])
    draw_top_images(tmp_path / "top.png", layers, Query(pair[0], 4, 3), pair, "Figure 10")
    titles = [axes.get_title() for axes in drawn[0].get_axes() if "weight" in axes.get_title()]
    assert titles == [
        "1. digits: 3\nweight 9.5, step 0", "2. digits: 3\nweight 8.5, step 1", "3. digits: 3\nweight 7.5, step 2",
        "1. digits: 3\nweight 347.5, step 0", "2. digits: 3\nweight 346.5, step 1",
    ]  # fmt: skip


def test_groups_stand_in_the_order_of_training(recorded: Recorded):
    queries = QuerySetExamples(recorded.checkpoint(1).query_set, (2,))
    (layer,) = ask_spotlight(recorded.memory, ["layer-1"], queries, [dataset.name for dataset in recorded.datasets])
    assert list(layer.groups) == GROUPS
    scores = np.abs(recorded.products("layer-1", 1)[2])
    for at, (best, total, count) in enumerate(zip(layer.best, layer.sums, layer.counts, strict=True)):
        own = scores[recorded.groups[:, at]]
        np.testing.assert_allclose(best, np.sort(own)[::-1], rtol=1e-6)
        assert (total, count) == (pytest.approx(own.sum()), len(own))
    assert layer.strongest == layer.groups[int(layer.sums.argmax())]
    assert [hit["score"] for hit in layer.top] == sorted((hit["score"] for hit in layer.top), reverse=True)
    assert len({(hit["dataset"], hit["sample"]) for hit in layer.top}) == 5
