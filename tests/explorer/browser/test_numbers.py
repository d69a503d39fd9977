"""What a page shows is what the API answers: numbers, samples, tokens and places; under masks, too."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from dualform_explorer.rendering import layer_in_words
from dualform_explorer.words import visible
from tests.explorer.browser.shown import corrected_card, numbers, panels, settle
from tests.explorer.recorded_cnn import HEIGHT, WIDTH
from tests.explorer.recorded_gpt import VOCABULARY, tokens
from tests.explorer.recorded_text import HOSTILE


def test_sums_are_the_apis_and_terms_add_up_to_the_output_within_the_residual_shown(page, study):
    memory, (*others, layer), item = study.memory, study.layers, f"{study.query_set}/3"
    page.goto(study.url(item, open="data,layers"))
    settle(page)
    sums = memory.group_sum(layer, item, by=("dataset", "label"))
    assert numbers(page.locator("#sums .sum data")) == sums.sums[0].tolist()
    assert numbers(page.locator("#sums .count data")) == sums.counts.tolist()
    for card in others:
        page.locator(f"[data-layer='{card}']").click()
        settle(page)
        expect(page.locator("#title-sums")).to_contain_text(f"in {layer_in_words(card)}")
        sums = memory.group_sum(card, item, by=("dataset", "label"))
        assert numbers(page.locator("#sums .sum data")) == sums.sums[0].tolist()

    rows = {
        kind: [numbers(row.locator("td data")) for row in page.locator(f"#terms tr[data-term='{kind}']").all()]
        for kind in ("initial", "bias", "group", "residual", "output")
    }
    full = numbers(page.locator("#outputs .full data"))
    (output,), (residual,) = np.array(rows["output"]), np.array(rows["residual"])
    terms = np.array([*rows["initial"], *rows["bias"], *rows["group"]])
    answer = memory.contributions(layer, item, ("dataset", "label"))
    assert len(rows["group"]) == len(answer.groups)
    assert residual.tolist() == answer.residual[0].tolist()
    assert np.abs(terms.sum(axis=0) - output).max() <= np.abs(residual).max() + 1e-12
    assert full == np.asarray(memory.output(layer, item))[0].tolist()
    assert np.abs(np.array(full) - output).max() < 1e-5 * np.abs(full).max()


@pytest.fixture
def corrected(study) -> int:
    """An example that was misclassified, and is read right without the other dataset."""
    query_set, layer = study.memory.query_set(study.query_set), study.layers[-1]
    full = np.asarray(study.memory.output(layer, study.query_set)).argmax(axis=1)
    masked = np.asarray(study.memory.output(layer, study.query_set, study.where)).argmax(axis=1)
    return int(np.flatnonzero((full != query_set.labels) & (masked == query_set.labels))[0])


def test_leaving_a_dataset_out_shows_the_apis_values_and_flips_and_taking_it_back_restores_all(page, study, corrected):
    memory, layer, item = study.memory, study.layers[-1], f"{study.query_set}/{corrected}"
    page.goto(study.url(item, open="data,record"))
    settle(page)
    before = panels(page)
    expect(page.locator("#flips")).to_have_count(0)

    page.locator("#panel-filter .chip", has_text=study.other).click()
    settle(page)
    full = np.asarray(memory.output(layer, item))[0]
    masked = np.asarray(memory.output(layer, item, study.where))[0]
    assert full.argmax() != masked.argmax()
    expect(page.locator("#flips")).to_have_text(f"prediction changes {full.argmax()} → {masked.argmax()}")
    expect(page.locator("#where")).to_have_text(study.where)
    assert numbers(page.locator("#outputs .full data")) == full.tolist()
    assert numbers(page.locator("#outputs .ablated data")) == masked.tolist()
    assert (
        numbers(page.locator("#outputs .difference data"))
        == (masked.astype(np.float64) - full.astype(np.float64)).tolist()
    )
    sums = memory.group_sum(layer, item, by=("dataset", "label"), where=study.where).sums[0].tolist()
    assert numbers(page.locator("#sums .sum data")) == sums
    assert numbers(page.locator("#cancellation data")) == [memory.cancellation(study.where)[layer]]
    expect(page.locator("#panel-removal")).to_contain_text("Arithmetic removal, not retraining.")
    assert {study.other} & set(page.locator("#slots .dataset").all_text_contents()) == set()

    page.locator("#panel-filter .chips.set a", has_text=study.other).click()
    settle(page)
    expect(page.locator("#flips")).to_have_count(0)
    assert panels(page) == before
    assert page.url == study.url(item, open="data,record")


class Clicks:
    """All that a reader clicks, counted. There is nothing to type."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, found: Locator, page: Page) -> None:
        found.click()
        self.count += 1
        expect(page.locator("#answers")).to_be_attached()
        settle(page)


