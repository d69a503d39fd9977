"""From a group's bar to its samples, and what takes long on a click, under AdamW."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from playwright.sync_api import Page, expect

import dualform
from dualform_explorer import panels
from tests.explorer.browser.shown import numbers, served_to, settle
from tests.explorer.recorded import record

ADDRESS = "explore?item=shapes/3&layer=4&score=contribution&target=1-2&by=dataset,label&open=data"
ASKED = {"score": "contribution", "target": "1-2"}


@pytest.fixture(scope="module")
def adamw(tmp_path_factory):
    return record(tmp_path_factory.mktemp("adamw") / "run", partial(torch.optim.AdamW, lr=0.02))


def test_a_group_opens_to_its_samples_and_closes(page: Page, adamw):
    with dualform.open(adamw) as memory, served_to(page, {"run": lambda: dualform.open(adamw)}) as pages:
        page.goto(pages.url + ADDRESS)
        settle(page)
        expect(page.locator(".panel.failed")).to_have_count(0)
        expect(page.locator("#within")).to_have_count(0)
        bar = page.locator("#sums tr[data-group='shapes/1']")
        bar.locator("th a").click()
        settle(page)
        where = "dataset = 'shapes' AND label = 1"
        sums = memory.group_sum("4", "shapes/3", ("dataset", "sample"), where, k=24, **ASKED)
        own = numbers(page.locator("#within tr[data-sample] .sum data"))
        assert own == [value for _, value, _ in sums.ranked()]
        expect(page.locator("#within tr[data-sample] img")).to_have_count(len(own))
        (total,) = numbers(page.locator("#within tr.total .sum data"))
        assert [total] == pytest.approx(numbers(bar.locator(".sum data")), rel=1e-9)
        rest = numbers(page.locator("#within tr.rest .sum data"))
        assert sum(own + rest) == pytest.approx(total, rel=1e-9)
        expect(page.locator("#outputs .ablated")).to_have_count(0)  # nothing is left out

        page.get_by_role("link", name="close").click()
        settle(page)
        expect(page.locator("#within")).to_have_count(0)
        page.go_back()
        settle(page)
        expect(page.locator("#within")).to_have_count(1)


def test_a_bar_shows_its_best_samples_under_the_pointer_and_removes_its_group_on_a_click(page: Page, adamw):
    with dualform.open(adamw) as memory, served_to(page, {"run": lambda: dualform.open(adamw)}) as pages:
        page.goto(pages.url + "explore?item=shapes/3&layer=4&by=label")
        settle(page)
        row = page.locator("#waterfall tr[data-part=group]").first
        row.locator("td.right").hover()
        shown = page.locator("#peek > *")
        expect(shown).to_have_count(6)
        target = page.locator("#sentence b").all_inner_texts()[:2]
        label = int(row.locator("th").inner_text())
        sums = memory.group_sum(
            "4",
            "shapes/3",
            ("dataset", "sample"),
            f"label = {label}",
            score="contribution",
            target="-".join(target),
            k=24,
        )
        assert numbers(shown.locator("data")) == [value for _, value, _ in sums.ranked()][:6]
        page.mouse.move(0, 0)
        expect(page.locator("#peek")).to_have_count(0)
        row.locator("td.draw a").click()
        settle(page)
        expect(page.locator("#where")).to_have_text(f"label IS DISTINCT FROM {label}")


def test_what_takes_long_is_begun_by_a_click(page: Page, adamw, monkeypatch):
    monkeypatch.setattr(panels, "PATIENCE", 1e-4)
    with served_to(page, {"run": lambda: dualform.open(adamw)}) as pages:
        page.goto(pages.url + ADDRESS)
        settle(page)
        expect(page.locator("#sums")).to_have_count(0)
        expect(page.locator("a.compute")).to_have_count(4)
        page.locator("#panel-sums a.compute").click()
        settle(page)
        expect(page.locator("#sums")).to_have_count(1)
        expect(page.locator("a.compute")).to_have_count(0)
        assert "compute=yes" in page.url
        page.locator("#sums .acts a", has_text="without").first.click()
        settle(page)
        expect(page.locator("#rates")).to_contain_text("random removals:")
        expect(page.locator("#verdict")).to_be_visible()
