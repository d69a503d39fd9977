"""The study continual: masking, retraining, forgetting."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import dualform
from dualform.query.engine import Engine, open_memory
from dualform_studies.assignment import Assignment, data_folder
from dualform_studies.claims import FAILS, HOLDS, IN_PART
from dualform_studies.images import masking
from dualform_studies.images.continual import (
    _classes,
    beside_paper,
    forgetting_claims,
    interference_in_words,
    run_continual,
)
from dualform_studies.images.datasets import digits, load_dataset, permuted
from dualform_studies.images.masking import (
    Part,
    draw_last_steps,
    draw_masks,
    leave_out,
    masked_weights,
    parts,
    retrain,
    stop_at,
    sweep,
)
from dualform_studies.images.training import (
    Pair,
    Recipe,
    TrainedNetwork,
    batch_rows,
    build_network,
    train_in_succession,
    train_part,
)
from dualform_studies.report import Report, percent
from dualform_studies.studies import run_study
from tests.studies.images.files import at_hand

MOMENTS = {"after_first", "final", "masked", "as_of_first"}


@pytest.fixture(scope="module")
def miniature(made_up_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Any]]:
    """The study on made-up patterns with a small network; its folder, report and what progress was told."""
    out, told = tmp_path_factory.mktemp("continual") / "run", []
    recipe = Recipe(hidden=(48, 32), lr=0.05, batch=32)
    report = run_continual(Assignment(out, made_up_data, 40, progress=lambda *line: told.append(line)), recipe)
    return out, report, told


def check_report(report: dict[str, Any], slots: int) -> None:
    assert report["slots"] == slots
    assert set(report["accuracy"]) == {"mnist", "fashion-mnist"}
    assert all(set(moments) == MOMENTS for moments in report["accuracy"].values())
    first = report["accuracy"]["mnist"]
    assert first["as_of_first"] == pytest.approx(first["after_first"], abs=0.002)
    assert set(report["verify"]) == {"layer-0", "layer-1", "layer-2"}
    assert all(layer["exact"] and layer["reconstruction_error"] < 1e-4 for layer in report["verify"].values())
    assert all(error < 1e-4 for error in report["weights_as_of_first"].values())
    assert report["unharmed"] is True


def test_miniature_reports_what_the_full_study_does(miniature):
    out, report, _ = miniature
    check_report(report, slots=2 * 40 * 32)
    assert report["accuracy"]["mnist"]["after_first"] > 0.9
    assert set(report["cancellation"]) == {"layer-0", "layer-1", "layer-2"}
    assert all(figure >= 1 and math.isfinite(figure) for figure in report["cancellation"].values())
    assert report["training_images"] == 2 * (np.random.RandomState(0xC1CAFA52).rand(334) > 0.2).sum()
    assert report["disk_bytes"] > 2 * 40 * 32 * (48 + 32 + 10) * 4
    assert json.loads((out / "report" / "report.json").read_text()) == report


def test_miniature_leaves_a_memory_with_query_sets_and_label_names(miniature):
    with dualform.open(miniature[0]) as memory:
        info = memory.info()
        assert info.datasets == {"mnist": 40 * 32, "fashion-mnist": 40 * 32}
        assert {query_set.name: query_set.rows for query_set in info.query_sets} == {
            "test-mnist": 60,
            "test-fashion-mnist": 60,
        }
        assert memory.query_set("test-mnist").labels.tolist() == [row % 10 for row in range(60)]
        names = memory.sql("SELECT name FROM labels WHERE dataset = 'fashion-mnist' AND label = 9")
        assert names["name"].tolist() == ["ankle boot"]
        repeating = {layer.name: layer.distinct_keys for layer in info.layers}
        assert repeating["layer-0"] <= 800
        assert repeating["layer-1"] == 2 * 40 * 32


def test_each_datapoint_is_of_the_dataset_of_its_part_and_of_the_images_trained_on(miniature, made_up_data: Path):
    with dualform.open(miniature[0]) as memory:
        slots = memory.sql("SELECT step, dataset, label, sample FROM slots ORDER BY slot")
    for part, name in enumerate(("mnist", "fashion-mnist")):
        dataset, own = load_dataset(name, made_up_data), slots["dataset"] == name
        np.testing.assert_array_equal(own, slots["step"] // 40 == part)
        assert set(slots["sample"][own]) <= set(dataset.split.trained.tolist())
        np.testing.assert_array_equal(slots["label"][own], dataset.train.labels[slots["sample"][own]])


def test_accuracies_stand_beside_the_papers_text_and_code():
    accuracy = {name: dict.fromkeys(MOMENTS, 0.5) for name in ("mnist", "fashion-mnist")}
    words = {"after_first": "after mnist", "final": "at the end", "masked": "at the end,\nfashion-mnist removed"}
    found = list(beside_paper({"accuracy": accuracy, "variant": False}, words))
    assert [(row.what, row.text, row.code) for row in found] == [
        ("mnist, after mnist", "97 %", "96.4 %"),
        ("mnist, at the end", "45 %", "47.8 %"),
        ("fashion-mnist, at the end", "85 %", "87.6 %"),
        ("mnist, at the end, fashion-mnist removed", "as after MNIST", ""),
    ]


def test_nothing_of_the_paper_stands_beside_a_variant_of_its_recipe(miniature):
    out, report, _ = miniature
    assert report["variant"]
    assert report["beside_paper"] == []
    (table,) = (table for table in report["tables"] if table["name"] == "accuracy")
    assert table["columns"] == ["network", "mnist", "fashion-mnist"]
    text = (out / "report" / "index.md").read_text()
    assert "One network learns MNIST for 40 updates" in text
    assert "It does so by a variant of the recipe of the paper's code: SGD" in text


def test_the_page_says_in_figures_what_is_forgotten_and_what_comes_back(miniature):
    out, report, _ = miniature
    text = (out / "report" / "index.md").read_text()
    told = {moment: percent(reached) for moment, reached in report["accuracy"]["mnist"].items()}
    assert f"{told['after_first']} are recognised after mnist, {told['final']} at the end, and {told['masked']}" in text
    assert "The sum as of step 40 has none of it" in text


def of_part(label: int | None, masked: float, retrained: float, moved: float, cancellation: float) -> dict[str, Any]:
    measures = {"moved": {"layer-0": moved, "layer-1": 0.1}, "cancellation": {"layer-0": 1.0, "layer-1": cancellation}}
    return {"label": label, "masked": {"second": masked}, "retrained": {"second": retrained}} | measures


@pytest.mark.parametrize(
    ("moved", "masked", "told"), [(2.0, 0.1, True), (0.5, 0.1, False), (2.0, 0.8, False), (2.0, 0.9, False)]
)
def test_a_masked_class_is_explained_where_its_terms_go_further_than_all(moved: float, masked: float, told: bool):
    nothing, whole = of_part(None, 0.9, 0.9, 0, 1), of_part(None, 0.1, 0.1, 0.7, 200)
    text = _classes([nothing, whole, of_part(0, 0.15, 0.7, 3, 2), of_part(1, masked, 0.8, moved, 1.2)], "second")
    assert "70 to 80 % of second right" in text
    assert f"move the weights {moved:.1f} to 3.0 times as far" in text
    assert "those of all of second 0.7 times; the cancellation is 1.2 to 2.0 of one class, and 200.0 of all" in text
    assert ("So the terms of each class go further" in text) == told


def test_miniature_draws_its_figures(miniature):
    out, report, _ = miniature
    drawn = {path.name for path in (out / "report").glob("*.png")}
    swept = {"accuracy.png", "masks.png", "last-steps.png", "hubs.png", "hub-distribution.png"}
    swept |= {"dates-mnist.png", "dates-fashion-mnist.png"}
    assert drawn == swept | {name for example in report["examples"].values() for name in example["figures"]}
    assert "recognised-fashion-mnist" in report["examples"]
    assert {path.stem for path in (out / "report").glob("*.svg")} == {Path(name).stem for name in drawn}
    page = (out / "report" / "index.html").read_text()
    assert all(f'src="{name}"' in page for name in drawn)


def test_captions_name_the_papers_figures(miniature):
    out, report, _ = miniature
    page = (out / "report" / "index.md").read_text()
    beside = {
        "interference": ("Figure 8", "Figure 9", "Figure 22"),
        "recognised-fashion-mnist": ("Figure 24", "Figure 25", "Figure 23"),
        "recognised-mnist": ("Figure 27", "Figure 28", "Figure 26"),
    }
    for name in report["examples"]:
        assert all(f"({figure} of the paper)" in page for figure in beside[name])


def test_every_claim_leads_to_a_heading(miniature):
    out, report, _ = miniature
    page = (out / "report" / "index.md").read_text()
    headings = {claim["heading"] for claim in report["claims"]}
    assert "Forgetting" in headings
    assert all(f"## {heading}\n" in page for heading in headings)


def test_every_mask_stands_beside_a_retraining_and_its_cancellation(miniature):
    out, report, _ = miniature
    rows = report["masks"]
    assert [row["part"] for row in rows[:3]] == ["nothing", "all of fashion-mnist", "its class 0, t-shirt"]
    for moment, kind in (("masked", "masked"), ("after_first", "retrained")):
        for dataset in ("mnist", "fashion-mnist"):
            assert rows[1][kind][dataset] == report["accuracy"][dataset][moment]
    assert all(set(row["cancellation"]) == set(report["verify"]) for row in rows[1:])
    table = json.loads((out / "report" / "masks.json").read_text())
    assert len(table["rows"]) == len(rows)


def test_progress_counts_every_step_of_both_trainings(miniature):
    told = miniature[2]
    for kind in ("unrecorded", "recorded"):
        for name in ("mnist", "fashion-mnist"):
            assert (f"training on {name} ({kind})", 40, 40) in told


@pytest.mark.usefixtures("fewer_test_images", "blank_figures")
def test_real_data_in_miniature(tmp_path: Path):
    missing = [name for name in ("mnist", "fashion-mnist") if not at_hand(name, None)]
    if missing:
        pytest.skip(
            f"no {' or '.join(missing)} in {data_folder(None)}: set DUALFORM_DATA to the folder that holds them"
        )
    report = run_study("continual", Assignment(tmp_path / "run", steps=20))
    check_report(report, slots=2 * 20 * 128)
    assert report["accuracy"]["mnist"]["after_first"] > 0.3


RECIPE = Recipe(hidden=(24, 16), lr=0.05, batch=32, steps=60)
LAYERS = ("layer-0", "layer-1", "layer-2")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return digits(), permuted(digits())


@pytest.fixture(scope="module")
def recorded(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainedNetwork]:
    folder = tmp_path_factory.mktemp("masking") / "run"
    return folder, train_in_succession(pair, RECIPE, seed=3, record_to=folder)


@pytest.fixture(scope="module")
def memory(recorded: tuple[Path, TrainedNetwork]) -> Iterator[Engine]:
    with open_memory(recorded[0]) as opened:
        yield opened


@pytest.fixture(scope="module")
def swept(memory: Engine, recorded: tuple[Path, TrainedNetwork], pair: Pair) -> list[Report]:
    chosen, trained = parts(pair, RECIPE), recorded[1]
    retrained = retrain(trained, chosen, pair, RECIPE, seed=3)
    return sweep(memory, chosen, retrained, trained, pair, RECIPE)


def coefficients() -> np.ndarray:
    """float64[steps]: what SGD with momentum makes of the gradient of each step by the end (DESIGN, section 4)."""
    steps = 2 * RECIPE.steps
    left = steps - np.arange(steps)
    return -RECIPE.lr * (1 - RECIPE.momentum**left) / (1 - RECIPE.momentum)


def terms(memory: Engine, layer: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Keys, values with all factors, and the columns of all slots, in float64."""
    count = 2 * RECIPE.steps * RECIPE.batch
    columns = memory.sql("SELECT step, dataset, label FROM slots ORDER BY slot")
    clip = memory.sql("SELECT clip FROM steps ORDER BY step")["clip"].astype(np.float64)
    store = memory._view.snapshot
    keys = store.keys(layer).entry_block(0, count).astype(np.float64)
    values = store.values(layer).block(0, count).astype(np.float64)
    values *= (coefficients() * clip)[columns["step"]][:, None]
    return keys, values, {name: columns[name] for name in ("step", "dataset", "label")}


