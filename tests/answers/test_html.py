"""What a notebook shows of answers: samples, names, bars; the plain table where the memory cannot be asked; errors."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dualform
from dualform.answers import GroupSums, Preview
from dualform.answers.contents import bars, cell_of
from dualform.errors import NotFound, RecordingError, Unavailable
from dualform.methods import Answers
from dualform.questions import PreviewLookup, SlotLookup, SqlStatement, TopK
from dualform_client.client import Client
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.trainings import take_steps

EVIL = "<script>alert('&\"')</script>"
NAMES = [EVIL, "one", "two"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.rand(8, 2, 2), torch.arange(8) % 3
    path = tmp_path_factory.mktemp("html") / "run"
    with dualform.Recorder(model, optimizer, path, quiet=True, label_names={EVIL: NAMES, "b": NAMES}) as recorder:
        recorder.previews(EVIL, dualform.PreviewSet.images(images[:6].numpy()))
        take_steps(
            recorder,
            optimizer,
            ((step, torch.arange(4) + step % 2 * 4) for step in range(6)),
            lambda step, rows: nn.functional.cross_entropy(model(images[rows].flatten(1)), labels[rows]),
            dataset=lambda step, rows: (EVIL, "b")[step // 3],
            label=lambda step, rows: labels[rows],
            sample=lambda step, rows: rows,
            note=[EVIL] * 4,
            nothing=None,
        )
        recorder.query_set("test", images.flatten(1)[:5], label=labels[:5])
    return path


class Counted(Answers):
    """Answers as an engine does, and counts what is asked."""

    def __init__(self, engine):
        self.engine, self.asked, self.fails = engine, Counter(), None

    def ask(self, question):
        self.asked[type(question)] += 1
        if self.fails is not None and type(question) is not TopK:
            raise self.fails
        return self.engine.ask(question)

    def close(self):
        self.engine.close()


@pytest.fixture(scope="module")
def engine(folder):
    with dualform.open(folder) as opened:
        yield opened


@pytest.fixture
def memory(engine):
    return Counted(engine)


def strictly(answer):
    """What a notebook shows, where a failure is one."""
    return answer._html(*answer._source())


def rows_of(shown):
    """By row, the cells' HTML."""
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", shown)]


def test_hits_show_what_their_samples_are_and_look_like(memory):
    hits = memory.topk("0", "test/0-1", k=24)
    shown = strictly(hits)
    assert shown == hits._repr_html_()
    head = re.findall(r"<th>(.*?)</th>", shown)
    assert head == ["query", "rank", "slot", "score", "preview", "dataset", "label", "sample", "step", "note"]
    rows = rows_of(shown)
    assert len(rows) == 18
    assert "… 30 more rows" in shown
    joined = hits.joined(memory.engine).records()
    for row, expected in zip(rows, joined, strict=False):
        number, name = expected["label"], NAMES[expected["label"]]
        assert row[6].startswith(f"{number} ({'&lt;script&gt;' if name == EVIL else name}")
        assert row[7] == str(expected["sample"])
        seen = expected["dataset"] == EVIL and expected["sample"] < 6
        assert row[4].startswith("<img alt=" if seen else "-")
    assert any("<img" in row[4] for row in rows)


def test_a_table_of_hits_takes_one_lookup_of_slots_and_one_of_previews_a_dataset(memory):
    hits = memory.topk("0", "test", k=4)
    memory.asked.clear()
    hits._repr_html_()
    assert memory.asked[SlotLookup] == memory.asked[SqlStatement] == 1
    assert memory.asked[PreviewLookup] <= 2
    repr(hits)
    assert memory.asked[SlotLookup] == 1, "text needs no memory"


@pytest.mark.parametrize(("count", "rows"), [(20, 20), (21, 18)])
def test_no_row_is_left_out_unsaid(memory, count, rows):
    shown = strictly(memory.topk("0", "test/0", k=count))
    assert len(rows_of(shown)) == rows
    assert (f"… {count - rows} more rows" in shown) == (rows < count)


def test_nothing_of_a_memory_is_html(memory):
    answers = (
        memory.topk("0", "test/0", k=3),
        memory.topk("0", "test/0", k=3, by=("dataset", "label")),
        memory.topk("0", "test/0", k=3, by="note"),
        memory.group_sum("0", "test/0", by=("dataset", "label")),
        memory.contributions("2", "test/0", by=("dataset", "note")),
        memory.output("2", "test"),
        memory.info(),
    )
    for answer in answers:
        shown = strictly(answer)
        assert "<script" not in shown
        assert "alert('" not in shown
        assert "&lt;script&gt;alert(&#x27;&amp;&quot;&#x27;)" in shown


