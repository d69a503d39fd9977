"""Questions to several spaces: masks, groups and SQL see each slot's own columns, also where spaces share a weight."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import dualform
from dualform.errors import BadInput, NotFound
from dualform.query import groups
from dualform.query.engine import Engine
from dualform.query.groups import codes_of_texts, group_entries, sample_numbers
from dualform.query.score.backends import choose
from dualform.query.view import never
from dualform.query.where import mask
from dualform.store.batch import Batch
from dualform.store.reading.snapshot import Snapshot
from tests.cases import pairwise
from tests.query.shards import memories
from tests.store.small_memory import LAYERS, TOKENS, batch, expected, open_writer, token_batch
from tests.trainings import record_steps

SIZES = [3, 2, 5, 4]


def batches():
    """Both spaces in each step."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(12, 6)).astype(np.float32)
    for step, rows in enumerate(SIZES):
        own, tokens = batch(rng, step, rows, inputs), token_batch(rng, step, rows)
        layers = {**own.layers, **tokens.layers}
        yield Batch(step, own.samples, [*own.extents, *tokens.extents], layers, tokens.unknown, logs=own.logs)


@pytest.fixture(scope="module", params=["committed", "in the journal"])
def made(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("spaces") / "memory"
    appended = list(batches())
    writer = open_writer(path, LAYERS + TOKENS, journal_seconds=0.0)
    for one in appended:
        writer.append(one)
    writer.close() if request.param == "committed" else writer.abandon()
    with Engine(Snapshot.open(path), choose("numpy")) as engine:
        yield engine, expected(appended, LAYERS + TOKENS)


MASKS = {
    "label > 3": lambda r: r["label"] is not None and r["label"] > 3,
    "dataset = 'the'": lambda r: r["dataset"] == "the",
    "seen AND step > 0": lambda r: r["seen"] and r["step"] > 0,
    "row = 1": lambda r: r["row"] == 1,
    "row IS NULL": lambda r: r["row"] is None,
    "token < 4 AND weight > 0": lambda r: r["token"] is not None and r["token"] < 4 and r["weight"] > 0,
    "position = 2 OR call = 1": lambda r: r["position"] == 2 or r["call"] == 1,
    "slot % 3 = 1": lambda r: r["slot"] % 3 == 1,
    "true": lambda r: True,
}


@pytest.mark.parametrize(("where", "layer", "chunk"), pairwise([*MASKS], ["every", "some"], [7, 1 << 20]))
def test_a_mask_keeps_the_slots_for_which_it_is_true(made, monkeypatch, where, layer, chunk):
    engine, wanted = made
    monkeypatch.setattr(mask, "_CHUNK", chunk)
    rows = [dict(zip(wanted.tokens, values, strict=True)) for values in zip(*wanted.tokens.values(), strict=True)]
    true = [entry for entry, slot in enumerate(wanted.entries[layer]) if MASKS[where](rows[slot])]
    view = engine._view
    if (layer == "some" and where == "dataset = 'the'") or (layer == "some" and "token" in where):
        with pytest.raises(NotFound, match=r"is NULL in all slots of layer 'some' \(space 'token'\)"):
            mask.selection(view, view.snapshot.layer(layer), where)
        return
    assert mask.selection(view, view.snapshot.layer(layer), where).entries.tolist() == true


@pytest.mark.parametrize("by", [("label",), ("token",), ("call", "seen"), ("dataset", "row"), ("position",)])
@pytest.mark.parametrize("layer", ["every", "some", "layer-1"])
def test_groups_are_those_of_the_slots(made, by, layer):
    engine, wanted = made
    view = engine._view
    columns = wanted.columns if layer == "layer-1" else wanted.tokens
    if any(name not in columns for name in by):
        with pytest.raises(NotFound, match=r"no slot column 'token'\. Columns: slot, step"):
            group_entries(view, view.snapshot.layer(layer), mask.selection(view, view.snapshot.layer(layer), None), by)
        return
    found = group_entries(view, view.snapshot.layer(layer), mask.selection(view, view.snapshot.layer(layer), None), by)
    keys = [tuple(columns[name][slot] for name in by) for slot in wanted.entries[layer]]
    assert [found.keys[number] for number in found.numbers] == keys
    assert sorted(map(repr, set(keys))) == sorted(map(repr, found.keys))


SLOTS = [
    {"slot": [1, 2]},
    {"not slot": np.array([1, 2])},
    ("slot in (?)", [1, 2]),
    ("(slot IN ?) AND step >= 0", [1, 2]),
    ("label = ? OR NOT (SLOT IN $2)", 3, [1, 2]),
    ("contains(?, slot)", [1, 2]),
    ("slot = ?", 1),
    "slot IN (1, 2)",
    '("slot") < 2',
]


@pytest.mark.parametrize("where", SLOTS, ids=str)
def test_ids_of_slots_need_their_space(made, where):
    """Slots of equal numbers in two spaces are others: the command line writes the condition in brackets."""
    engine, _ = made
    asked = [lambda own: engine.cancellation(own, allow_inexact=True), lambda own: engine.weights(own)]
    for ask in asked:
        with pytest.raises(BadInput, match="slots are numbered by space, and where does not name one") as refused:
            ask(where)
        assert (refused.value.field, 'where={"sample": {"slot": ids}}' in refused.value.hint) == ("where", True)
    assert engine.cancellation({"sample": where}, allow_inexact=True).figures.keys() == {"layer-0", "layer-1"}
    assert engine.cancellation(where, layer="every", allow_inexact=True).figures.keys() == {"every"}
    assert len(engine.topk("every", np.ones(4, np.float32), where=where).ids)


def test_a_column_of_another_space_is_named_with_the_spaces_that_have_it(made):
    engine, _ = made
    with pytest.raises(NotFound) as caught:
        engine.topk("layer-1", np.ones(5), where="token = 3")
    said = "There is no column 'token' in space 'sample'. Spaces that have it: token."
    assert str(caught.value) == said
    assert caught.value.field == "where"
    further = " Filter only these spaces: where={space: SQL}, on the command line --where-space SPACE SQL."
    with pytest.raises(NotFound) as caught:
        engine.cancellation("token = 3")
    assert str(caught.value) == said + further
    with pytest.raises(NotFound) as caught:
        engine.cancellation({"sample": "token = 3"})
    assert str(caught.value) == said
    with pytest.raises(NotFound) as caught:
        engine.cancellation("dataset = 'no such'")
    assert "--where-space" not in str(caught.value)


def test_sql_sees_a_view_of_each_space(made):
    engine, wanted = made
    for view, columns in (("slots", wanted.columns), ("token", wanted.tokens)):
        found = engine.sql(f"SELECT * FROM {view} ORDER BY slot")
        assert [*found.keys()] == [*columns]
        assert {name: column.tolist() for name, column in found.items()} == columns
    assert engine.sql("SELECT count(*) AS n FROM steps").records() == [{"n": 4}]


def test_datasets_are_counted_over_all_spaces(made):
    engine, wanted = made
    both = [*wanted.columns["dataset"], *wanted.tokens["dataset"]]
    assert engine._view.datasets() == {name: both.count(name) for name in sorted({x for x in both if x is not None})}


def test_the_columns_of_a_memory_are_named_by_space(made):
    columns = made[0].info().columns
    assert list(columns) == ["sample", "token"]
    assert columns["token"]["token"] == "BIGINT"
    assert "token" not in columns["sample"]
    assert columns["sample"]["label"] == columns["token"]["label"] == "BIGINT"


class Translator(nn.Module):
    """Encoder and decoder embed words by one weight."""

    def __init__(self):
        super().__init__()
        self.read, self.said = nn.Embedding(9, 4), nn.Embedding(9, 4)
        self.said.weight = self.read.weight
        self.head = nn.Linear(4, 2)

    def forward(self, source, target):
        return self.head(self.said(target).mean(1) + self.read(source).mean(1))


@pytest.fixture(scope="module", params=[torch.optim.SGD, torch.optim.AdamW])
def translated(request, tmp_path_factory):
    torch.manual_seed(0)
    model = Translator()
    optimizer = request.param(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("tied") / "m"
    record_steps(
        dualform.Recorder(model, optimizer, path, spaces={"said": "target"}),
        optimizer,
        ((step, torch.randint(0, 9, (5, 7))) for step in range(6)),
        lambda step, words: model(words[:, :4], words[:, 4:]).square().sum(),
        dataset=lambda step, words: "ab"[step % 2],
        sample=np.arange(5),
    )
    with dualform.open(path) as opened:
        yield opened


@pytest.mark.parametrize("where", ["dataset = 'a'", "sample <> 1", "step > 2"])
def test_a_mask_over_samples_holds_in_both_spaces(translated, where):
    one_hot = np.eye(9, dtype=np.float32)
    expected = translated.weights(where=where).arrays["read.weight"]
    for layer in ("read", "said"):
        assert np.asarray(translated.output(layer, one_hot, where=where)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("layer", ["read", "said"])
@pytest.mark.parametrize("where", ["dataset = 'a'", "step > 2"])
def test_a_placebo_is_refused_whose_slots_are_of_both_spaces(translated, layer, where):
    """Each space numbers its own samples: a set that is drawn from one would leave out others of the other."""
    with pytest.raises(BadInput, match=r"layers .* share a parameter and have slots of several spaces") as refused:
        translated.placebo(layer, np.eye(9, dtype=np.float32), where)
    assert refused.value.field == "layer"
    assert "parameters of its own" in refused.value.hint
    assert len(translated.placebo("head", np.ones((1, 4), np.float32), where)) == 1


@pytest.mark.parametrize("layer", ["read", "said", None])
def test_slots_of_a_layer_whose_parameter_is_of_two_spaces_are_not_named_by_number(translated, layer):
    with pytest.raises(BadInput, match="slots are numbered by space"):
        translated.cancellation({"slot": [0, 1]}, layer=layer)
    assert list(translated.cancellation({"slot": [0, 1]}, layer="head").record())


def test_a_mask_over_tokens_speaks_of_one_space(translated):
    with pytest.raises(BadInput, match=r"'read' shares .* layer 'said', whose slots are of space 'target'"):
        translated.output("read", np.eye(9, dtype=np.float32), where="position > 1")


def test_numbers_that_are_none_are_one_group():
    column = np.array([np.nan, 1.0, np.nan, -1.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_BLOCK", 1)
        codes, values = groups._codes(column, never)
    assert codes.tolist() == [2, 1, 2, 0]
    assert values[:2] == [-1.0, 1.0]
    assert len(values) == 3


TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["", "ü", "z", "Z", "\U0001f600", "\uffff", "é", "e\u0301"])))


@settings(deadline=None)
@given(chunks=st.lists(TEXTS, max_size=3))
def test_texts_have_the_ranks_and_values_that_python_gives_them(chunks):
    codes, values = codes_of_texts(pa.chunked_array(chunks, pa.string()), lambda: None)
    every = [text for chunk in chunks for text in chunk]
    known = [*sorted({text for text in every if text is not None}), *([None] if None in every else [])]
    assert codes.dtype == np.int64
    assert codes.tolist() == [known.index(text) for text in every]
    assert values == known


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("distinct") / "written"
    memories.write(path, memories.SIZES)
    with dualform.open(path) as opened:
        yield opened


def test_rows_of_two_ranks_are_two_rows(written, monkeypatch):
    view = written._view
    space = view.snapshot.space("sample")
    nulls = space.is_null
    monkeypatch.setattr(space, "is_null", lambda name: name == "sample" or nulls(name))
    view.cache.clear()
    found = sample_numbers(view, view.snapshot.layer("plain"))
    assert found.unit == "rows"
    assert len(np.unique(found.numbers)) == sum(map(sum, memories.SIZES))
    view.cache.clear()


def test_slots_without_a_dataset_are_no_single_dataset(written):
    k = sum(map(sum, memories.SIZES))
    query = memories.queries("plain", 1)
    hits, plain = written.topk("plain", query, k=k, distinct="dataset"), written.topk("plain", query, k=k)
    datasets = written.slots(plain.ids)["dataset"]
    expected, seen = [], set()
    for slot, dataset in zip(plain.ids.tolist(), datasets, strict=True):
        if dataset is None or dataset not in seen:
            expected.append(slot)
        seen.add(dataset)
    assert hits.ids.tolist() == expected
    assert hits.repeats.sum() == k


def test_a_sample_without_a_dataset_is_one_sample(written):
    k = sum(map(sum, memories.SIZES))
    hits = written.topk("plain", memories.queries("plain", 1), k=k, distinct="sample")
    assert len(hits.ids) == len(set(zip(*(hits.joined(written)[name] for name in ("dataset", "sample")), strict=True)))
