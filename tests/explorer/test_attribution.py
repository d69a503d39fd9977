"""Contributions under Adam, what was kept of leaving samples out, and scores of other packages beside ours."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.errors import BadInput, Forbidden
from dualform.questions import SqlStatement
from dualform_explorer import panels
from dualform_explorer.export import choose, exported_page
from dualform_explorer.filter import Chip
from dualform_explorer.groups import expected_seconds
from dualform_explorer.memories import Beside, RememberedAnswers, read_scores
from dualform_explorer.panels import PANELS, Waiting, panel_of
from dualform_explorer.panels.data import SAMPLES, adjoint_panel, samples_panel, scores_panel, slots_panel, sums_panel
from dualform_explorer.panels.layers import ranks_panel
from dualform_explorer.server import explore
from dualform_explorer.state import State, link, read_state
from dualform_explorer.view import Snapshot, View
from dualform_explorer.words import lasting
from tests.cases import pairwise
from tests.explorer.recorded import NAMES, images_of, network, record
from tests.explorer.served import Served, Troubled, served
from tests.trainings import learn

ADAM = State("", "shapes", 3, "4", ("dataset", "label"), score="contribution", target="1-2", open=("data",))


GROUP = Chip.of(True, ("dataset", "label"), ("shapes", 1))


CHIP = Chip.of(False, ("label",), (2,))


@pytest.fixture(scope="module")
def adamw_info(adamw):
    return adamw.info()


@pytest.mark.parametrize(("layer", "at", "chips"), pairwise(["0", "4"], [None, 40], [(), (CHIP,)]))
def test_the_samples_of_a_group_are_what_its_bar_is(adamw, adamw_info, layer, at, chips):
    state = replace(ADAM, layer=layer, at=at, chips=chips, within=GROUP)
    found = samples_panel(View(adamw, adamw_info, state))
    (bar,) = [row.group for row in sums_panel(View(adamw, adamw_info, state)).rows if row.group.values == ("shapes", 1)]
    where = "label <> 2" if chips else None
    by_output = adamw.contributions(layer, "shapes/3", ("dataset", "label", "sample"), where, at)
    own = {
        sample: sums[1] - sums[2]
        for (dataset, label, sample), sums in zip(by_output.groups, by_output.sums[0], strict=True)
        if (dataset, label) == ("shapes", 1)
    }
    assert found.total == pytest.approx(bar.sum, rel=1e-9)
    assert found.total == pytest.approx(sum(own.values()), rel=1e-9)
    assert found.others == max(0, len(own) - 24)
    assert found.rest + sum(sample.value for sample in found.samples) == pytest.approx(found.total, rel=1e-9)
    best = sorted(own, key=lambda sample: -abs(own[sample]))[:24]
    assert [sample.sample for sample in found.samples] == best
    assert [sample.value for sample in found.samples] == pytest.approx([own[sample] for sample in best], rel=1e-9)
    assert all(sample.preview.image for sample in found.samples)


def test_more_samples_than_are_shown_are_one_bar(adamw, adamw_info):
    found = samples_panel(View(adamw, adamw_info, replace(ADAM, within=Chip.of(True, ("dataset",), ("shapes",)))))
    assert len(found.samples) == 24
    assert found.others > 0
    assert found.rest + sum(sample.value for sample in found.samples) == pytest.approx(found.total)


def test_the_best_slots_and_their_ranks_are_there(adamw, adamw_info):
    found = slots_panel(View(adamw, adamw_info, ADAM))
    hits = adamw.topk("4", "shapes/3", 24, score="contribution", target="1-2")
    assert [slot.slot for slot in found.slots] == hits.slots[0].tolist()
    assert ranks_panel(View(adamw, adamw_info, ADAM)).count == adamw_info.layers[-1].slots


def test_the_group_is_in_the_address_and_filters_nothing_else(adamw, adamw_info):
    state = replace(ADAM, within=GROUP)
    query = link(state).partition("?")[2]
    pairs = [tuple(own.split("=")) for own in query.replace("%3B", ";").split("&")]
    assert read_state(pairs, adamw_info).state == state
    assert state.mask() is None
    assert not state.masked
    (fault,) = read_state([("item", "shapes/3"), ("within", "colour:3")], adamw_info).faults
    assert fault.parameter == "within"


def page_of(pages, state):
    return pages.get("/" + link(state)).text


def test_a_page_looks_into_a_group_without_scripts(adamw_pages, adamw):
    text = page_of(adamw_pages, ADAM)
    assert 'id="within"' not in text
    assert "failed" not in text
    (there,) = re.findall(r'<tr data-group="shapes/1">\s*<th[^>]*>.*?<a class="samples" href="([^"]+)"', text)
    found = adamw_pages.get("/" + there.replace("&amp;", "&")).text
    samples = re.findall(r'<tr data-sample="(\d+)">\s*<th scope="row"><a href="[^"]+"><img', found)
    asked = {"by": ("dataset", "sample"), "where": "dataset = 'shapes' AND label = 1", "k": 24}
    sums = adamw.group_sum("4", "shapes/3", score="contribution", target="1-2", **asked)
    assert [int(own) for own in samples] == [sample for (_, sample), _, _ in sums.ranked()]


def test_what_takes_long_waits_for_a_click(adamw_folder, adamw_info, monkeypatch):
    monkeypatch.setattr(panels, "PATIENCE", 1e-4)
    long = [name for name in PANELS if expected_seconds(name, View(None, adamw_info, replace(ADAM, within=GROUP)))]
    assert long == ["answer", "sums", "samples", "slots", "terms", "ranks", "steps"]
    assert not expected_seconds("sums", View(None, adamw_info, replace(ADAM, score="dot")))
    assert not expected_seconds("sums", View(None, replace(adamw_info, optimizer="SGD"), ADAM))
    assert isinstance(panel_of("sums", View(None, adamw_info, ADAM)), Waiting), "the memory is not asked"
    with served({"run": lambda: dualform.open(adamw_folder)}) as pages:
        text = page_of(pages, ADAM)
        assert 'id="sums"' not in text
        assert re.search(r'id="sentence">(Predict|<b>1</b>)', text), "which needs no parts"
        assert 'id="waterfall"' not in text
        offered = re.findall(r'<a class="act compute" href="([^"]+)">compute \(about 1 s\)</a>', text)
        assert len(offered) == 4, "answer, sums, slots and terms"
        found = pages.get("/" + offered[0].replace("&amp;", "&")).text
        assert 'id="sums"' in found
        assert 'id="slots"' in found
        assert 'id="waterfall"' in found


def test_durations_are_about_known():
    assert [lasting(own) for own in (0.2, 7.6, 89, 90, 600, 6000)] == ["1 s", "8 s", "89 s", "2 min", "10 min", "2 h"]


def test_slots_of_muon_are_refused_in_words(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Muon(model.parameters(), lr=0.02)
    with dualform.Recorder(model, optimizer, tmp_path / "m", quiet=True) as recorder:
        with recorder.step(label=[0, 1, 1]):
            learn(optimizer, model(torch.randn(3, 4)).square().sum())
        recorder.query_set("test", torch.randn(3, 4), label=[0, 1, 2])
    with served({"run": lambda: dualform.open(tmp_path / "m")}) as pages:
        text = page_of(pages, State("", "test", 0, "", ("label",), score="contribution", target="1", open=("data",)))
    assert "Its groups have contributions: see the sums by group." in text
    assert "group_sum(…" not in text
    assert "Answer anyway" not in text, "it would be refused again"
    assert 'id="sums"' in text


KEPT = State("", "shapes", 1, "4", ("label",), kept="forty")


PART = re.compile(r'<section id="panel-adjoint(?:-p1)?".*?</section>', re.DOTALL)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def batches(step, samples):
    inputs, labels = images_of(step // (SHORT // 2), step // (SHORT // 2))
    return inputs[samples], labels[samples]


SHORT = 12


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A memory with an adjoint and retrainings of 40 sets; under another name retrainings of 2 sets alone; and under a
    third, of the first two queries in another order, one without each of two labels.
    """
    path = record(tmp_path_factory.mktemp("kept") / "run", steps=SHORT)
    inputs, labels = images_of(0, 10)
    given = path, network(), (inputs[:3], labels[:3]), loss, batches
    found = dualform.adjoint(*given, name="forty")
    retrained = dualform.retrain(*given, random=40, share=0.1, name="forty")
    dualform.retrain(*given, random=2, share=0.1, name="a-pair")
    given = path, network(), (inputs[[1, 0]], labels[[1, 0]]), loss, batches
    dualform.retrain(*given, without=["label = 1", "label = 3"], name="labels")
    dualform.adjoint(path, network(), (inputs[:2], labels[:2]), loss, batches, name="labels")
    with dualform.open(path) as memory:
        yield path, memory, found, retrained