def masks_of_part(part: Part, columns: dict[str, np.ndarray], pair: Pair) -> np.ndarray:
    """bool[T], in NumPy's own words."""
    second = columns["dataset"] == pair[1].name
    if part.label is not None:
        return np.asarray(second & (columns["label"] == part.label))
    return np.asarray(columns["step"] >= 2 * RECIPE.steps - part.last)


def summed(memory: Engine, part: Part, pair: Pair) -> dict[str, torch.Tensor]:
    weights = dict(build_network(RECIPE.widths(pair[0]), seed=3).state_dict())
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        stays = ~masks_of_part(part, columns, pair)
        weight, bias = values[stays].T @ keys[stays], values[stays].sum(axis=0)
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"].double() + torch.from_numpy(weight)
        weights[f"{layer}.bias"] = weights[f"{layer}.bias"].double() + torch.from_numpy(bias)
    return weights


def test_the_parts_are_the_second_dataset_its_classes_and_its_last_steps(pair: Pair):
    chosen = parts(pair, Recipe())
    assert len(chosen) == 1 + 10 + 7
    assert (chosen[0].mask, chosen[0].last) == ("dataset <> 'permuted-digits'", 3000)
    assert [part.label for part in chosen[1:11]] == list(range(10))
    assert chosen[4].mask == "NOT (dataset = 'permuted-digits' AND label = 3)"
    assert [(part.last, part.mask) for part in chosen[12:14]] == [(100, "step < 5900"), (300, "step < 5700")]
    assert [part.last for part in parts(pair, Recipe(steps=3))[11:]] == [1, 2]


