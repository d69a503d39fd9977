"""A language model's text: each token is picked by a click, and coloured by its surprise."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

import dualform
from dualform_explorer.words import visible
from tests.explorer.browser.shown import served_to, settle
from tests.explorer.recorded_gpt import HELD, LENGTH, VOCABULARY, WORDS, record, tokens


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return record(tmp_path_factory.mktemp("gpt") / "run")


@pytest.mark.parametrize("layer", ["head", "places"])
def test_a_token_is_picked_and_the_answer_is_of_it(page, path, layer):
    with dualform.open(path) as memory:
        outputs = memory.query_set("held").outputs.reshape(HELD, LENGTH, WORDS)
    with served_to(page, {"run": lambda: dualform.open(path)}) as pages:
        page.goto(f"{pages.url}explore?item=held/2&layer={layer}&by=label")
        settle(page)
        passage = page.locator("#passage")
        expect(passage).to_have_text("".join(VOCABULARY[word] for word in tokens()[2].tolist()), use_inner_text=False)
        expect(passage.locator("mark")).to_have_count(1)
        expect(page.locator(".failure")).to_have_count(0)
        heats = passage.locator("a.token").evaluate_all("all => all.map(own => getComputedStyle(own).backgroundColor)")
        assert len(set(heats)) > 2
        expect(page.locator("#surprise i")).to_have_count(7)
        for token in (0, 4):
            passage.locator(f'a.token[href*="token={token}&"]').click()
            settle(page)
            expect(page).to_have_url(re.compile(f"token={token}&"))
            expect(passage.locator("mark")).to_have_text(VOCABULARY[tokens()[2, token]])
            best = outputs[2, token].argsort()[::-1][:5].tolist()
            words = page.locator("#next [data-output]")
            expect(words).to_have_count(5)
            assert [int(own) for own in words.evaluate_all("all => all.map(own => own.dataset.output)")] == best
            expect(words.first).to_contain_text(visible(VOCABULARY[best[0]]))
            expect(page.locator("#sentence")).to_contain_text(visible(VOCABULARY[best[0]]))


def test_on_a_phone_the_text_reads_as_text(page, path):
    page.set_viewport_size({"width": 390, "height": 844})
    with served_to(page, {"run": lambda: dualform.open(path)}) as pages:
        page.goto(f"{pages.url}explore?item=held/2&layer=head&by=label")
        settle(page)
        heights = page.locator("#passage a.token").evaluate_all("all => all.map(own => own.getClientRects()[0].height)")
        assert max(heights) < 30  # fingers have the links to the token before and after
        assert page.locator("#passage").bounding_box()["width"] > 300


def test_a_result_takes_no_more_room_than_its_words(page, path):
    with served_to(page, {"run": lambda: dualform.open(path)}) as pages:
        page.goto(f"{pages.url}explore?item=held/2&layer=head&by=label&open=data")
        settle(page)
        expect(page.locator("#slots .passage").first).to_have_css("white-space-collapse", "collapse")