def test_a_first_time_user_finds_what_undoes_a_misclassification_and_why_it_was_one_in_two_clicks(page, study):
    memory, layer, click = study.memory, study.layers[-1], Clicks()
    page.goto(study.pages.url)
    card = corrected_card(page, study.query_set, study.other)
    label, read = (int(own) for own in card.locator(".caption b").all_text_contents())
    assert label != read

    # What undoes it: the page of the example leaves that dataset out.
    click(card, page)
    expect(page.locator(".verdict")).to_contain_text(f"label {label}")
    expect(page.locator(".verdict")).to_contain_text(f"predicted {read}")
    expect(page.locator("#flips")).to_have_text(f"prediction changes {read} → {label}")
    expect(page.locator("#where")).to_have_text(study.where)

    # Why: what each dataset brought to the output that was read, less the right one.
    click(page.locator("#panel-filter .chips.set a", has_text=study.other), page)
    item = page.locator("#item").input_value()
    answer = memory.contributions(layer, item, "dataset")
    margin = answer.output[0][read] - answer.output[0][label]
    brought = {own: values[read] - values[label] for (own,), values in zip(answer.groups, answer.sums[0], strict=True)}
    expect(page.locator("#sentence")).to_contain_text(re.compile(rf"^Predicted {read}\b.*, not {label}\b"))
    assert numbers(page.locator("#waterfall tr[data-part=group] data")) == list(brought.values())
    assert numbers(page.locator("#waterfall tr[data-part=margin] data")) == [margin]
    assert brought[study.other] > margin > 0  # more than the wrong output is ahead by
    assert click.count == 2

    # And leaving it out again, from what it brought.
    click(page.locator("#waterfall").get_by_role("link", name=f"without {study.other}"), page)
    expect(page.locator("#flips")).to_have_text(f"prediction changes {read} → {label}")


def test_a_script_in_a_training_text_stays_text(page, text_pages):
    page.goto(text_pages.url + "explore?item=held/0&token=0&layer=3&by=sample&k=500&as=samples&open=data")
    settle(page)
    title = page.title()
    hostile = page.locator("#slots .slot[data-sample='0'] .passage")
    expect(hostile).to_have_text(HOSTILE)
    expect(hostile.locator("script, b")).to_have_count(0)
    expect(page.locator("#passage")).to_have_text(HOSTILE)
    page.locator("#after").click()  # and where scripts put the parts in place
    settle(page)
    page.locator("#before").click()
    settle(page)
    expect(page.locator("#passage")).to_have_text(HOSTILE)
    expect(page.locator("main script, main iframe, main [onload], main [onerror]")).to_have_count(0)
    page.goto(text_pages.url)
    expect(page.locator(".cards").first).to_contain_text(HOSTILE)
    assert "run" not in (title, page.title())


