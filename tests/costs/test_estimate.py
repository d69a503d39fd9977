"""What an estimate says of a training's memory, beside what the whole training then takes."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dualform
from dualform.costs import estimate
from dualform.errors import BadInput

CLOSE = 0.2
SAMPLES = 64


def mlp():
    """Samples come again, epoch after epoch."""
    data = torch.randn(SAMPLES, 300, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(300, 24), nn.ReLU(), nn.Linear(24, 5))
    return model, lambda rows: (data[rows], rows % 5)


def embedding():
    words = torch.randint(0, 50, (SAMPLES, 6), generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Embedding(50, 40), nn.LayerNorm(40), nn.Linear(40, 50))
    return model, lambda rows: (words[rows], words[rows].roll(1, 1))


def convolution():
    data = torch.randn(SAMPLES, 2, 10, 10, generator=torch.Generator().manual_seed(1))
    convolutions = [nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(36, 5)), lambda rows: (data[rows], rows % 5)


def training(make, path, steps, halved=False, rows=16, **recorded):
    """A function that trains, as a user writes it."""

    def train(record=dualform.Recorder):
        torch.manual_seed(0)
        model, batch_of = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        order = torch.cat([torch.randperm(SAMPLES) for _ in range(-(-steps * rows // SAMPLES))])
        with record(model, optimizer, path, quiet=True, **recorded) as recorder:
            for number in order[: steps * rows].split(rows):
                x, y = batch_of(number)
                with recorder.step(label=y, sample=number, chance=torch.rand(len(number), dtype=torch.float64)):
                    with torch.autocast("cpu", torch.bfloat16) if halved else nullcontext():
                        loss = cross_entropy(model(x).flatten(0, -2), y.flatten())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

    return train


def parts(path):
    """Bytes of a memory's files, by what begins their names."""
    found = {}
    for file in path.rglob("*"):
        if file.is_file():
            kind = next((kind for kind in ("keys", "values", "others", "slots") if file.name.startswith(kind)), "rest")
            found[kind] = found.get(kind, 0) + file.stat().st_size
    return found


@pytest.mark.parametrize(
    ("make", "steps", "halved"),
    [(mlp, 80, False), (embedding, 60, False), (convolution, 40, False), (mlp, 80, True)],
    ids=["inputs that repeat", "embedding", "convolution", "bfloat16"],
)
def test_it_is_what_the_training_then_takes(tmp_path, make, steps, halved):
    told = dualform.estimate(training(make, tmp_path / "m", steps, halved), steps, samples=SAMPLES)
    assert not (tmp_path / "m").exists()
    training(make, tmp_path / "m", steps, halved)()
    taken, stored = parts(tmp_path / "m"), told.stored
    assert told.ways["stored"].bytes == stored.total == pytest.approx(sum(taken.values()), rel=CLOSE)
    for name, layer in stored.layers.items():
        own = parts(tmp_path / "m" / "shard-00000" / "layers" / name)
        assert (layer.keys, layer.values) == pytest.approx((own["keys"], own["values"]), rel=CLOSE), name
    assert stored.tables == pytest.approx(taken["slots"], rel=CLOSE)
    assert stored.others == pytest.approx(taken.get("others", 0), rel=CLOSE)
    with dualform.open(tmp_path / "m") as memory:
        assert stored.slots == memory.info().slots
    halves = {name: told.ways[name].bytes for name in ("float32", "bfloat16")}
    assert halves["bfloat16" if halved else "float32"] == stored.total
    assert halves["bfloat16"] < halves["float32"]


def test_what_either_precision_says_of_the_other(tmp_path):
    trainings = [training(convolution, tmp_path / "m", 6, halved) for halved in (False, True)]
    whole, half = (dualform.estimate(train, 6, samples=SAMPLES, tried=3).stored.layers for train in trainings)
    for name, layer in whole.items():
        assert layer.bytes_in(4) == half[name].bytes_in(4) == layer.keys + layer.values
        assert layer.bytes_in(2) == half[name].bytes_in(2) == half[name].keys + half[name].values
    assert sum(layer.values for layer in half.values()) < sum(layer.values for layer in whole.values())


