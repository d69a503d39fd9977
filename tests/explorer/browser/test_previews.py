"""What slots look like: images of the right samples, passages with one token marked, and nothing that runs."""

from __future__ import annotations

from base64 import b64decode

from playwright.sync_api import expect

from tests.explorer.browser.shown import settle
from tests.explorer.recorded_text import HOSTILE, offsets, passages


def test_thumbnails_are_the_images_of_their_slots(page, study):
    memory = study.memory
    page.goto(study.url(f"{study.query_set}/3", k="60"))
    settle(page)
    slots = page.locator("#slots .slot").evaluate_all(
        """all => all.map(own => ({slot: Number(own.dataset.slot), image: own.querySelector('img').src,
            wide: own.querySelector('img').naturalWidth, says: own.querySelector('img').alt}))"""
    )
    rows = memory.slots([own["slot"] for own in slots], "sample").records()
    assert len(slots) == 60
    for own, row in zip(slots, rows, strict=True):
        (preview,) = memory.previews([row["sample"]], row["dataset"])
        assert b64decode(own["image"].partition("base64,")[2]) == preview.image
        assert own["wide"] == study.side  # it was painted
        assert own["says"] == f"sample {row['sample']} of {row['dataset']}"
    (example,) = memory.previews([3], query_set=study.query_set)
    image = page.locator("figure.query img").get_attribute("src")
    assert b64decode(image.partition("base64,")[2]) == example.image


def test_each_passage_has_one_token_marked_which_is_the_slots(page, text_pages, text_folder):
    page.goto(text_pages.url + "explore?item=held/3&token=2&layer=3&by=label&k=60&open=data,layers,training,record")
    settle(page)
    slots = page.locator("#slots .slot").evaluate_all(
        """all => all.map(own => ({sample: Number(own.dataset.sample), position: Number(own.dataset.position),
            text: own.querySelector('.passage').textContent,
            marks: [...own.querySelectorAll('mark')].map(mark => mark.textContent)}))"""
    )
    assert len(slots) == 60
    for own in slots:
        passage = passages()[own["sample"]]
        start, stop = offsets(passage)[own["position"]]
        assert own["text"] == passage
        assert own["marks"] == [passage[start:stop]]
    query = page.locator("#passage")
    expect(query.locator("mark")).to_have_count(1)
    expect(query.locator("mark")).to_have_text(passages()[3].split(" ")[2])

    query.locator("a").nth(4).click()  # of the others, of which two stand before the marked one
    settle(page)
    expect(query.locator("mark")).to_have_count(1)
    expect(page).to_have_url(
        text_pages.url + "explore?item=held/3&token=5&layer=3&by=label&k=60&open=data,layers,training,record"
    )


def test_a_script_in_a_training_text_stays_text(page, text_pages):
    page.goto(
        text_pages.url
        + "explore?item=held/0&token=0&layer=3&by=sample&k=500&as=samples&open=data,layers,training,record"
    )
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
