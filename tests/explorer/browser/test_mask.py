"""Leaving slots out, and taking that back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.explorer.browser.shown import corrected_card, numbers, panels, settle


@pytest.fixture
def corrected(study) -> int:
    """An example that was misclassified, and is read right without the other dataset."""
    query_set, layer = study.memory.query_set(study.query_set), study.layers[-1]
    full = np.asarray(study.memory.output(layer, study.query_set)).argmax(axis=1)
    masked = np.asarray(study.memory.output(layer, study.query_set, study.where)).argmax(axis=1)
    return int(np.flatnonzero((full != query_set.labels) & (masked == query_set.labels))[0])


def test_leaving_a_dataset_out_shows_the_apis_values_and_flips_and_taking_it_back_restores_all(page, study, corrected):
    memory, layer, item = study.memory, study.layers[-1], f"{study.query_set}/{corrected}"
    page.goto(study.url(item))
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
    assert page.url == study.url(item)


class Clicks:
    """All that a reader clicks, counted. There is nothing to type."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, found: Locator, page: Page) -> None:
        found.click()
        self.count += 1
        expect(page.locator("#answers")).to_be_attached()
        settle(page)


def test_a_first_time_user_finds_why_it_was_misclassified_and_what_undoes_it_in_two_clicks(page, study):
    memory, layer, click = study.memory, study.layers[-1], Clicks()
    page.goto(study.pages.url)
    card = corrected_card(page, study.query_set, study.other)
    label, read = (int(own) for own in card.locator(".caption b").all_text_contents())
    assert label != read
    click(card, page)
    expect(page.locator(".verdict")).to_contain_text(f"label {label}")
    expect(page.locator(".verdict")).to_contain_text(f"predicted {read}")

    # Why: what each dataset brought to the output that was read, less the right one.
    item = page.locator("#item").input_value()
    answer = memory.contributions(layer, item, "dataset")
    margin = answer.output[0][read] - answer.output[0][label]
    brought = {own: values[read] - values[label] for (own,), values in zip(answer.groups, answer.sums[0], strict=True)}
    expect(page.locator("#sentence")).to_contain_text(re.compile(rf"^Predicted {read}\b.*, not {label}\b"))
    assert numbers(page.locator("#waterfall tr[data-part=group] data")) == list(brought.values())
    assert numbers(page.locator("#waterfall tr[data-part=margin] data")) == [margin]
    assert brought[study.other] > margin > 0  # more than the wrong output is ahead by

    # What undoes it: leaving that dataset out.
    click(page.locator("#waterfall").get_by_role("link", name=f"without {study.other}"), page)
    expect(page.locator("#flips")).to_have_text(f"prediction changes {read} → {label}")
    assert click.count == 2