def test_samples_that_come_again_with_other_inputs_every_other_time(tmp_path):
    data = torch.randn(SAMPLES, 300, generator=torch.Generator().manual_seed(1))

    def make():
        times = iter(range(1000))
        noise = lambda rows: 0.01 * torch.randn(len(rows), 300) * (next(times) // 4 % 2)  # noqa: E731
        model = nn.Sequential(nn.Linear(300, 24), nn.ReLU(), nn.Linear(24, 5))
        return model, lambda rows: (data[rows] + noise(rows), rows % 5)

    told = dualform.estimate(training(make, tmp_path / "m", 80), 80, samples=SAMPLES)
    training(make, tmp_path / "m", 80)()
    taken = parts(tmp_path / "m")
    assert told.stored.layers["0"].keys == pytest.approx(taken["keys"] - told.stored.layers["2"].keys, rel=CLOSE)
    assert told.ways["stored"].bytes == pytest.approx(sum(taken.values()), rel=CLOSE)
    (note,) = told.notes
    assert note.startswith("Samples came again with other inputs, as augmentation and dropout make them, in 0 (")
    assert "in 0 (50% of the times): samples= (--samples) holds for inputs that come again bit for bit" in note


def test_samples_of_which_none_came_again_are_taken_at_their_word(tmp_path):
    told = dualform.estimate(training(mlp, tmp_path / "m", 30), 100, samples=SAMPLES, tried=4)
    assert told.stored.layers["0"].keys == SAMPLES * 300 * 4
    (note,) = told.notes
    assert note.startswith("No input of 0 came again in 4 steps: samples= (--samples) holds for inputs that come again")


def test_texts_that_each_row_has_of_its_own(tmp_path):
    """Which no dictionary packs, as it would the trial's written again and again."""
    steps, rows, samples = 160, 256, 200_000

    def train(record=dualform.Recorder):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with record(model, optimizer, tmp_path / "m", quiet=True) as recorder:
            for step in range(steps):
                number = torch.randint(samples, (rows,))
                hashes = [sha256(f"{step} {n}".encode()).hexdigest() for n in number.tolist()]
                with recorder.step(sample=number, text=np.array(hashes, dtype=object)):
                    optimizer.zero_grad()
                    model(torch.ones(rows, 3)).sum().backward()
                    optimizer.step()

    told = dualform.estimate(train, steps, samples=samples)
    train()
    assert told.stored.tables == pytest.approx(parts(tmp_path / "m")["slots"], rel=CLOSE)


@pytest.mark.parametrize("distinct", [None, 450])
def test_more_texts_are_like_those_that_are_there(distinct):
    rng = np.random.default_rng(0)
    names = [None if n == 7 else f"train/{n:06d}.{'jpeg' if n % 3 else 'png'}" for n in range(100)]
    column = pa.chunked_array([names])
    assert estimate.go_on(column)
    every = estimate.more_texts(column, 8, distinct, rng).to_pylist()
    assert every[:100] == names
    there = [name for name in every if name is not None]
    assert every.count(None) == 8
    assert [place for place, name in enumerate(every) if name is None][1] == 107
    assert all(name.startswith("train/") and 15 <= len(name) <= 17 for name in there)
    if distinct is None:
        assert [*map(len, filter(None, every[100:200]))] == [*map(len, filter(None, names))]
        assert len({*there}) > 0.98 * len(there)
    else:
        assert 300 < len({*there}) <= distinct
    lengths = ["a" * n for n in range(1, 21)]
    assert estimate.more_texts(pa.chunked_array([lengths]), 2, distinct, rng).to_pylist() == lengths * 2, (
        "nothing to vary"
    )
    words = pa.chunked_array([["cat", "dog"] * 50])
    numbers = pa.chunked_array([[*range(100)]])
    assert not any(map(estimate.go_on, (words, numbers, pa.chunked_array([["", ""]]), pa.chunked_array([[None, "a"]]))))


def test_tables_that_outgrow_the_keys(tmp_path):
    """512 rows a step, of a layer of few numbers, with keys stored and with digests."""

    def small():
        data = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1))
        return nn.Linear(3, 2), lambda rows: (data[rows], rows % 2)

    told = dualform.estimate(training(small, tmp_path, 240, rows=512), 240, samples=SAMPLES)
    few = 2_200_000  # of few steps, with digests
    for name, keys in (("stored", True), ("digests", False)):
        training(small, tmp_path / name, 240, rows=512, keys=keys)()
        taken = parts(tmp_path / name)
        assert told.ways[name].bytes == pytest.approx(sum(taken.values()), rel=CLOSE)
        assert taken["slots"] > 1.35 * few