def test_masked_weights_are_numpys_sum_of_what_stays(memory: Engine, pair: Pair):
    for part in parts(pair, RECIPE):
        found, oracle, direct = masked_weights(memory, part), summed(memory, part, pair), memory.weights(part.mask)
        for name, truth in oracle.items():
            torch.testing.assert_close(found[name].double(), truth, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found[name], direct[name], rtol=1e-5, atol=1e-6)


def test_masked_accuracy_is_that_of_numpys_network(memory: Engine, swept: list[Report], pair: Pair):
    for part, row in zip(parts(pair, RECIPE), swept[1:], strict=True):
        weights = summed(memory, part, pair)
        for dataset in pair:
            signal = dataset.inputs(dataset.test).astype(np.float64)
            for layer in LAYERS:
                signal = signal @ weights[f"{layer}.weight"].numpy().T + weights[f"{layer}.bias"].numpy()
                signal = np.maximum(signal, 0) if layer != LAYERS[-1] else signal
            right = int((signal.argmax(axis=1) == dataset.test.labels).sum())
            assert row["masked"][dataset.name] * len(dataset.test) == pytest.approx(right, abs=1)


def test_datapoints_and_cancellation_are_those_of_what_is_left_out(memory: Engine, swept: list[Report], pair: Pair):
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        for part, row in zip(parts(pair, RECIPE), swept[1:], strict=True):
            gone = masks_of_part(part, columns, pair)
            assert row["datapoints"] == gone.sum()
            norms = np.linalg.norm(keys[gone], axis=1) * np.linalg.norm(values[gone], axis=1)
            whole = np.linalg.norm(values[gone].T @ keys[gone])
            assert row["cancellation"][layer] == pytest.approx(norms.sum() / whole, rel=1e-4)


