"""Datasets of images and their splits; the paper's recipe; and parts of a second training masked, or left out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import torch
from matplotlib.figure import Figure

from dualform.errors import Damaged, NotFound
from dualform.query.engine import Engine, open_memory
from dualform_studies.assignment import data_folder
from dualform_studies.images.datasets import (
    FOLDER,
    SOURCES,
    Split,
    digits,
    draw_split,
    every_row,
    load_dataset,
    permuted,
    read_cifar10,
    read_idx,
)
from dualform_studies.images.masking import draw_masks, leave_out, masked_weights, parts, sweep
from dualform_studies.images.study import CONTINUAL, JOINT, SINGLE
from dualform_studies.images.training import (
    Pair,
    Recipe,
    Trained,
    accuracy,
    batch_rows,
    build_network,
    drawn_rows,
    epochs,
    layer_names,
    mixed_batches,
    predictions,
    train,
    train_in_succession,
    with_weights,
)
from dualform_studies.report import Report
from tests.studies.images.files import (
    CIFAR10_EACH,
    at_hand,
    cifar10_records,
    write_cifar10,
    write_dataset,
    write_idx,
)


def test_inputs_are_normalised_by_the_training_images_that_are_kept(made_up_data: Path):
    dataset = load_dataset("mnist", made_up_data)
    pixels = dataset.train.pixels.astype(np.float64)
    kept = pixels[dataset.split.kept]
    assert len(kept) == 400 - 400 // 6
    assert (dataset.mean.item(), dataset.std.item()) == pytest.approx((kept.mean(), kept.std()), rel=1e-12)
    inputs = dataset.inputs(dataset.train)
    assert inputs.dtype == np.float32
    np.testing.assert_allclose(inputs, (pixels - kept.mean()) / kept.std(), atol=1e-5)
    alone = dataset.inputs(dataset.train, np.array([7]))
    np.testing.assert_array_equal(alone[0], inputs[7], err_msg="an image gives the same bits in any batch")


def test_digits_hold_out_a_test_set_and_permuted_pixels_are_the_same_in_another_order():
    plain, other = digits(), permuted(digits())
    assert (len(plain.train), len(plain.test)) == (1400, 397)
    np.testing.assert_array_equal(plain.split.trained, np.arange(1400))
    assert np.concatenate([plain.train.pixels, plain.test.pixels]).shape == (1797, 64)
    assert sorted(set(plain.test.labels.tolist())) == list(range(10))
    assert plain.picture(plain.test.pixels[0]).max() <= 1
    assert other.name == "permuted-digits"
    np.testing.assert_array_equal(other.train.labels, plain.train.labels)
    np.testing.assert_array_equal(np.sort(other.train.pixels, axis=1), np.sort(plain.train.pixels, axis=1))
    assert (other.train.pixels != plain.train.pixels).any(axis=1).all()


def test_files_are_read_in_the_folder_that_is_named(made_up_data: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = load_dataset("fashion-mnist", made_up_data)
    assert dataset.train.pixels.shape == (400, 784)
    assert dataset.test.labels.tolist() == [row % 10 for row in range(60)]
    assert (dataset.name, dataset.label_names[9]) == ("fashion-mnist", "ankle boot")
    monkeypatch.setenv("DUALFORM_DATA", str(made_up_data))
    assert data_folder(None) == made_up_data
    assert data_folder(Path("elsewhere")) == Path("elsewhere")


def test_a_missing_file_is_fetched_with_its_hash_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def retrieve(url: str, known_hash: str, *, fname: str, path: Path) -> str:
        asked.append((url, known_hash))
        if path.parent != tmp_path:
            raise ConnectionError("no route to host")
        write_dataset(path, seed=1)
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    load_dataset("fashion-mnist", tmp_path)
    assert asked == [
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        )
    ]
    with pytest.raises(NotFound) as caught:
        load_dataset("mnist", tmp_path / "elsewhere")
    assert str(caught.value) == (
        f"train-images-idx3-ubyte.gz of mnist is not in {tmp_path / 'elsewhere' / 'mnist'}, and downloading it from "
        "https://ossci-datasets.s3.amazonaws.com/mnist/ failed: no route to host. "
        "Name a folder that holds mnist/train-images-idx3-ubyte.gz with --data DIR or the environment variable "
        "DUALFORM_DATA."
    )
    hashes = [bytes.fromhex(md5) for source in SOURCES.values() for md5 in source.md5]
    assert len(set(hashes)) == 8
    with pytest.raises(NotFound, match=r"there is no dataset 'cifar'\. Datasets: mnist, fashion-mnist, cifar-10\."):
        load_dataset("cifar")
    with pytest.raises(NotFound, match=r"data_batch_1\.bin of CIFAR-10 is not in .* Unpack .*cifar-10-binary\.tar\.gz"):
        load_dataset("cifar-10", tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("t10k-images-idx3-ubyte.gz", np.zeros((60, 28, 27)), "has images of 28 x 27 pixels instead of 28 x 28"),
        ("t10k-labels-idx1-ubyte.gz", np.zeros(59), "has 59 labels for 60 images in"),
        ("t10k-labels-idx1-ubyte.gz", np.full(60, 10), "has a label 10; classes are 0 to 9"),
    ],
    ids=["shape", "count", "label"],
)
def test_files_that_do_not_fit_are_damage(tmp_path: Path, file: str, array: np.ndarray, message: str):
    folder = write_dataset(tmp_path / "mnist", seed=1)
    write_idx(folder / file, array)
    with pytest.raises(Damaged, match=message):
        load_dataset("mnist", tmp_path)


IMAGES = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_idx_files_are_read_as_they_were_written_and_damage_is_named(tmp_path: Path, name: str):
    path = write_idx(tmp_path / name, IMAGES)
    np.testing.assert_array_equal(read_idx(path, dimensions=3), IMAGES)
    with pytest.raises(Damaged, match="has 3 dimensions instead of 1"):
        read_idx(path, dimensions=1)
    whole = path.read_bytes()
    damaged = {whole[:-9]: "", whole[:14] + bytes([whole[14] ^ 0xFF]) + whole[15:]: "", b"<html>moved</html>": ""}
    if name == "images":
        damaged = {
            b"": "holds 0 bytes, too few for an IDX header",
            whole[:9]: "is cut short inside its header",
            whole[:-1]: "has 23 bytes of data, but its header announces 24",
            whole + b"\0": "has 25 bytes of data, but its header announces 24",
            b"\0\0\x0d\3" + whole[4:]: "is not an IDX file of unsigned bytes: it starts with 00 00 0d 03",
        }
    for content, message in damaged.items():
        path.write_bytes(content)
        with pytest.raises(Damaged, match=f"{name} {message or 'cannot be read'}"):
            read_idx(path, dimensions=3)


def test_of_sixty_thousand_images_the_rows_of_the_papers_code_are_trained_on():
    split = draw_split(60_000)
    assert (len(split.kept), len(split.trained), len(np.unique(split.kept))) == (50_000, 40_053, 50_000)
    assert split.trained[:5].tolist() == [29887, 8423, 49602, 5607, 31244]
    assert split.trained[-5:].tolist() == [36850, 6877, 8478, 42607, 40844]
    assert len(np.setdiff1d(split.trained, draw_split(60_000, draw=1).trained)) > 10_000
    assert every_row(3).kept.tolist() == every_row(3).trained.tolist() == [0, 1, 2]


@pytest.mark.parametrize("images", [1, 5, 400])
def test_another_number_of_images_is_split_by_the_same_rule(images: int):
    split = draw_split(images)
    rng = np.random.RandomState(0xC1CAFA52)
    chances = [rng.random_sample() for _ in range(images - images // 6)]
    order = np.random.RandomState(0x1234).permutation(images).tolist()
    assert split.kept.tolist() == order[: images - images // 6]
    assert split.trained.tolist() == [row for row, chance in zip(order, chances, strict=False) if chance > 0.2]


@pytest.mark.parametrize(
    ("name", "mean", "deviation", "rounding"),
    [("mnist", 33.2748, 78.5179, 5e-5), ("fashion-mnist", 72.897, 89.961, 5e-4)],
)
def test_mean_and_deviation_are_those_of_the_papers_code(name: str, mean: float, deviation: float, rounding: float):
    if not at_hand(name, None):
        pytest.skip(f"no {name} in {data_folder(None)}: set DUALFORM_DATA to the folder that holds it")
    dataset = load_dataset(name)
    assert len(dataset.train) == 60_000
    assert (dataset.mean, dataset.std) == pytest.approx((mean, deviation), abs=rounding)


def test_cifar10_is_read_in_order_normalised_by_plane_and_split_as_in_the_papers_code(made_up_data: Path):
    train, test = read_cifar10(made_up_data)
    content = np.frombuffer(cifar10_records(1), dtype=np.uint8).reshape(CIFAR10_EACH, 3073)
    np.testing.assert_array_equal(train.labels[CIFAR10_EACH : 2 * CIFAR10_EACH], content[:, 0])
    np.testing.assert_array_equal(train.pixels[CIFAR10_EACH : 2 * CIFAR10_EACH], content[:, 1:])
    np.testing.assert_array_equal(test.labels, np.frombuffer(cifar10_records(5), dtype=np.uint8)[::3073])
    dataset = load_dataset("cifar-10", made_up_data)
    every = train.pixels.reshape(-1, 3, 1024).astype(np.float64)
    mean, std = (getattr(every, what)(axis=(0, 2), keepdims=True) for what in ("mean", "std"))
    found = dataset.inputs(train).reshape(-1, 3, 1024)
    np.testing.assert_allclose(found, (every - mean) / std, rtol=1e-4, atol=1e-5)
    # Of CIFAR-10's 50,000 none are held out before a fifth is left out, and their order is that of the files.
    expected = np.flatnonzero(np.random.RandomState(0xC1CAFA52).rand(len(train)) > 0.2)
    np.testing.assert_array_equal(dataset.split.kept, np.arange(len(train)))
    np.testing.assert_array_equal(dataset.split.trained, expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar10_records(1)[:-1], "has 184379 bytes, not a multiple of the 3073 bytes of a CIFAR-10 image"),
        (b"", "has 0 bytes"),
        (bytes([10]) + bytes(3072), "has a label 10; classes are 0 to 9"),
    ],
    ids=["cut", "empty", "label"],
)
def test_files_of_cifar10_that_do_not_fit_are_damage(tmp_path: Path, content: bytes, message: str):
    write_cifar10(tmp_path)
    (tmp_path / FOLDER / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(Damaged, match=rf"data_batch_2\.bin {message}"):
        load_dataset("cifar-10", tmp_path)


LAYERS = ("layer-0", "layer-1", "layer-2")


def test_an_image_of_a_mixed_batch_is_that_of_its_datasets_row(made_up_data: Path):
    chosen = {"mnist": np.arange(0, 400, 2), "fashion-mnist": np.arange(100)}
    pair = {
        name: replace(load_dataset(name, made_up_data), split=Split(np.arange(400), rows))
        for name, rows in chosen.items()
    }
    seen = []
    for batch in mixed_batches(list(pair.values()), Recipe(batch=20, steps=30), seed=0):
        for inputs, label, row, name in zip(batch.inputs, batch.labels, batch.rows, batch.dataset, strict=True):
            np.testing.assert_array_equal(inputs, pair[name].inputs(pair[name].train, np.array([row]))[0])
            assert label == pair[name].train.labels[row]
            seen.append((name, int(row)))
    everything = {(name, row) for name, rows in chosen.items() for row in rows}
    assert len(seen) == 600
    assert set(seen[:300]) == set(seen[300:]) == everything, "each epoch holds every image once"
    assert seen[:300] != seen[300:]


def test_an_epoch_holds_every_image_once_in_an_order_of_seed_and_part_but_rows_drawn_by_chance_come_again():
    recipe = Recipe(batch=32, steps=50)
    rows = np.concatenate(list(batch_rows(np.arange(100), recipe, seed=0, part=0)))
    epochs = rows.reshape(16, 100)
    assert (np.sort(epochs, axis=1) == np.arange(100)).all()
    assert (epochs[0] != epochs[1]).any()
    for seed, part, same in ((0, 0, True), (0, 1, False), (1, 0, False)):
        again = np.concatenate(list(batch_rows(np.arange(100), recipe, seed, part)))
        assert np.array_equal(again, rows) == same
    by_chance = np.concatenate(list(drawn_rows(np.arange(10, 20), Recipe(batch=5, steps=200), seed=0)))
    assert set(by_chance) == set(range(10, 20))
    assert len(set(by_chance[:10])) < 10


def test_the_recipe_is_that_of_the_papers_code():
    recipe = Recipe()
    assert recipe == Recipe(hidden=(800, 800), lr=3e-3, momentum=0.9, clip=1.0, batch=128, steps=3000)
    network = build_network((784, 800, 800, 10), seed=0)
    linear = {name: module for name, module in network.named_modules() if isinstance(module, torch.nn.Linear)}
    assert tuple(linear) == layer_names((784, 800, 800, 10)) == LAYERS
    assert [tuple(module.weight.shape) for module in linear.values()] == [(800, 784), (800, 800), (10, 800)]
    assert all(module.bias is not None for module in linear.values())
    assert [study.recipe for study in (SINGLE, JOINT, CONTINUAL)] == [Recipe(steps=n) for n in (5000, 5000, 3000)]
    assert (SINGLE.runs, SINGLE.moments) == (5, (3000,))
    group = recipe.optimizer(network).param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (3e-3, 0.9, 0)
    assert recipe.with_steps(None) == recipe


def test_training_learns_from_the_seed_alone_and_goes_on_with_the_optimizers_momentum():
    dataset, recipe = digits(), Recipe(hidden=(16,), lr=0.1, batch=32, steps=60)
    before = torch.random.get_rng_state()
    network, other = (build_network(recipe.widths(dataset), seed) for seed in (0, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    again = build_network(recipe.widths(dataset), seed=0)
    assert torch.equal(network[0].weight, again[0].weight)
    assert not torch.equal(network[0].weight, other[0].weight)
    optimizer, seen = recipe.optimizer(network), []
    train(network, optimizer, epochs(dataset, recipe, seed=0), recipe.clip, tell=seen.append)
    assert accuracy(network, dataset) > 0.8
    assert seen == list(range(1, 61))
    buffers = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    train(network, optimizer, epochs(permuted(dataset), recipe.with_steps(1), seed=0, part=1), recipe.clip)
    after = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert all(torch.norm(new - 0.9 * old) <= 1.0 + 1e-5 for new, old in zip(after, buffers, strict=True))
    classes = predictions(network, dataset, dataset.train)
    copy = with_weights(recipe.widths(dataset), network.state_dict())
    np.testing.assert_array_equal(predictions(copy, dataset, dataset.train), classes)


RECIPE = Recipe(hidden=(24, 16), lr=0.05, batch=32, steps=60)


@dataclass
class Recorded:
    pair: Pair
    trained: Trained
    memory: Engine
    swept: list[Report]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder, pair = tmp_path_factory.mktemp("masking") / "run", (digits(), permuted(digits()))
    trained = train_in_succession(pair, RECIPE, seed=3, record_to=folder)
    with open_memory(folder) as memory:
        yield Recorded(pair, trained, memory, sweep(memory, trained, pair, RECIPE, seed=3))


def terms(memory: Engine, layer: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Keys with a one for the bias, values with all factors, and the columns of all slots, in float64."""
    columns = memory.sql("SELECT step, dataset, label FROM slots ORDER BY slot")
    clip = memory.sql("SELECT clip FROM steps ORDER BY step")["clip"].astype(np.float64)
    count, store = 2 * RECIPE.steps * RECIPE.batch, memory._view.snapshot
    keys = np.column_stack([store.keys(layer).entry_block(0, count).astype(np.float64), np.ones(count)])
    # What SGD with momentum makes of the gradient of each step by the end.
    left = 2 * RECIPE.steps - np.arange(2 * RECIPE.steps)
    factors = -RECIPE.lr * (1 - RECIPE.momentum**left) / (1 - RECIPE.momentum) * clip
    values = store.values(layer).block(0, count).astype(np.float64) * factors[columns["step"]][:, None]
    return keys, values, {name: columns[name] for name in ("step", "dataset", "label")}


