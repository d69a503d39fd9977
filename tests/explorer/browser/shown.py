"""What a tab shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

from playwright.sync_api import Locator, Page, expect

from dualform.methods import Answers
from tests.explorer.served import Served, served

SECTIONS = "data,layers,training,record"
"""All that can be unfolded."""


def address(item: str, layer: str = "4", open: str = "data", **params: str) -> str:
    """Of a page, beneath that of the server. `open`: its sections that are unfolded."""
    more = "".join(f"&{name}={quote(value, safe=':,')}" for name, value in params.items())
    return f"explore?item={item}&layer={layer}&by=dataset,label{more}{open and f'&open={open}'}"


@contextmanager
def served_to(page: Page, opened: Mapping[str, Callable[[], Answers]], **config: object) -> Iterator[Served]:
    """A server that ends when the tab has left it: what a page still asks for then would be refused."""
    with served(opened, **{"deadline": 60.0, **config}) as found:
        yield found
        page.goto("about:blank")


def settle(page: Page) -> None:
    """Wait until all parts of the newest address are there, and the scripts."""
    page.wait_for_load_state()
    expect(page.locator("#answers")).not_to_have_attribute("aria-busy", "true")
    expect(page.locator(".panel[data-waits]")).to_have_count(0)


def numbers(found: Locator) -> list[float]:
    """With all their digits, in order."""
    return [float(own) for own in found.evaluate_all("all => all.map(own => own.dataset.value)")]


def panels(page: Page) -> dict[str, str]:
    """By name, the HTML of each part. How long answering took is left out."""
    found: dict[str, str] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.panel')].map(own => {
            const copy = own.cloneNode(true);
            copy.querySelectorAll('dd, details').forEach(part => part.closest('.record') && part.remove());
            copy.removeAttribute('aria-busy');
            return [own.id, copy.outerHTML];
        }))"""
    )
    return found


def corrected_card(page: Page, query_set: str, dataset: str) -> Locator:
    """On the start page, the first example of a query set that is misclassified, and read right without a dataset."""
    heading = page.locator(
        f"[data-query-set='{query_set}'] h3", has_text=f"Misclassified, and correct without {dataset}"
    )
    return heading.locator("xpath=following-sibling::ul[1]").locator("a").first