def test_the_plain_table_is_shown_where_the_memory_cannot_be_asked(memory, engine):
    hits = memory.topk("0", "test/0", k=3)
    plain = replace(hits)._repr_html_()
    assert "preview" not in plain
    for failure in (Unavailable("gone."), ZeroDivisionError()):
        memory.fails = failure
        assert hits._repr_html_() == plain
    memory.fails = None
    with Server(engine, ServiceConfig("127.0.0.1:0", sql=True)) as server, Client(server.address) as client:
        assert strictly(client.topk("0", "test/0", k=3)) == hits._repr_html_() != plain
    assert pickle.loads(pickle.dumps(hits))._repr_html_() == plain
    assert copy.deepcopy(hits)._repr_html_() == plain
    alone = Counted(engine).topk("0", "test/0", k=3)
    gc.collect()
    assert alone._source()[0] is None, "an answer keeps no memory open"
    assert alone._repr_html_() == plain


def test_sums_have_bars(memory):
    sums = GroupSums(((0,), (1,), (2,)), np.array([[2.0, -1.0, np.nan]]), np.array([4, 5, 6]), ("bar",))
    shown = strictly(sums)
    assert re.findall(r"<th>(.*?)</th>", shown) == ["query", "bar", "sum", "count", "bar_"]
    drawn = [row[4] for row in rows_of(shown)]
    assert 'x="66.7" y="2" width="133.3"' in drawn[0]
    assert 'x="0.0" y="2" width="66.7"' in drawn[1]
    assert "rect" not in drawn[2]
    assert all("rect" not in own for spans in ([(0.0, np.inf)], [(0.0, np.nan)], []) for own in bars(spans))
    assert "rect" in bars([(0.0, 1e308)])[0]
    many = GroupSums(tuple((n,) for n in range(50)), np.arange(100.0).reshape(2, 50), np.ones(50, int), ("n",))
    assert "; the 20 largest of query 0 are shown" in strictly(many)
    assert [row[1] for row in rows_of(strictly(many))] == [str(49 - n) for n in range(20)]
    named = rows_of(strictly(memory.group_sum("0", "test/0", by="label")))
    assert [row[1] for row in named][1:] == ["1 (one)", "2 (two)"]


def test_contributions_are_a_waterfall_that_ends_at_the_output(memory):
    terms = memory.contributions("2", "test", by="sample")
    shown = strictly(terms)
    assert "of the first 3 queries" in shown
    rows = rows_of(shown)
    assert len(rows) == 3 * (8 + 5)
    for query in range(3):
        own, number = rows[query * 13 : query * 13 + 13], int(terms.output[query].argmax())
        values = [float(row[5]) for row in own]
        assert sum(values[:-1]) == pytest.approx(values[-1], abs=1e-4)
        assert values[-1] == pytest.approx(terms.output[query, number], rel=1e-4)
        names = [own[place][2] for place in (0, 1, -3, -2, -1)]
        assert names == ["initial", "bias", "unrecorded_change", "residual", "output"]
    assert strictly(memory.contributions("0", "test/0", by="label")).count("<tr>") == 1 + 3 + 5
    wide = memory.contributions("2", "test/0", by=("sample", "step"))
    assert "12 other groups" in strictly(wide)


def test_outputs_mark_the_largest_and_the_second(memory):
    answer = memory.output("2", "test/1-2")
    (row, _), order = rows_of(strictly(answer)), np.argsort(-answer.values[0])
    said = [f"{n} ({NAMES[n]})" if n else f"0 ({row[1 + (order == 0).argmax() + 1].split(' (')[1]}" for n in order]
    assert row[1] == "1 (one)"
    assert row[2:4] == said[:2]
    assert row[4 + order[0]] == f"<b>{answer.values[0].max():.4g}</b>"
    assert row[4 + order[1]].startswith("<i>")
    hidden = rows_of(strictly(memory.output("0", "test/1")))[0]
    assert hidden[2].isdecimal(), "outputs of a hidden layer are no labels"
    by_numbers = strictly(memory.output("2", np.ones((1, 5))))
    assert "<th>label</th>" not in by_numbers


def test_texts_and_rows_are_cells():
    offsets = np.array([[0, 8], [9, 12]], np.int32)
    text = Preview(0, text="<script> b&b\n" + "x" * 200, offsets=offsets)
    assert cell_of(text, 1) == f"&lt;script&gt; <mark>b&amp;b</mark> {'x' * 29}"
    assert cell_of(text).startswith("&lt;script&gt; b&amp;b xxx")
    assert cell_of(text).endswith("x…")
    assert cell_of(Preview(0, row={"<b>": "<i>", "age": 3, "none": None})) == "&lt;b&gt;: &lt;i&gt;, age: 3"
    assert cell_of(Preview(0)) is None


def test_an_error_in_a_notebook_says_what_and_what_to_do_and_where(memory):
    code = compile("\n\nmemory.topk('haed', 'test/0')", "<cell>", "exec")
    with pytest.raises(NotFound) as caught:
        exec(code, {"memory": memory, "__name__": "__main__"})
    error = caught.value
    shown = error._render_traceback_()
    assert shown[:2] == [f"NotFound: {error.message}", error.hint]
    assert shown[2].startswith("at line 3:")
    assert len(shown) == 3
    caused = RecordingError("failed.")
    caused.__cause__ = ZeroDivisionError("inside")
    assert "ZeroDivisionError: inside" in "\n".join(caused._render_traceback_())