def test_samples_are_those_of_the_adjoint(kept):
    _, memory, found, _ = kept
    panel = adjoint_panel(View(memory, memory.info(), KEPT))
    order, values = np.argsort(found.values[1]), found.values[1]
    for shown, expected in ((panel.harmful, order[: SAMPLES // 2]), (panel.helpful, order[::-1][: SAMPLES // 2])):
        own = [(one.dataset, one.sample, one.label, np.float32(one.value)) for one in shown]
        columns = [found.columns[name][expected] for name in ("dataset", "sample", "label")]
        assert own == [*zip(*columns, values[expected], strict=True)]
        assert {one.preview.kind for one in shown} == {"image"}
        assert all(one.label_name == NAMES[one.dataset][one.label] for one in shown)
    assert panel.names == ("forty", "labels", "a-pair")


def test_groups_have_what_is_predicted_and_measured_without_them(kept):
    _, memory, found, _ = kept
    panel = adjoint_panel(View(memory, memory.info(), replace(KEPT, kept="labels")))
    sums = found.sums("label")
    assert {one["said"]: one["samples"] for one in panel.groups} == dict(enumerate(sums.counts.tolist()))
    predicted = [sums.sums[1, one["said"]] for one in panel.groups]
    assert [one["value"] for one in panel.groups] == pytest.approx(predicted, rel=1e-4)
    assert np.abs(predicted).tolist() == sorted(np.abs(predicted), reverse=True)
    rows = memory.sql("SELECT change FROM retrainings WHERE name = 'labels' AND query = 0 ORDER BY set")["change"]
    assert {one["said"]: one["change"] for one in panel.groups} == {0: None, 1: rows[0], 2: None, 3: rows[1]}


def test_by_a_column_that_samples_lack_there_are_no_groups_and_another_example_has_nothing(kept):
    _, memory, _, _ = kept
    info = memory.info()
    panel = adjoint_panel(View(memory, info, replace(KEPT, by=("step",))))
    assert (panel.groups, len(panel.sets)) == ((), 40)
    assert adjoint_panel(View(memory, info, replace(KEPT, row=3))) is None
    assert adjoint_panel(View(memory, info, replace(KEPT, query_set="noise"))) is None
    assert adjoint_panel(View(memory, info, replace(KEPT, kept="x' OR 'a' = 'a"))).name == "forty"
    panel = adjoint_panel(View(memory, info, replace(KEPT, kept="a-pair")))  # without a prediction, and too few
    assert (panel.groups, panel.harmful, panel.helpful, panel.correlation) == ((), [], [], None)
    assert [own["predicted"] for own in panel.sets] == [None, None]


def test_retrained_sets_stand_with_what_was_predicted(kept):
    from scipy.stats import spearmanr

    _, memory, found, retrained = kept
    panel = adjoint_panel(View(memory, memory.info(), KEPT))
    predicted, changes = retrained.sets.astype(float) @ found.values[1], retrained.changes[:, 1]
    order = np.argsort(changes, kind="stable")
    assert [(own["set"], own["left_out"]) for own in panel.sets] == [(one, retrained.sets[one].sum()) for one in order]
    assert [own["change"] for own in panel.sets] == changes[order].tolist()
    assert [own["predicted"] for own in panel.sets] == pytest.approx(predicted[order].tolist())
    assert len(panel.sets) == 40
    assert panel.correlation == pytest.approx(spearmanr(predicted, changes).statistic)


def test_the_page_and_an_export_show_it_where_something_was_kept_and_without_sql_say_so(kept, pages, memory, info):
    path, own, _, retrained = kept

    def without_sql(question):
        if closed and isinstance(question, SqlStatement):
            raise Forbidden("This server does not answer SQL.", hint="Start it with --sql.")

    closed = [True]
    with served({"run": lambda: Troubled(dualform.open(path), without_sql)}) as shown:
        (refused,) = PART.findall(shown.get("/explore?item=shapes/3").text)
        closed.clear()
        (part,) = PART.findall(shown.get("/explore?item=shapes/1&kept=forty").text)
    assert 'href="explore?item=shapes/1&amp;layer=4&amp;by=dataset,label&amp;kept=a-pair"' in part
    listed = re.findall(r'<td class="right change"><data class="n" value="([^"]+)"', part)
    changes = np.sort(retrained.changes[:, 1]).tolist()
    assert [*map(float, listed)] == [*changes[:15], *changes[-15:]]
    assert ("10</data> more" in part, 'id="agreement"' in part) == (True, True)
    assert "SQL is off: This server does not answer SQL. Start it with --sql." in refused
    assert "data-failure" not in refused
    (none,) = PART.findall(pages.get("/explore?item=shapes/3").text)
    assert none.endswith("hidden></section>"), "nothing stands in its place"
    exported = exported_page(
        Snapshot(own, own.info()), "run", choose(Snapshot(own, own.info()), ("shapes/1",), ("label:2",))
    )
    assert exported.failed == 0
    assert "Did harm" in PART.search(exported.html)[0]


SCORED = State("", "shapes", 3, "4", ("dataset", "label"))


ROWS, EXAMPLES = 60, 60


def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, EXAMPLES)).astype(np.float32)


def write_as_bergson(folder, scores, kind="float32", written=None, **about):
    """The layout of bergson 2.5's `MemmapSequenceScoreWriter`: a score and whether it was written, column by column."""
    size = np.dtype("<u2" if kind == "bfloat16" else kind).itemsize
    pair = 1 << size.bit_length()
    names = [f"{own}_{place}" for place in range(scores.shape[1]) for own in ("score", "written")]
    offsets = [own for place in range(scores.shape[1]) for own in (place * pair, place * pair + size)]
    record = {
        "names": names,
        "formats": [kind, "bool"] * scores.shape[1],
        "offsets": offsets,
        "itemsize": -(-pair * scores.shape[1] // 8) * 8,
    }
    rows = np.zeros(
        len(scores),
        np.dtype({**record, "formats": ["<u2", "bool"] * scores.shape[1]}) if kind == "bfloat16" else np.dtype(record),
    )
    for place in range(scores.shape[1]):
        column = scores[:, place].astype(np.float32)
        rows[f"score_{place}"] = (column.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat16" else column
        rows[f"written_{place}"] = True if written is None else written
    folder.mkdir()
    rows.tofile(folder / "scores.bin")
    told = {"attribute_tokens": False, "num_items": len(scores), "num_rows": len(scores), "num_scores": scores.shape[1]}
    (folder / "info.json").write_text(json.dumps({**told, "dtype": record, **about}))
    return folder


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_a_folder_of_bergson_is_read(tmp_path, info, kind):
    written = np.arange(ROWS) != 7
    folder = write_as_bergson(tmp_path / "scores", values(), kind, written)
    found = read_scores(f"{folder};dataset=shapes;set=shapes", info)
    assert np.isnan(found.values[7]).all()
    rounding = {"float32": 0, "float16": 2**-10, "bfloat16": 2**-7}[kind]
    np.testing.assert_allclose(found.values[written], values()[written], rtol=rounding)
    np.save(folder / "candidates.npy", np.arange(ROWS) + 100)
    assert read_scores(f"{folder};dataset=shapes;set=shapes", info).samples.tolist() == list(range(100, 100 + ROWS))


def test_an_array_is_read(tmp_path, info):
    np.save(tmp_path / "trak.npy", values())
    found = read_scores(f"{tmp_path / 'trak.npy'};dataset=noise <b>;set=noise", info)
    assert (found.name, found.dataset, found.query_set) == ("trak", "noise <b>", "noise")
    np.testing.assert_array_equal(found.values[:, 5], values()[:, 5])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "several datasets"),
        (";dataset=none", "no dataset 'none'"),
        (";dataset=shapes", "scores for 60 examples"),  # both query sets have as many
        (";dataset=shapes;set=none", "scores for 60 examples"),
        (";dataset=shapes;colour=red", "'colour' is no option"),
    ],
)
def test_what_cannot_be_told_is_asked_for(tmp_path, info, options, says):
    np.save(tmp_path / "trak.npy", values())
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        read_scores(f"{tmp_path / 'trak.npy'}{options}", info)
    assert refused.value.hint