def test_how_far_a_part_moved_the_weights_is_told_against_all_of_training(
    memory: Engine, swept: list[Report], pair: Pair
):
    for layer in LAYERS:
        keys, values, columns = terms(memory, layer)
        keys = np.column_stack([keys, np.ones(len(keys))])
        moved = np.linalg.norm(values.T @ keys)
        for part, row in zip(parts(pair, RECIPE), swept[1:], strict=True):
            gone = masks_of_part(part, columns, pair)
            assert row["moved"][layer] == pytest.approx(np.linalg.norm(values[gone].T @ keys[gone]) / moved, rel=1e-4)


def test_training_without_the_last_steps_is_the_memory_as_of_then(memory: Engine, recorded, pair: Pair):
    last = [part for part in parts(pair, RECIPE) if part.label is None]
    for part, weights in zip(last, retrain(recorded[1], last, pair, RECIPE, seed=3), strict=True):
        rebuilt = memory.weights(at_step=2 * RECIPE.steps - part.last)
        for name, weight in weights.items():
            torch.testing.assert_close(rebuilt[name], weight, rtol=1e-4, atol=1e-5)


def test_nothing_left_out_is_the_network_as_trained(swept: list[Report]):
    assert swept[0]["masked"] == swept[0]["retrained"]
    assert swept[0]["datapoints"] == 0
    assert swept[1]["masked"][digits().name] > swept[0]["masked"][digits().name]


PAIR = (digits(), permuted(digits()))