def frame(svg, picture):
    """Of a drawn box: left, top, right and bottom in the picture's own pixels, as both lie on the screen."""
    drawn, shown = svg.locator("rect.frame").last.bounding_box(), picture.bounding_box()
    scale = min(shown["width"] / WIDTH, shown["height"] / HEIGHT)
    left = shown["x"] + (shown["width"] - scale * WIDTH) / 2
    top = shown["y"] + (shown["height"] - scale * HEIGHT) / 2
    x, y = (drawn["x"] - left) / scale, (drawn["y"] - top) / scale
    return x, y, x + drawn["width"] / scale, y + drawn["height"] / scale


def test_a_place_is_picked_on_the_map(page, cnn, cnn_pages):
    (layer,) = (own for own in cnn.info().layers if own.name == "0")
    sums = cnn.group_sum("0", "test/2", by="label").sums.sum(axis=1)
    page.goto(f"{cnn_pages.url}explore?item=test/2&layer=0&by=label&open=data,layers")
    settle(page)
    cells = page.locator("#places rect.heat")
    expect(cells).to_have_count(20)
    colours = cells.evaluate_all("all => all.map(own => getComputedStyle(own).fillOpacity)")
    assert np.argmax([float(own) for own in colours]) in np.flatnonzero(sums > 0.9 * sums.max())
    for place in (int(np.argmax(sums)), 7):
        if place == 7:
            page.locator('#places a[href*="token=7&"]').click()
            settle(page)
            expect(page).to_have_url(re.compile("token=7&"))
        (top, bottom), (left, right) = layer.patches.spans(place)
        query = page.locator("figure.query .boxed")
        found = frame(query.locator("svg"), query.locator("img"))
        assert found == pytest.approx((left, top, right, bottom), abs=0.4)
    for slot in page.locator("#slots .slot").all()[:4]:
        (top, bottom), (left, right) = layer.patches.spans(int(slot.get_attribute("data-position")))
        found = frame(slot.locator("svg.over"), slot.locator("img"))
        assert found == pytest.approx((left, top, right, bottom), abs=0.4)


def test_a_token_is_picked_and_the_answer_is_of_it(page, gpt_pages, gpt_outputs):
    page.goto(f"{gpt_pages.url}explore?item=held/2&layer=head&by=label&open=data")
    settle(page)
    passage = page.locator("#passage")
    expect(passage).to_have_text("".join(VOCABULARY[word] for word in tokens()[2].tolist()), use_inner_text=False)
    expect(passage.locator("mark")).to_have_count(1)
    expect(page.locator(".failure")).to_have_count(0)
    expect(page.locator("#slots .passage").first).to_have_css("white-space-collapse", "collapse")
    expect(page.locator("#slots .slot mark")).to_have_count(page.locator("#slots .slot").count())
    heats = passage.locator("a.token").evaluate_all("all => all.map(own => getComputedStyle(own).backgroundColor)")
    assert len(set(heats)) > 2
    expect(page.locator("#surprise i")).to_have_count(7)
    for token in (0, 4):
        passage.locator(f'a.token[href*="token={token}&"]').click()
        settle(page)
        expect(page).to_have_url(re.compile(f"token={token}&"))
        expect(passage.locator("mark")).to_have_text(VOCABULARY[tokens()[2, token]])
        best = gpt_outputs[2, token].argsort()[::-1][:5].tolist()
        words = page.locator("#next [data-output]")
        expect(words).to_have_count(5)
        assert [int(own) for own in words.evaluate_all("all => all.map(own => own.dataset.output)")] == best
        expect(words.first).to_contain_text(visible(VOCABULARY[best[0]]))
        expect(page.locator("#sentence")).to_contain_text(visible(VOCABULARY[best[0]]))
    page.set_viewport_size({"width": 390, "height": 844})
    heights = passage.locator("a.token").evaluate_all("all => all.map(own => own.getClientRects()[0].height)")
    assert max(heights) < 30  # fingers have the links to the token before and after
    assert passage.bounding_box()["width"] > 300
