"""What goes wrong is said in the page, and the rest of it stands."""

from __future__ import annotations

import shutil

from playwright.sync_api import expect

import dualform
from dualform_client import Client
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.damage import flip
from tests.explorer.browser.shown import address, panels, served_to, settle
from tests.explorer.served import served


def test_a_killed_explorer_says_so_and_what_was_shown_stands(page, folder, watch):
    watch.expected.append("ERR_CONNECTION_REFUSED")
    with served({"run": lambda: dualform.open(folder)}) as pages:
        page.goto(pages.url + address("shapes/3"))
        settle(page)
    page.keyboard.press("j")
    status = page.locator("#status")
    expect(status).to_contain_text("No answer from the explorer")
    expect(status).to_be_in_viewport()
    expect(page.locator("#title-query")).to_have_text("Example shapes/3")
    settle(page)


def test_a_filter_that_is_refused_is_named_once_and_the_page_stays(page, pages):
    page.goto(pages.url + address("shapes/3"))
    settle(page)

    def answers():
        every = panels(page).items()  # of which these have no filter: their answers stay, and their links lead to it
        return {name: html for name, html in every if name not in ("panel-filter", "panel-query", "panel-timeline")}

    before = answers()
    page.locator("#panel-filter summary").click()
    page.locator("#own-sql").fill("colour = 1")
    page.locator("#panel-filter").get_by_role("button", name="replace the chips").click()
    expect(page.locator("#panel-filter .failure")).to_have_text("There is no slot column 'colour'.")
    settle(page)
    expect(page.locator(".failure:visible")).to_have_count(1)
    assert answers() == before
    page.locator("#panel-filter .chips.set a").click()
    settle(page)
    expect(page.locator(".failure:visible")).to_have_count(0)
    page.locator("#filter-value").fill("99")
    page.locator("select[name='keep']").select_option("only")
    page.get_by_role("button", name="add").click()
    settle(page)
    expect(page.locator("#panel-filter .failure")).to_contain_text("matches no")
    expect(page.locator(".failure:visible")).to_have_count(1)
    page.locator("#panel-filter .chips.set a").click()
    settle(page)
    expect(page.locator(".failure:visible")).to_have_count(0)
    expect(page).to_have_url(pages.url + address("shapes/3"))
    assert answers() == before


def test_a_killed_memory_server_is_named(page, folder, watch):
    watch.expected.append("status of 502")
    with dualform.open(folder) as engine:
        server = Server(engine, ServiceConfig("127.0.0.1:0"))
        server.start()
        with served_to(page, {"run": lambda: Client(server.address, timeout=20)}) as pages:
            page.goto(pages.url + address("shapes/3"))
            settle(page)
            server.stop(grace=0)
            page.keyboard.press("j")
            expect(page.get_by_role("heading", level=1)).to_have_text("No answer from the memory")
            expect(page.locator(".failure")).to_contain_text(server.address)
            page.get_by_role("link", name="To the start page").click()
            expect(page.locator(".failure")).to_contain_text(server.address)


def test_a_damaged_manifest_is_named(page, folder, tmp_path, watch):
    watch.expected.append("status of 502")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "memory.json").write_text("{")
    with served_to(page, {"run": lambda: dualform.open(copy)}) as pages:
        page.goto(pages.url)
        expect(page.locator(".failure")).to_contain_text("memory.json")
        page.goto(pages.url + address("shapes/3"))
        expect(page.locator(".failure")).to_contain_text("memory.json")


def test_a_damaged_preview_set_is_named_where_its_images_stood(page, folder, tmp_path, memory):
    copy = shutil.copytree(folder, tmp_path / "copy")
    files = [file for file in (copy / "gallery").rglob("*.arrow") if "noise" in file.parent.name]
    (file,) = files
    flip(file, file.stat().st_size // 2)
    with served_to(page, {"run": lambda: dualform.open(copy)}) as pages:
        page.goto(pages.url + address("shapes/3"))
        settle(page)
        expect(page.locator("#panel-slots")).to_contain_text(file.name)
        hits = memory.topk("4", "shapes/3", k=24)
        shown = page.locator("#slots .slot").evaluate_all("all => all.map(own => Number(own.dataset.slot))")
        assert shown == hits.slots[0].tolist()