def row(part: str, masked: float, retrained: float, label: int | None = None, last: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"part": part, "label": label, "last": last}
    for kind, first in (("masked", masked), ("retrained", retrained)):
        found[kind] = {PAIR[0].name: first, PAIR[1].name: 1 - first}
    if part != "nothing":
        found |= {"cancellation": {"layer-0": 12.4, "layer-1": 150.6}, "moved": {"layer-0": 0.25, "layer-1": 0.125}}
    return found


SWEPT = [
    row("nothing", 0.5, 0.5),
    row("all of permuted-digits", 0.9, 0.95, last=40),
    row("its class 0, 0", 0.1, 0.6, label=0),
    row("its class 1, 1", 0.2, 0.55, label=1),
    row("its last 30 steps", 0.75, 0.85, last=30),
    row("its last 10 steps", 0.6, 0.65, last=10),
]


def test_rows_are_the_whole_dataset_and_its_classes_in_percent(tmp_path: Path, drawn: list[Figure]):
    assert draw_masks(tmp_path / "masks.png", SWEPT, PAIR).stat().st_size > 1000
    first, second, cancellation, moved = drawn[0].get_axes()
    assert [panel.get_xlabel() for panel in (first, second)] == ["test accuracy (%)"] * 2
    assert [text.get_text() for text in first.texts] == ["50", "90", "10", "20", "50", "95", "60", "55"]
    assert [text.get_text() for text in second.texts] == ["50", "10", "90", "80", "50", "5", "40", "45"]
    rows = [tick.get_text() for tick in first.get_yticklabels()]
    assert rows == ["nothing", "all of permuted-digits", "class 0, 0", "class 1, 1"]
    assert [text.get_text() for text in cancellation.texts] == ["151"] * 3
    assert [text.get_text() for text in moved.texts] == ["0.25"] * 3
    assert list(cancellation.get_lines()[0].get_ydata()) == [1, 2, 3], "nothing left out has no cancellation"


def test_masked_and_retrained_bars_are_told_apart_by_a_hatch(tmp_path: Path, drawn: list[Figure]):
    draw_masks(tmp_path / "masks.png", SWEPT, PAIR)
    first = drawn[0].get_axes()[0]
    assert [bar.get_hatch() for bar in first.patches] == [None] * 4 + ["/////"] * 4
    assert [text.get_text() for text in drawn[0].legends[0].texts] == ["terms removed", "retrained"]


def test_lines_go_from_nothing_left_out_to_everything_evenly(tmp_path: Path, drawn: list[Figure]):
    assert draw_last_steps(tmp_path / "last.png", SWEPT, PAIR).stat().st_size > 1000
    upper, lower = drawn[0].get_axes()
    masked, stopped, *_ = upper.get_lines()
    assert [tick.get_text() for tick in lower.get_xticklabels()] == ["0", "10", "30", "40"]
    assert list(masked.get_xdata()) == [0, 1, 2, 3]
    assert list(masked.get_ydata()) == pytest.approx([50, 60, 75, 90])
    assert list(stopped.get_ydata()) == pytest.approx([50, 65, 85, 95])
    assert [list(line.get_xdata()) for line in lower.get_lines()] == [[1, 2, 3]] * 2
    assert [set(line.get_ydata()) for line in lower.get_lines()] == [{12.4}, {150.6}]
    assert upper.get_ylabel() == "test accuracy (%)"
    assert lower.get_ylabel() == "cancellation:\nsum of norms /\nnorm of sum"
    assert lower.get_xlabel().startswith("last steps of training left out (updates")
    assert len({line.get_marker() for line in lower.get_lines()}) == 2


RETRAINING_RECIPE = Recipe(hidden=(16,), lr=0.05, batch=32, steps=60)


@pytest.fixture(scope="module")
def retraining_pair() -> Pair:
    return digits(), permuted(digits())


@pytest.fixture(scope="module")
def trained(retraining_pair: Pair) -> TrainedNetwork:
    return train_in_succession(retraining_pair, RETRAINING_RECIPE, seed=3)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


def test_without_the_second_dataset_it_is_the_network_after_the_first(retraining_pair: Pair, trained: TrainedNetwork):
    whole = parts(retraining_pair, RETRAINING_RECIPE)[0]
    (weights,) = retrain(trained, [whole], retraining_pair, RETRAINING_RECIPE, seed=3)
    assert same(weights, trained.after_first)