def test_masked_weights_accuracy_and_what_cancels_are_those_of_numpys_sums(recorded: Recorded):
    memory, pair = recorded.memory, recorded.pair
    begun = build_network(RECIPE.widths(pair[0]), seed=3).state_dict()
    of_layers = {layer: terms(memory, layer) for layer in LAYERS}
    for part, row in zip(parts(pair[1]), recorded.swept[1:], strict=True):
        found, direct, weights = masked_weights(memory, part), memory.weights(part.mask), {}
        for layer, (keys, values, columns) in of_layers.items():
            gone = (columns["dataset"] == pair[1].name) & ((part.label is None) | (columns["label"] == part.label))
            both = values[~gone].T @ keys[~gone]
            for name, own in ((f"{layer}.weight", both[:, :-1]), (f"{layer}.bias", both[:, -1])):
                weights[name] = begun[name].double().numpy() + own
                np.testing.assert_allclose(found[name].double(), weights[name], rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(found[name], direct[name], rtol=1e-5, atol=1e-6)
            whole = np.linalg.norm(values[gone].T @ keys[gone])
            assert row["moved"][layer] == pytest.approx(whole / np.linalg.norm(values.T @ keys), rel=1e-4)
            weighed = keys[gone, :-1]
            norms = np.linalg.norm(weighed, axis=1) * np.linalg.norm(values[gone], axis=1)
            whole = np.linalg.norm(values[gone].T @ weighed)
            assert row["cancellation"][layer] == pytest.approx(norms.sum() / whole, rel=1e-4)
        for dataset in pair:
            signal = dataset.inputs(dataset.test).astype(np.float64)
            for layer in LAYERS:
                signal = signal @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
                signal = np.maximum(signal, 0) if layer != LAYERS[-1] else signal
            right = int((signal.argmax(axis=1) == dataset.test.labels).sum())
            assert row["masked"][dataset.name] * len(dataset.test) == pytest.approx(right, abs=1)
    swept, first = recorded.swept, pair[0].name
    assert swept[0]["masked"] == swept[0]["retrained"]
    assert swept[1]["masked"][first] > swept[0]["masked"][first]


def test_without_the_second_dataset_it_is_the_network_after_the_first_and_without_a_class_speaks_against_it(
    recorded: Recorded,
):
    pair, trained = recorded.pair, recorded.trained
    after_first, final = trained.weights
    network = with_weights(RECIPE.widths(pair[0]), after_first)
    assert recorded.swept[1]["retrained"] == {dataset.name: accuracy(network, dataset) for dataset in pair}
    whole = leave_out(trained, 10, pair, RECIPE, seed=3)
    assert all(torch.equal(whole[name], final[name]) for name in whole), "no class 10, so nothing is left out"
    # Where no image is of a class, every error signal of its output is positive, and its bias falls.
    weights = leave_out(trained, 4, pair, RECIPE, seed=3)
    assert (weights["layer-2.bias"] - after_first["layer-2.bias"])[4] < 0
    second = pair[1]
    taken = list(batch_rows(second.split.trained, RECIPE, seed=3, part=1, kept=second.train.labels != 4))
    assert [len(rows) for rows in taken] == [RECIPE.batch] * RECIPE.steps
    left = np.concatenate(taken)
    order = np.concatenate(list(batch_rows(second.split.trained, RECIPE.with_steps(100), seed=3, part=1)))
    np.testing.assert_array_equal(left, order[second.train.labels[order] != 4][: len(left)])


def row(part: str, masked: float, retrained: float) -> dict[str, Any]:
    accuracies = {"masked": masked, "retrained": retrained}
    found = {kind: {"digits": first, "permuted-digits": 1 - first} for kind, first in accuracies.items()}
    more = {"cancellation": {"layer-0": 12.4, "layer-1": 150.6}, "moved": {"layer-0": 0.25, "layer-1": 0.125}}
    return {"part": part, **found, **(more if part != "nothing" else {})}


def test_masks_are_rows_in_percent_told_apart_by_a_hatch(tmp_path: Path, drawn: list[Figure]):
    swept = [row("nothing", 0.5, 0.5), row("all of permuted-digits", 0.9, 0.95), row("its class 0, 0", 0.1, 0.6)]
    draw_masks(tmp_path / "masks.png", swept, (digits(), permuted(digits())))
    first, second, cancellation, moved = drawn[0].get_axes()
    assert [panel.get_xlabel() for panel in (first, second)] == ["test accuracy (%)"] * 2
    assert [text.get_text() for text in first.texts] == ["50", "90", "10", "50", "95", "60"]
    assert [text.get_text() for text in second.texts] == ["50", "10", "90", "50", "5", "40"]
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["nothing", "all of permuted-digits", "class 0, 0"]
    assert [text.get_text() for text in cancellation.texts + moved.texts] == ["151"] * 2 + ["0.25"] * 2
    assert list(cancellation.get_lines()[0].get_ydata()) == [1, 2], "nothing left out has no cancellation"
    assert [bar.get_hatch() for bar in first.patches] == [None] * 3 + ["/////"] * 3
    assert [text.get_text() for text in drawn[0].legends[0].texts] == ["terms removed", "retrained"]