def test_what_it_says_beside(tmp_path):
    train = training(mlp, tmp_path / "m", 30)
    told = dualform.estimate(train, 1000, layers="0", tried=4)
    assert (told.steps, told.tried, [*told.stored.layers]) == (1000, 4, ["0"])
    assert told.stored.layers["0"].keys == 1000 * 16 * 300 * 4, "inputs that are not said to come again"
    assert told.notes[0].startswith("Each distinct input of 0 is stored once: say how many samples there are (samples=")
    ways = told.ways
    assert all(way.bytes_a_second > 0 and way.question_seconds > 0 for way in ways.values())
    assert ways["digests"].question_seconds > ways["stored"].question_seconds
    text = str(told)
    assert text.startswith("1,000 steps of ")
    assert ": 16,000 slots of sample\n" in text
    assert "keys 19.2 MB, values 1.54 MB" in text
    assert len(told.notes) == 1
    assert json.loads(json.dumps(told.to_json()))["layers"]["0"]["values"] == told.stored.layers["0"].values
    assert not [*tmp_path.iterdir()]


def test_a_training_that_ends_sooner_and_counts_of_numpy(tmp_path):
    told = dualform.estimate(
        training(mlp, tmp_path / "m", 3), np.int64(60), tried=np.int32(20), samples=np.uint8(SAMPLES)
    )
    assert told.notes[-1] == "The training ended after 3 steps: the estimate is made of these."
    assert (told.steps, told.tried) == (60, 3)
    said = json.loads(json.dumps(told.to_json()))
    assert (said["steps"], said["tried"]) == (60, 3)


def test_a_trial_of_gigabytes_is_a_short_one(tmp_path, monkeypatch):
    monkeypatch.setattr("dualform.costs.estimate._MOST_BYTES", 100_000)  # a step takes 22 kB
    told = dualform.estimate(training(mlp, tmp_path / "m", 20), 60, samples=SAMPLES)
    assert told.tried == 4


def test_what_cannot_be_estimated(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def idle(record):
        with pytest.warns(RuntimeWarning, match="Nothing was recorded in"), record(model, optimizer):
            pass

    def twice(record):
        training(mlp, tmp_path / "m", 2)(record)
        record(model, optimizer)

    for train, why in (
        (lambda record: None, "The training function did not make a recorder with its argument."),
        (idle, "The training function did not record any step."),
        (twice, "made a second recorder"),
        (lambda record: record(model, optimizer, rank=1, ranks=2), "one of several ranks"),
    ):
        with pytest.raises(BadInput, match=why):
            dualform.estimate(train, 10)


@pytest.mark.parametrize("name", ["steps", "tried", "samples"])
@pytest.mark.parametrize("number", [0, -1, True, 2.5, float("nan"), float("inf"), "10", np.float32(3)], ids=repr)
def test_what_is_no_count_is_refused(tmp_path, name, number):
    with pytest.raises(
        BadInput, match=rf"^{name} must be a whole number from 1 on, not {re.escape(repr(number))}\."
    ) as caught:
        dualform.estimate(training(mlp, tmp_path / "m", 2), **{"steps": 10, name: number})
    assert caught.value.field == name
    assert not (tmp_path / "m").exists()


def test_an_error_of_the_training_comes_out_as_it_is(tmp_path):
    def failing(record):
        training(mlp, tmp_path / "m", 2)(record)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dualform.estimate(failing, 10)


def test_a_preview_set_is_not_tried(monkeypatch):
    """It is no part of the estimate, and encoding it may take long."""
    encoded = []
    monkeypatch.setattr("dualform.store.writing.writer.write_preview_set", lambda *arguments: encoded.append(arguments))

    def train(recorded_by):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recorded_by(model, optimizer, "unused") as recorder:
            recorder.previews("a", dualform.PreviewSet.texts(["a text"]))
            for _ in range(30):
                with recorder.step(dataset="a", sample=torch.arange(3)):
                    optimizer.zero_grad()
                    model(torch.randn(3, 4)).sum().backward()
                    optimizer.step()

    assert dualform.estimate(train, steps=30).steps == 30
    assert encoded == []
