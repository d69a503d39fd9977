"""The numbers in the page are those of the API, and those of brute force."""

from __future__ import annotations

import numpy as np
from playwright.sync_api import expect

from dualform_explorer.rendering import layer_in_words
from tests.explorer.browser.shown import numbers, settle


def test_the_best_500_slots_are_those_of_brute_force_in_float64(page, study):
    memory, layer, item = study.memory, study.layers[-1], f"{study.query_set}/3"
    page.goto(study.url(item, k="500"))
    settle(page)
    query = memory.query_set(study.query_set, layer).queries[3].astype(np.float64)
    scores = np.concatenate([own.astype(np.float64) @ query for own in np.array_split(memory.keys(layer), 64)])
    best = np.lexsort((np.arange(len(scores)), -scores))[:500]
    slots = page.locator("#slots .slot")
    expect(slots).to_have_count(500)
    assert slots.evaluate_all("all => all.map(own => Number(own.dataset.slot))") == best.tolist()
    shown = numbers(page.locator("#slots .score data"))
    assert np.array_equal(shown, scores[best].astype(np.float32).astype(np.float64))


def test_sums_are_the_apis_and_terms_add_up_to_the_output_within_the_residual_shown(page, study):
    memory, (*others, layer), item = study.memory, study.layers, f"{study.query_set}/3"
    page.goto(study.url(item))
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
