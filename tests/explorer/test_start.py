"""The start page, where each count leads to its examples, and the page of one training sample."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import NotFound
from dualform_explorer import view
from dualform_explorer.rendering import templates
from dualform_explorer.sample import NEIGHBOURS, SampleAddress, moved_panel, neighbours_panel, read_sample, sample_panel
from dualform_explorer.start import corrections_panel, query_set_panel
from dualform_explorer.state import read_state
from dualform_explorer.view import Snapshot
from tests.cases import some
from tests.trainings import learn


@pytest.mark.parametrize("query_set", ["shapes", "noise"])
def test_counts_are_those_of_labels_and_outputs(memory, info, query_set):
    panel = query_set_panel(Snapshot(memory, info), query_set)
    stored = memory.query_set(query_set)
    read = stored.outputs.argmax(axis=1)
    for row, label in some(enumerate(panel.confusion.classes)):
        for column, output in enumerate(panel.confusion.classes):
            expected = np.flatnonzero((stored.labels == label) & (read == output))
            assert panel.confusion.counts[row][column] == len(expected)
            there = query_set_panel(Snapshot(memory, info), query_set, f"{label}-{output}")
            assert [card.row for card in there.cards] == expected.tolist()
            assert there.chosen == len(expected)
            assert (
                Snapshot(memory, info).examples_of(query_set).among(f"{label}-{output}").tolist() == expected.tolist()
            )


def test_what_is_no_cell_is_a_fault(info):
    for wrong in ("0-", "a-b", "0-1-2", "-1"):
        assert [fault.parameter for fault in read_state([("item", "shapes/3"), ("among", wrong)], info).faults] == [
            "among"
        ]
    assert read_state([("item", "shapes/3"), ("among", "0-1")], info).state.among == "0-1"


def test_labels_beyond_the_outputs_are_not_counted_as_misclassified_before_an_ablation(memory, info):
    """No ablation could correct them, and the page counts none of them as misclassified."""
    examples = Snapshot(memory, info).examples_of("shapes")
    labels = examples.labels.copy()
    labels[:5] = examples.outputs.shape[1] + 3
    beyond = replace(examples, labels=labels)
    found = Snapshot(memory, info).rated(beyond, "4", "dataset <> 'noise <b>'")
    assert found.rows.tolist() == list(range(5, len(labels)))
    assert found.rates.examples == found.rates.total == len(labels) - 5
    wrong = found.answer.labels != found.answer.predicted
    assert found.rates.misclassified == int(wrong.sum()) == len(beyond.misclassified)


def test_of_a_large_query_set_examples_evenly_spread_are_rated_and_the_page_says_how_many(memory, info, monkeypatch):
    monkeypatch.setattr(view, "MOST_RATED", 20)
    rates = corrections_panel(Snapshot(memory, info), "shapes").corrections[0].rates
    assert (rates.examples, rates.total) == (20, 60)
    assert rates.misclassified + rates.correct == 20
    macro = templates().get_template("macros.html").module.rates
    assert "In 20 of 60 examples of shapes, evenly spread, corrected: " in re.sub("<[^>]+>", "", macro(rates, "shapes"))


def test_a_number_leads_to_its_examples_and_from_one_to_the_next(pages, memory):
    start = pages.get("/").text
    cell = re.search(r'href="(\./\?set=shapes&amp;cell=(\d)-(\d)#set-shapes)" aria-label="[^"]*: (\d+)"', start)
    address, label, read, count = (unescape(own) for own in cell.groups())
    there = pages.get("/" + address.removeprefix("./").partition("#")[0]).text
    part = there[there.index('id="set-shapes"') : there.index('id="set-noise"')]
    assert f"Label {label}, predicted {read}" in part
    assert f"{count}</data> of" in part
    link = unescape(re.search(rf'href="(explore\?[^"]*among={label}-{read})"', part)[1])
    page = pages.get("/" + link).text
    assert f"{label} as {read}</a>" in page
    assert re.search(rf'1</data> of <data class="n" value="{count}"', page)
    assert pages.get("/?set=shapes&cell=0-99999").status == 200
    assert pages.get("/?set=shapes&cell=<script>").text.count("<script>") == start.count("<script>")


def test_the_start_page_shows_a_few_examples_and_more_by_a_link(pages, memory, info):
    few, more = (query_set_panel(Snapshot(memory, info), "shapes", own) for own in ("", "misclassified"))
    rows = Snapshot(memory, info).examples_of("shapes").misclassified.tolist()
    assert [card.row for card in few.cards] == rows[:12]
    assert [card.row for card in more.cards] == rows[:60]
    assert (few.more, more.more) == (len(rows) > 12, False)
    everything = query_set_panel(Snapshot(memory, info), "shapes", "all")
    assert [card.row for card in everything.cards] == list(range(min(60, everything.examples.count)))
    start, there = pages.get("/").text, pages.get("/?set=shapes&cell=misclassified").text
    assert ("cell=misclassified#set-shapes" in start) == (len(rows) > 12)
    assert there.count("among=misclassified") == start.count("among=misclassified") + len(rows[12:60])


@pytest.mark.parametrize("dataset", ["shapes", "noise <b>"])
def test_steps_are_those_of_its_slots(memory, info, dataset):
    own = f"dataset = '{dataset}'"
    (first, *_) = memory.sql(
        f"SELECT sample, any_value(label) AS label FROM slots WHERE {own} GROUP BY sample ORDER BY 1"
    )
    panel = sample_panel(Snapshot(memory, info), SampleAddress("", dataset, first["sample"], "shapes"))
    rows = memory.sql(
        f"SELECT step, count(*) AS n FROM slots WHERE {own} AND sample = {first['sample']} GROUP BY step ORDER BY step"
    )
    assert panel.visits == tuple((row["step"], row["n"]) for row in rows)
    assert panel.label == first["label"]
    assert sum(total for *_, total in panel.drawn) == sum(row["n"] for row in rows)
    assert panel.preview.kind == "image"


@pytest.mark.parametrize("query_set", ["shapes", "noise"])
def test_changes_are_what_its_terms_bring_to_the_margin(memory, info, query_set):
    """Contributions of the sample, and what it brought to the bias, are another way to the same numbers."""
    panel = moved_panel(Snapshot(memory, info), SampleAddress("", "shapes", 5, query_set))
    labels = memory.query_set(query_set).labels
    assert (panel.layer, panel.tried, panel.count) == ("4", len(labels), len(labels))
    found = {}
    flips = 0
    for row, label in enumerate(labels.tolist()):
        answer = memory.contributions("4", f"{query_set}/{row}", ("dataset", "sample"))
        without = memory.contributions(
            "4", f"{query_set}/{row}", ("dataset",), "NOT (dataset = 'shapes' AND sample = 5)"
        )
        brought = answer.sums[0][answer.groups.index(("shapes", 5))] + answer.bias - without.bias
        output = answer.output[0]
        own = label if label >= 0 else int(output.argmax())
        other = int(np.where(np.arange(len(output)) == own, -np.inf, output).argmax())
        found[row] = brought[other] - brought[own]
        flips += (output - brought).argmax() != output.argmax()
    ordered = sorted(found, key=found.__getitem__)
    assert [one.card.row for one in panel.helped] == [row for row in ordered[:8] if found[row] < 0]
    assert [one.card.row for one in panel.hurt] == [row for row in ordered[::-1][:8] if found[row] > 0]
    for one in (*panel.helped, *panel.hurt):
        assert one.change == pytest.approx(found[one.card.row], abs=1e-4)
    assert panel.changed == flips


def test_a_sample_that_was_never_trained_on_is_named(memory, info):
    with pytest.raises(NotFound, match="sample 99999"):
        sample_panel(Snapshot(memory, info), SampleAddress("", "shapes", 99999, "shapes"))


def test_a_number_without_a_dataset_is_no_sample_of_a_dataset(info, tmp_path):
    found = read_sample([("sample", "5")], info, "")
    assert isinstance(found, list)
    assert [choice for choice, _ in found[0].choices] == list(info.datasets)
    model, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dualform.Recorder(model, optimizer, tmp_path / "run", quiet=True) as recorder:
        for dataset in ("a", None, None):
            with recorder.step(dataset=dataset, sample=range(4)):
                learn(optimizer, model(inputs).square().sum())
        recorder.query_set("test", inputs)
    with dualform.open(tmp_path / "run") as memory:
        told = memory.info()
        for params, steps in (([], (1, 2)), ([("dataset", "a")], (0,))):
            address = read_sample([("sample", "3"), *params], told, "")
            assert tuple(step for step, _ in sample_panel(Snapshot(memory, told), address).visits) == steps
            own = "dataset = 'a'" if params else "dataset IS NULL"
            without = memory.output("", "test/0", address.state(told, "").mask())
            np.testing.assert_array_equal(without, memory.output("", "test/0", f"({own} AND sample = 3) IS NOT TRUE"))


@pytest.mark.parametrize("layer", [None, "0"])
def test_neighbours_are_those_with_the_largest_cosine(memory, info, layer):
    panel = neighbours_panel(Snapshot(memory, info), SampleAddress("", "shapes", 5, "shapes", layer=layer))
    assert panel.layer == (layer or "4")
    rows = [*memory.sql("SELECT slot, step, dataset, sample FROM slots ORDER BY slot")]
    keys = np.asarray(memory.keys(panel.layer, [row["slot"] for row in rows]), dtype=np.float64)
    steps = {row["step"]: at for at, row in enumerate(rows) if (row["dataset"], row["sample"]) == ("shapes", 5)}
    assert panel.step == max(steps)
    assert panel.position is None
    own = keys[steps[panel.step]]
    cosines = keys @ own / (np.linalg.norm(keys, axis=1) * np.linalg.norm(own))
    best = {}
    for row, cosine in zip(rows, cosines.tolist(), strict=True):
        sample = row["dataset"], row["sample"]
        best[sample] = max(best.get(sample, -1.0), cosine)
    del best["shapes", 5]
    values = [own.value for own in panel.samples]
    np.testing.assert_allclose(values, sorted(best.values(), reverse=True)[:NEIGHBOURS], atol=1e-5)
    np.testing.assert_allclose(values, [best[own.dataset, own.sample] for own in panel.samples], atol=1e-5)


@pytest.mark.parametrize(
    ("params", "wrong"),
    [
        ([("sample", "1x")], {"sample"}),
        ([], {"sample"}),
        ([("sample", "1"), ("dataset", "none")], {"dataset"}),
        ([("sample", "1"), ("set", "none")], {"set"}),
        ([("sample", "1"), ("colour", "3")], {"colour"}),
        ([("sample", "1"), ("dataset", "shapes"), ("layer", "9")], {"layer"}),
        ([("sample", "9" * 5000)], {"sample"}),
    ],
)
def test_what_is_wrong_in_an_address_is_named(info, params, wrong):
    found = read_sample(params, info, "")
    assert isinstance(found, list)
    assert {fault.parameter for fault in found} == wrong


def test_thumbnails_lead_there_and_examples_lead_on_without_the_sample(pages):
    page = pages.get("/explore?item=shapes/3&token=0&open=data").text
    links = re.findall(r'<a href="(sample\?[^"]+)">#(\d+)</a>', page)
    assert len(links) == 24
    address, number = links[0]
    assert re.search(rf'<img [^>]*alt="sample {number} of (shapes|noise &lt;b&gt;)"', page)
    there = pages.get("/" + address.replace("&amp;", "&"))
    assert there.status == 200
    assert f"Training sample {number}" in there.text
    assert "data-failure" not in there.text
    back = re.search(r'<a id="back" href="([^"]+)">([^<]+)<', there.text)
    assert back.groups() == ("explore?item=shapes/3&amp;token=0&amp;layer=4", "back to shapes/3, token 0")
    assert len(re.findall(r'<a href="sample\?[^"]+">#\d+</a>', there.text)) == NEIGHBOURS
    on = re.search(r'href="(explore\?[^"]+)" data-row', there.text)[1].replace("&amp;", "&")
    chip = pages.get("/" + on)
    assert chip.status == 200
    chips = chip.text[chip.text.index('<ul class="chips set">') :]
    assert f"sample {number}</bdi>" in chips[: chips.index("</ul>")]
    assert pages.get("/sample?sample=1x").status == 400
    assert "no dataset &#39;x&#39;" in pages.get("/sample?sample=1&dataset=x").text
