"""The search page, held to a search letter by letter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape
from urllib.parse import parse_qsl, quote, urlsplit

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dualform
from dualform.answers import Columns, Previews
from dualform.answers.table import column_of
from dualform.errors import BadInput, BadMask, Damaged
from dualform.methods import Answers
from dualform.questions import Inventory, PreviewLookup, SqlStatement
from dualform_client import Client
from dualform_explorer import search
from dualform_explorer.filter import narrowed, samples_filter
from dualform_explorer.search import AROUND, around, filtered, search_panel
from dualform_explorer.state import LONGEST, read_state
from dualform_explorer.view import Snapshot
from dualform_service.server import Server
from dualform_service.settings import ServiceConfig
from tests.explorer import recorded_table
from tests.explorer.recorded_text import HOSTILE, passages
from tests.explorer.served import Served, served

Texts = Mapping[str | None, Mapping[int, str | None]]
"""By dataset and sample; None for a sample without a preview."""


def has(text: str, phrase: str) -> bool:
    """Whether the phrase is in the text, tried at each place."""
    return any(text[place : place + len(phrase)].lower() == phrase.lower() for place in range(len(text)))


class Shelf(Answers):
    """A memory whose training samples have other texts than were recorded."""

    def __init__(self, memory: Answers, texts: Texts, most: int = 1 << 30, damaged: str = "") -> None:
        """`most`: letters of an answer. `damaged`: the dataset whose previews cannot be read."""
        self.memory, self.texts, self.most, self.damaged = memory, texts, most, damaged
        self.tables = duckdb.connect()
        self.tables.execute("CREATE TABLE slots (dataset VARCHAR, label BIGINT, sample BIGINT)")
        self.tables.execute("CREATE TABLE labels (dataset VARCHAR, label BIGINT, name VARCHAR)")
        for dataset, own in texts.items():
            samples = np.array([*own], dtype=np.int64)  # each seen twice, with a label of its own where it is even
            self.tables.execute(
                "INSERT INTO slots SELECT $1, CASE WHEN sample % 2 = 0 THEN 4 ELSE twice END, sample "
                "FROM (SELECT unnest($2::BIGINT[]) AS sample), range(2) t(twice)",
                [dataset, samples.tolist()],
            )

    def ask(self, question):
        if isinstance(question, Inventory):
            return replace(self.memory.ask(question), previews={name or "": "texts" for name in self.texts})
        if isinstance(question, SqlStatement):
            found = self.tables.execute(question.text)
            names, rows = [own[0] for own in found.description], found.fetchall()
            return Columns(
                {name: column_of([row[place] for row in rows]) for place, name in enumerate(names)}
                if rows
                else {name: np.empty(0) for name in names}
            )
        if not isinstance(question, PreviewLookup) or question.query_set is not None:
            return self.memory.ask(question)
        if question.dataset == self.damaged:
            raise Damaged("The file of previews is cut short.")
        texts = tuple(self.texts[question.dataset].get(sample) for sample in question.samples.tolist())
        if sum(len(own or "") for own in texts) > self.most:
            raise BadInput("That is more than an answer holds.", field="samples")
        known = np.array([own is not None for own in texts], dtype=bool)
        return Previews(question.samples, "texts", known, texts=texts)

    def close(self) -> None:
        self.tables.close()


def found_by(shelf: Shelf, phrase: str, start: int = 0, seconds: float = 60.0):
    info = shelf.info()
    return search_panel(Snapshot(shelf, info), read_state([], info).state, phrase, start, seconds)


LETTERS = st.text("aAb%_.*\\é É\n<&'", max_size=12)


@settings(max_examples=12, deadline=None)
@given(st.lists(LETTERS, max_size=8), LETTERS.filter(str.strip))
def test_a_line_for_each_sample_that_has_the_phrase(texts, lines, phrase):
    own = dict(enumerate(lines))
    shelf = Shelf(texts, {"some": own})
    panel = found_by(shelf, phrase)
    found = [line for line in panel.lines if not line.query_set]
    assert [line.sample for line in found] == [sample for sample, text in own.items() if has(text, phrase)]
    for line in found:
        text = own[line.sample].replace("\n", " ")
        assert line.before + line.match + line.after == text
        assert line.match.lower() == phrase.replace("\n", " ").lower()
        assert not has(line.before + line.match[:-1], phrase.replace("\n", " "))  # the first match
        assert line.label == (4 if line.sample % 2 == 0 else None)
    held = [line.sample for line in panel.lines if line.query_set == "held"]
    assert held == [row for row, text in enumerate(passages()[:8]) if has(text, phrase)]
    assert (panel.start, panel.stop, panel.total) == (0, len(own) + 8, len(own) + 8)


def test_a_search_goes_on_where_it_stopped_and_misses_nothing(texts, monkeypatch):
    shelved = {
        None: {sample: "odd" if sample % 2 else None for sample in range(40)},
        "a 'b'": {7 * sample: f"number {sample}" for sample in range(3000)},
        "z": {sample: f"odd {sample}" for sample in range(700)},
    }
    shelf = Shelf(texts, shelved, most=3000)
    monkeypatch.setattr(search, "MOST_SAMPLES", 1000)
    start, found, blank, pages = 0, [], 0, 0
    while True:
        panel = found_by(shelf, "ODD", start)
        assert panel.start == start
        assert start < panel.stop <= start + 1000
        assert len(panel.lines) <= search.MOST_LINES
        found += panel.samples
        blank, start, pages = blank + panel.blank, panel.stop, pages + 1
        if start == panel.total:
            break
    every = [(name, sample) for name, own in shelved.items() for sample, text in own.items() if has(text or "", "odd")]
    assert found == every
    assert panel.total == 40 + 3000 + 700 + 8
    assert (blank, pages > 5) == (20, True)


def test_a_page_ends_when_its_time_is_over_and_has_got_further(texts):
    shelf = Shelf(texts, {"z": dict.fromkeys(range(100), "text")})
    panel = found_by(shelf, "text", 3, seconds=0.0)
    assert (panel.start, panel.stop, len(panel.lines)) == (3, 4, 1)
    assert found_by(shelf, "text", 10**9).stop == 108  # and beyond the end there is nothing


def test_what_cannot_be_read_is_named_and_not_counted(texts):
    shelf = Shelf(texts, {"a": {1: "crow"}, "b": dict.fromkeys(range(5), "crow")}, damaged="b")
    panel = found_by(shelf, "crow")
    assert panel.troubles == ("Not searched: b. The file of previews is cut short.",)
    assert (panel.samples, panel.unread, panel.stop) == ([("a", 1)], 5, 14)


def lines_of(text: str) -> list[tuple[str, str]]:
    """The address and the words of each line of a page."""
    found = re.findall(r'<li><a href="([^"]*)">.*?<span class="line" dir="auto">(.*?)</a>', text, re.DOTALL)
    return [(unescape(href), unescape(re.sub(r"<[^>]*>", "", line)).strip()) for href, line in found]


def test_each_line_leads_to_its_sample_or_example(book_pages):
    text = book_pages.get("/search?memory=text&q=tortoise").text
    own = [sample for sample, passage in enumerate(passages()) if "tortoise" in passage]
    found = [
        *(f"sample?memory=text&dataset=fables&sample={sample}" for sample in own),
        *(f"explore?memory=text&item=held/{row}" for row in own if row < 8),
    ]
    assert [href for href, _ in lines_of(text)] == found
    assert book_pages.get("/" + found[-1]).status == 200


def test_a_row_of_a_table_is_found_by_any_column(book_pages):
    columns = recorded_table.columns()
    value = str(columns["feature 3"][5])
    text = book_pages.get(f"/search?memory=table&q={value}").text
    assert ("sample?memory=table&dataset=rows&sample=5", value) in lines_of(text)
    assert "feature 3" in text


@pytest.mark.parametrize("phrase", ["<b>bold", "&amp;", "%", "\x00"])
def test_a_phrase_and_a_text_stay_text(book_pages, phrase):
    page = book_pages.get(f"/search?memory=text&q={quote(phrase)}")
    assert page.status == 200
    assert "<b>bold" not in page.text
    assert "<script>" not in page.text.lower()
    expected = [0] if has(HOSTILE, phrase) else []
    assert [href for href, _ in lines_of(page.text) if "sample" in href] == [
        f"sample?memory=text&dataset=fables&sample={sample}" for sample in expected
    ]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("q=fox&from=-1", "from"),
        ("q=fox&q=crow", "q"),
        ("q=" + "x" * (LONGEST + 1), "q"),
        ("q=fox&colour=red", "colour"),
        ("q=fox&item=held/3&layer=9", "layer"),
    ],
)
def test_what_is_wrong_with_an_address_is_named(book_pages, query, parameter):
    page = book_pages.get(f"/search?memory=text&{query}")
    assert page.status == 400
    assert f'data-parameter="{parameter}"' in page.text
    assert "Traceback" not in page.text


def test_a_memory_that_there_is_not_and_a_phrase_that_there_is_not(book_pages):
    assert book_pages.get("/search?memory=none&q=fox").status == 404
    assert "0 have" in book_pages.get("/search?memory=text&q=unicorn").text
    for empty in ("", "&q=", "&q=%20"):
        page = book_pages.get(f"/search?memory=text{empty}")
        assert (page.status, 'id="searched"' in page.text) == (200, False)


def test_the_field_stands_on_every_page_of_a_memory_with_texts(book_pages, pages):
    for path in ("", "explore?memory=text&item=held/3", "paper?memory=text&item=held/3", "search?memory=text"):
        assert '<input type="search" id="search" name="q"' in book_pages.get(f"/{path}").text
    assert 'id="search"' in book_pages.get("/explore?memory=text&layer=99").text
    for path in ("", "explore"):
        assert 'id="search"' not in pages.get(f"/{path}").text  # there is nothing to find


def test_a_memory_without_query_sets_is_searched_too(texts):
    class Bare(Shelf):
        def ask(self, question):
            found = super().ask(question)
            return replace(found, query_sets=()) if isinstance(question, Inventory) else found

    with served({"bare": lambda: Bare(texts, {None: {5: "a crow"}})}) as bare:
        page = bare.get("/search?q=crow")
    assert (page.status, lines_of(page.text)) == (200, [("sample?sample=5", "a crow")])
    assert 'id="keep-found"' not in page.text


SAMPLES = [("fables", 3), ("fables", 5), (None, 4)]


@pytest.mark.parametrize("own", ["", "label > 3 -- a comment"])
@pytest.mark.parametrize("only", [True, False])
def test_the_filter_keeps_or_removes_the_slots_of_these_samples(texts, own, only):
    where = narrowed(own, samples_filter(SAMPLES, only))
    rows = texts.slots(np.arange(texts.info().slots["token"]), "token").records()
    kept = [((row["dataset"], row["sample"]) in SAMPLES) == only and (not own or row["label"] > 3) for row in rows]
    assert texts.group_sum("3", "held/0:0", "label", where).scan.slots_matching == sum(kept) > 0


def test_slots_without_a_sample_are_kept_where_samples_are_removed():
    tables = duckdb.connect()
    tables.execute(
        "CREATE TABLE slots AS FROM (VALUES (NULL, NULL), ('it''s', NULL), ('it''s', 1), (NULL, 1)) t(dataset, sample)"
    )
    for samples in ([("it's", 1)], [(None, 1)], [("it's", 1), (None, 1)]):
        kept, removed = (
            set(tables.execute(f"FROM slots WHERE {samples_filter(samples, only)}").fetchall())
            for only in (True, False)
        )
        assert kept == set(samples)
        assert removed == {(None, None), ("it's", None), ("it's", 1), (None, 1)} - kept


def test_the_links_filter_the_page_that_the_reader_came_from(book_pages, texts):
    own = [("fables", sample) for sample, passage in enumerate(passages()) if "tortoise" in passage]
    text = book_pages.get("/search?memory=text&q=tortoise&item=held/3&token=2&layer=3&by=label&without=label:2").text
    for only, name in ((True, "keep"), (False, "remove")):
        (href,) = re.findall(rf'id="{name}-found" href="([^"]*)"', text)
        params = dict(parse_qsl(urlsplit(unescape(href)).query))
        expected = {"item": "held/3", "token": "2", "layer": "3", "without": "label:2"}
        assert {name: params[name] for name in expected} == expected
        assert params["where"] == samples_filter(own, only)
        page = book_pages.get("/" + unescape(href))
        where = f"({params['where']}) AND label IS DISTINCT FROM 2"
        matching = texts.group_sum("3", "held/3:2", "label", where).scan.slots_matching
        assert f'data-value="{matching}"' in page.text
    assert f"by the {len(own)} training samples found here" in text


def test_a_filter_that_an_address_cannot_hold_is_not_offered_and_why(texts):
    few, many = (dict.fromkeys(range(10**6, 10**6 + count), "crow") for count in (3, 199))
    shelf = Shelf(texts, {"z" * 100: many})
    assert found_by(shelf, "crow").keep  # 199 ids of seven digits
    shelf = Shelf(texts, {"z" * 3000: many})
    panel = found_by(shelf, "crow")
    assert (panel.keep, panel.remove) == ("", "")
    assert re.match(
        r"These are too many for a filter: it takes 4,\d\d\d letters, and an address holds 4,000\.", panel.refused
    )
    state = read_state([("where", "label = 1) OR (true")], texts.info()).state
    with pytest.raises(BadMask, match="closes a parenthesis"):
        filtered(state, [("z", sample) for sample in few], True)


@pytest.fixture(scope="module")
def book_pages(text_folder, table_folder) -> Iterator[Served]:
    opened = {"text": lambda: dualform.open(text_folder), "table": lambda: dualform.open(table_folder)}
    with served(opened) as found:
        yield found


def test_of_a_long_text_sixty_letters_stand_on_either_side():
    before, match, after = around("x" * 100 + "a\tb" + "y" * 100, 100, 103)
    assert (before, match, after) == ("…" + "x" * AROUND, "a b", "y" * AROUND + "…")
    assert around("ab", 0, 1) == ("", "a", "b")


def test_without_sql_query_sets_alone_are_searched_and_it_says_so(texts):
    with (
        Server(texts, ServiceConfig("127.0.0.1:0")) as server,
        served({"text": lambda: Client(server.address, timeout=20)}) as remote,
    ):
        text = remote.get("/search?q=fox").text
    assert "Training samples are not searched: " in text
    assert '<data value="8">8</data> of <data value="8">8</data> samples searched' in text
    assert "#1<" not in text
    assert "held/1" in text