def test_what_is_no_file_of_scores_is_refused(tmp_path, info):
    tokens = write_as_bergson(tmp_path / "tokens", values(), attribute_tokens=True)
    short = write_as_bergson(tmp_path / "short", values())
    (short / "scores.bin").write_bytes(b"\0" * 100)
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("none")
    for path in (tokens, short, *(tmp_path / f"{name}.npy" for name in ("flat", "objects", "text", "missing"))):
        with pytest.raises(BadInput, match=re.escape(str(path))):
            read_scores(f"{path};dataset=shapes;set=shapes", info)


def test_the_panel_shows_both_ends_and_how_far_they_agree(tmp_path, memory, info):
    by_sample = memory.group_sum("4", "shapes/3", by=("dataset", "sample"))
    ours = dict(zip(by_sample.groups, by_sample.sums[0].tolist(), strict=True))
    same = np.full((ROWS, EXAMPLES), np.nan, np.float32)
    for (dataset, sample), total in ours.items():
        if dataset == "shapes":
            same[sample, 3] = total
    np.save(tmp_path / "same.npy", same)
    np.save(tmp_path / "turned.npy", -same)
    paths = [f"{tmp_path / name}.npy;dataset=shapes;set=shapes" for name in ("same", "turned")]
    shown = RememberedAnswers(memory, Beside(scores=tuple(read_scores(path, info) for path in paths)))
    first, second = scores_panel(View(shown, info, SCORED))
    order = sorted((total, -sample) for (dataset, sample), total in ours.items() if dataset == "shapes")[::-1]
    assert [own.sample for own in first.highest] == [-sample for _, sample in order[:12]]
    assert [own.sample for own in first.lowest] == [-sample for _, sample in order[::-1][:12]]
    assert (first.agreement, second.agreement) == (pytest.approx(1.0), pytest.approx(-1.0))
    assert first.samples == len(order)
    assert scores_panel(View(shown, info, replace(SCORED, query_set="noise"))) is None


def test_pages_show_them_and_two_memories_have_none(tmp_path, folder):
    np.save(tmp_path / "trak.npy", values())
    given = [f"{tmp_path / 'trak.npy'};dataset=shapes;set=shapes;name=TRAK"]
    with explore(folder, scores=given) as pages:
        port = int(pages.url.rsplit(":", 1)[1].strip("/"))
        text = Served(port).get("/explore?item=shapes/3&open=data").text
    part = text[text.index('id="panel-scores"') :]
    assert 'data-scores="TRAK"' in part
    best = np.argsort(-values()[:, 3], kind="stable")[:12].tolist()
    assert [int(own) for own in re.findall(r'data-sample="(\d+)"', part)][:12] == best
    with pytest.raises(BadInput, match="one memory"):
        explore([folder, tmp_path], scores=given)
    with pytest.raises(BadInput, match="several datasets"):
        explore(folder, scores=[str(tmp_path / "trak.npy")])
    assert dualform.open(folder).info().steps > 0