def test_trained_to_the_end_again_it_is_the_final_network(retraining_pair: Pair, trained: TrainedNetwork):
    """So the momentum, the order of the images and what the first part left are those of the training itself."""
    before = deepcopy(trained.optimizer_after_first)
    weights = stop_at(trained, [0, 20, 60], retraining_pair, RETRAINING_RECIPE, seed=3)
    assert same(weights[0], trained.after_first)
    assert same(weights[2], trained.final)
    assert not same(weights[1], trained.final)
    again = stop_at(trained, [60], retraining_pair, RETRAINING_RECIPE, seed=3)
    assert same(again[0], trained.final)
    for number, state in before["state"].items():
        kept = trained.optimizer_after_first["state"][number]["momentum_buffer"]
        assert torch.equal(kept, state["momentum_buffer"])


def test_it_stops_where_a_shorter_training_ends(retraining_pair: Pair, trained: TrainedNetwork):
    network = build_network(RETRAINING_RECIPE.widths(retraining_pair[0]), seed=3)
    optimizer = RETRAINING_RECIPE.optimizer(network)
    train_part(network, optimizer, retraining_pair[0], RETRAINING_RECIPE, seed=3, part=0)
    train_part(network, optimizer, retraining_pair[1], RETRAINING_RECIPE.with_steps(20), seed=3, part=1)
    assert same(stop_at(trained, [20], retraining_pair, RETRAINING_RECIPE, seed=3)[0], dict(network.state_dict()))


def test_a_class_left_out_is_not_trained_and_the_others_keep_their_order(retraining_pair: Pair):
    second = retraining_pair[1]
    taken = list(masking._rows_without(4, second, RETRAINING_RECIPE, seed=3))
    assert len(taken) == RETRAINING_RECIPE.steps
    assert {len(rows) for rows in taken} == {RETRAINING_RECIPE.batch}
    left = np.concatenate(taken)
    assert set(second.train.labels[left].tolist()) == set(range(10)) - {4}
    order = np.concatenate(list(batch_rows(second.split.trained, RETRAINING_RECIPE.with_steps(100), seed=3, part=1)))
    np.testing.assert_array_equal(left, order[second.train.labels[order] != 4][: len(left)])


def test_without_a_class_training_speaks_against_it(retraining_pair: Pair, trained: TrainedNetwork):
    """Where no image is of a class, every error signal of its output is positive, and every update lowers its bias."""
    weights = leave_out(trained, 4, retraining_pair, RETRAINING_RECIPE, seed=3)
    assert not same(weights, trained.final)
    bias = weights["layer-1.bias"] - trained.after_first["layer-1.bias"]
    assert bias.argmin() == 4


def first_of(count: int) -> np.ndarray:
    """The first so many of 1,000 test images are recognised."""
    return np.arange(1000) < count


@pytest.mark.parametrize(
    ("after", "end", "masked", "forgotten", "back"),
    [
        (970, 470, 965, HOLDS, HOLDS),
        (970, 710, 960, HOLDS, HOLDS),
        (970, 711, 959, IN_PART, IN_PART),
        (970, 470, 720, HOLDS, IN_PART),
        (970, 470, 719, HOLDS, FAILS),
        (970, 962, 961, IN_PART, FAILS),
        (970, 963, 970, FAILS, FAILS),
        (960, 970, 965, FAILS, FAILS),
    ],
)
def test_mnist_is_forgotten_and_comes_back_with_the_mask(after: int, end: int, masked: int, forgotten: str, back: str):
    moments = {"after_first": first_of(after), "final": first_of(end), "masked": first_of(masked)}
    claims = forgetting_claims(moments)
    assert [claim.verdict for claim in claims] == [forgotten, back]
    assert f"{after / 10:.1f} % after MNIST, {end / 10:.1f} % at the end" in claims[0].ours
    assert f"{masked / 10:.1f} % with them removed" in claims[1].ours


def test_a_page_without_an_example_of_interference_says_so():
    report = {"interference": {"spoilt": 3, "mistake": [1, 3], "like_the_papers": 0}, "examples": {"interference": {}}}
    assert interference_in_words(report).endswith("One of them is shown.")
    report["examples"] = {"recognised-mnist": {}}
    said = interference_in_words(report)
    assert "So there is no example of interference." in said
    assert said.endswith("of the classes of the paper's, where there are such.")
