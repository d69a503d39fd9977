"""What samples look like on the pages is what memory.previews answers, byte for byte."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dualform
from dualform.answers import Preview
from dualform.errors import BadInput, Damaged, NotFound
from dualform.methods import Answers
from dualform.questions import PreviewLookup
from dualform_explorer.panels.data import slots_panel
from dualform_explorer.panels.example import query_panel
from dualform_explorer.previews import shown_of_examples, shown_preview, tokens_of_passage
from dualform_explorer.start import query_set_panel
from dualform_explorer.state import State
from dualform_explorer.view import Snapshot, View
from tests.explorer import recorded_table
from tests.explorer.recorded_text import HOSTILE, WORDS, offsets, passages

PLAIN = State("", "shapes", 3, "4", ("dataset", "label"), k=60)
TEXT = State("", "held", 3, "3", ("label",), k=60)
PREFIX = "data:image/png;base64,"


@pytest.fixture(scope="module")
def texts(text_folder: Path) -> Iterator[Answers]:
    with dualform.open(text_folder) as opened:
        yield opened


class Limited(Answers):
    """Answers for a memory, but to what samples looked like as it is told."""

    def __init__(self, answers: Answers, error, most: int = 0) -> None:
        self.answers, self.error, self.most = answers, error, most

    def ask(self, question):
        if isinstance(question, PreviewLookup) and len(question.samples) > self.most:
            raise self.error
        return self.answers.ask(question)

    def close(self) -> None:
        pass


def png(image: str) -> bytes:
    assert image.startswith(PREFIX)
    return b64decode(image.removeprefix(PREFIX), validate=True)


def test_thumbnails_are_those_of_the_slots_samples(memory, info):
    panel = slots_panel(View(memory, info, PLAIN))
    assert panel.kind == "image"
    assert {own.dataset for own in panel.slots} == {"shapes", "noise <b>"}
    for own in panel.slots:
        (preview,) = memory.previews([own.sample], own.dataset)
        assert png(own.preview.image) == preview.image
    assert len({own.preview.image for own in panel.slots}) == panel.samples


def test_queries_and_cards_look_like_the_query_sets_examples(memory, info):
    (own,) = memory.previews([3], query_set="shapes")
    assert png(query_panel(View(memory, info, PLAIN)).preview.image) == own.image
    for card in query_set_panel(Snapshot(memory, info), "noise").cards:
        (own,) = memory.previews([card.row], query_set="noise")
        assert png(card.preview.image) == own.image


def test_passages_have_the_slots_token_marked(texts):
    panel = slots_panel(View(texts, texts.info(), TEXT))
    rows = texts.slots(np.array([own.slot for own in panel.slots]), "token")
    own = passages()
    assert panel.kind == "text"
    for slot, sample, position in zip(panel.slots, rows["sample"].tolist(), rows["position"].tolist(), strict=True):
        before, token, behind = slot.preview.passage
        assert before + token + behind == own[sample]
        assert (len(before), len(before) + len(token)) == offsets(own[sample])[position]


def test_a_passage_of_a_query_has_each_of_its_tokens_to_pick(texts):
    for row in (0, 5):
        panel = query_panel(View(texts, texts.info(), replace(TEXT, row=row, token=2)))
        passage = passages()[row]
        assert "".join(own.text for own in panel.passage) == passage
        picked = {own.position: own.text for own in panel.passage if own.position is not None}
        assert picked == {place: passage[start:stop] for place, (start, stop) in enumerate(offsets(passage))}
        assert [own.position for own in panel.passage if own.marked] == [2]
    assert passages()[0] == HOSTILE


def test_no_slots_token_is_marked_where_positions_are_of_several_kinds_and_it_says_so(texts):
    info = texts.info()
    assert len(info.layers) > 1
    other = replace(info.layers[0], name="decoder", space="target")
    several = replace(info, layers=(*info.layers, other))
    slots, query = slots_panel(View(texts, several, TEXT)), query_panel(View(texts, several, replace(TEXT, token=2)))
    why = "No token is marked: positions are of several kinds (target, token), and texts do not say which."
    assert slots.missing == why
    assert [own.position for own in query.passage if own.marked] == [2]  # the layer has as many places as the text
    assert {own.preview.passage[1] for own in slots.slots} == {""}
    rows = texts.slots(np.array([own.slot for own in slots.slots]), "token")
    assert [own.preview.passage[0] for own in slots.slots] == [passages()[own] for own in rows["sample"].tolist()]


def test_a_token_that_the_example_does_not_have_is_named_and_none_of_another_is_shown(texts):
    with pytest.raises(NotFound, match=f"The example has no token {WORDS}: it has 0 to {WORDS - 1}."):
        query_panel(View(texts, texts.info(), replace(TEXT, token=WORDS)))


def test_rows_of_a_table_are_shown_by_column(tmp_path):
    recorded_table.record(tmp_path / "run")
    own = recorded_table.columns()
    with dualform.open(tmp_path / "run") as memory:
        info = memory.info()
        state = State("", "held", 1, "", ("label",))
        panel = slots_panel(View(memory, info, state))
        assert panel.kind == "table"
        for slot in panel.slots:
            assert slot.preview.row == pytest.approx({name: values[slot.sample] for name, values in own.items()})
        assert query_panel(View(memory, info, state)).preview.row["name"] == "row 1 <i>"


def test_long_passages_are_cut_around_their_token():
    text = "a" * 1000 + " token " + "b" * 1000
    places = np.array([[0, 1000], [1001, 1006], [1007, 2007]], dtype=np.int32)
    before, token, behind = shown_preview(Preview(1, text=text, offsets=places), 1).passage
    assert token == "token"
    assert before == "…" + "a" * 159 + " "
    assert behind == " " + "b" * 159 + "…"
    before, token, behind = shown_preview(Preview(1, text=text)).passage
    assert (before, token, behind) == ("a" * 320 + "…", "", "")


def test_tokens_without_a_place_and_tokens_that_overlap_are_not_offered():
    text = "one two three"
    places = np.array([[0, 0], [0, 3], [2, 5], [4, 7], [4, 7], [8, 13]], dtype=np.int32)
    own = tokens_of_passage(Preview(1, text=text, offsets=places), 3)
    assert [(token.text, token.position) for token in own] == [
        ("one", 1),
        (" ", None),
        ("two", 3),
        (" ", None),
        ("three", 5),
    ]
    assert tokens_of_passage(Preview(1, text=text, offsets=places), 0) == ()
    many = np.array([[place, place + 1] for place in range(1000)], dtype=np.int32)
    own = tokens_of_passage(Preview(1, text="x" * 1000, offsets=many), 500)
    assert [own[0].text, own[1].position, own[-2].position, own[-1].text] == ["…", 350, 650, "…"]


def test_tokens_are_picked_by_the_positions_that_a_text_counts_from():
    places = np.array([[0, 3], [4, 7], [8, 13]], dtype=np.int32)
    text = Preview(1, text="one two three", offsets=places, first=2)
    for position in (2, 3, 4):
        own = tokens_of_passage(text, position)
        assert [(token.text, token.position) for token in own] == [
            ("one", 2),
            (" ", None),
            ("two", 3),
            (" ", None),
            ("three", 4),
        ]
        marked = next(token.text for token in own if token.marked)
        assert marked == shown_preview(text, position).passage[1]
    assert tokens_of_passage(text, 1) == tokens_of_passage(text, 5) == ()


def test_more_than_an_answer_holds_is_shown_as_far_as_it_goes(memory, info):
    limited = Limited(
        memory, BadInput("what these samples looked like takes more than 8.0 MiB.", field="samples"), most=6
    )
    previews = shown_of_examples(Snapshot(limited, info), "shapes", range(20))
    assert [own.kind for own in previews] == ["image"] * 5 + ["none"] * 15
    assert previews.missing == "Only the first 5 samples are shown: all 20 would be too large for a page."
    alone = shown_of_examples(Snapshot(Limited(memory, BadInput("too large")), info), "shapes", [3])
    assert alone.missing == "too large"


def test_a_damaged_preview_set_leaves_the_numbers_and_is_named(memory, info):
    damaged = Limited(memory, Damaged("gallery/shapes/samples-000000.arrow was altered."))
    panel, whole = slots_panel(View(damaged, info, PLAIN)), slots_panel(View(memory, info, PLAIN))
    assert [own.score for own in panel.slots] == [own.score for own in whole.slots]
    assert panel.kind == "none"
    assert panel.missing == "gallery/shapes/samples-000000.arrow was altered."
    assert query_panel(View(damaged, info, PLAIN)).missing == panel.missing
