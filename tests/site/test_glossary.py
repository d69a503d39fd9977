"""The page of words is written from the table that the explorer's hover texts take."""

from __future__ import annotations

import re
from pathlib import Path

from docs.site import glossary
from docs.site.prose import OLD

from dualform_explorer.glossary import GLOSSARY, SCORE_WORDS, meaning
from dualform_explorer.rendering import hover
from tests.cases import some

ROOT = Path(__file__).parents[2]


def test_the_page_is_written_from_the_table():
    assert glossary.PAGE.read_text(encoding="utf-8") == glossary.page(), "run: python -m docs.site.glossary"


def test_a_meaning_is_one_short_sentence_without_old_words():
    for word, own in some(GLOSSARY.items()):
        assert 3 <= len(own.meaning.split()) <= 30, word
        assert own.meaning.endswith("."), word
        assert ". " not in own.meaning, word
        assert not [old for old in OLD.values() if re.search(old, f"{word} {own.meaning}", re.IGNORECASE)], word
        assert (ROOT / "docs" / own.link.partition("#")[0]).is_file(), word


def test_every_meaning_in_the_templates_is_in_the_table():
    templates = [path.read_text() for path in (ROOT / "clients/dualform_explorer/templates").rglob("*.html")]
    named = {word for text in templates for word in re.findall(r'"([^"]*)"\|hover(?!\()', text)}
    named |= {word for text in templates for word in re.findall(r'(?:hover|meaning)\("([^"]*)"\)', text)}
    assert len(named) > 10
    assert all(re.search("<abbr", hover(word)) for word in named)
    assert all(meaning(word) for word in SCORE_WORDS.values())


def test_a_heading_shows_the_first_word_of_the_table():
    text = meaning("placebo")
    assert hover("A Placebo & more") == f'A <abbr title="{text}">Placebo</abbr> &amp; more'
    assert hover("removed", "filter") == f'<abbr title="{meaning("filter")}">removed</abbr>'
    assert hover("<b>") == "&lt;b&gt;"
    assert "attention score" not in hover("scoreboards")
