"""The site is built strictly, opens from disk, and wants nothing from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.explorer.chromium import chromium, needs_chromium

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make site` builds it: any link of a page that leads nowhere fails it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


class Links(HTMLParser):
    """What a page loads, where it leads, and the places on it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded, self.led, self.places = [], [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.places |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.led.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(found["href"])
        elif found.get("src"):
            self.loaded.append(found["src"])


@pytest.fixture(scope="module")
def pages(site):
    return {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}


def test_no_page_loads_anything_from_elsewhere(pages):
    assert len(pages) > 50
    assert {link for page in pages.values() for link in page.loaded if "://" in link or link.startswith("//")} == set()


def test_every_link_leads_to_a_file_and_a_place_on_it(pages):
    """Raw HTML of pages and whatever the theme writes, too."""
    lost = []
    for page, links in pages.items():
        for link in {*links.loaded, *links.led}:
            if link.startswith(("http://", "https://", "data:", "mailto:", "#__")):
                continue
            name, place = urldefrag(link)
            target = (page.parent / unquote(name)).resolve() if name else page
            if not target.is_file() or (place and target in pages and unquote(place) not in pages[target].places):
                lost.append((page.name, link))
    assert lost == []


def test_what_stands_outside_of_docs_is_on_the_site(site):
    assert "TopKRequest" in (site / "repository/protos/dualform_proto/v1/dualform.proto.html").read_text()
    assert (site / "repository/deploy/grafana/index.html").is_file()
    assert (site / "repository/CONTRIBUTING.html").is_file()


def test_every_page_of_docs_is_in_the_navigation(site):
    shown = set(Links(site / "index.html").led)
    docs = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [page.as_posix() for page in docs if page.with_suffix(".html").as_posix() not in shown] == []


def test_the_reference_shows_signatures_and_docstrings(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    assert "Store test examples under a name" in page
    assert 'id="dualform.Answers.topk"' in page
    assert "Question[" not in page
    assert "_ask_by_inputs" not in page


@needs_chromium
def test_a_browser_that_opens_it_from_disk_finds_what_it_searches_for(site):
    asked, said = [], []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((site / "howto" / "sql.html").as_uri())
        page.locator("input.md-search__input").fill("cancellation")
        result = page.locator(".md-search-result__item a[href*='h=cancellation']").first
        result.wait_for()
        result.click()
        page.locator("mark", has_text="ancellation").first.wait_for()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert said == []
