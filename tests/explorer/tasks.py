"""Ten tasks of a reader, done in Chromium on three memories: python -m tests.explorer.tasks DATA OUT [MEMORY …]

It records the memories of task_memories.py under OUT if they are not there, serves each with `dualform explore`, and
goes by what a reader sees: headings, labels and the words of links. It prints a line for each task, then how long
parts of a page took, and leaves pictures in OUT/pictures. No test collects it: it takes minutes, and needs DATA.
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.explorer import task_memories
from tests.explorer.browser.shown import settle
from tests.explorer.browser.watch import Watch
from tests.explorer.chromium import CHROMIUM, MISSING, chromium

PATIENCE = 30_000
"""Milliseconds that a reader waits for anything."""
RUNS = {
    "continual": task_memories.record_continual,
    "cnn": task_memories.record_cnn,
    "gpt": task_memories.record_gpt,
}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class DoesNotApply(Exception):
    """A task that this kind of memory has no use for."""


class NotThere(Exception):
    """What the explorer does not have yet."""


@dataclass
class Reader:
    """Somebody with a browser, and what they keep in mind."""

    browser: Browser
    start: str
    """The address that `dualform explore` told."""
    data: Path
    path: Path
    """Of the memory."""
    pictures: Path
    watch: Watch
    width: int = 1440
    times: dict[str, float] = field(default_factory=dict)
    page: Page = None  # type: ignore[assignment]
    wrong: str = ""
    """The address of a misclassified example, once one is found: an open tab to come back to."""
    other: str = ""
    """What was left out of it last."""

    @property
    def memory(self) -> str:
        return self.path.name

    @property
    def text(self) -> bool:
        return self.memory == "gpt"

    def context(self, **options: Any) -> BrowserContext:
        options = {"viewport": {"width": self.width, "height": 1000}, "reduced_motion": "reduce", **options}
        found = self.browser.new_context(**options)
        found.set_default_timeout(PATIENCE)
        self.watch.over(found)
        return found

    def region(self, name: str) -> Locator:
        """A part of the page, by its heading."""
        return self.page.get_by_role("region", name=re.compile(f"^{name}"))

    def answer(self) -> str:
        """The sentence."""
        settle(self.page)
        return " ".join(self.region("Answer").locator("p").first.inner_text().split())

    def unfold(self, section: str) -> None:
        self.page.get_by_role("link", name=section, exact=True).click()
        settle(self.page)

    def back_to_the_example(self) -> None:
        """By the tab that was left open."""
        self.page.goto(self.wrong)
        settle(self.page)

    def picture(self, name: str) -> None:
        self.page.mouse.move(0, 0)
        self.page.evaluate("scrollTo(0, 0)")
        self.page.screenshot(path=self.pictures / f"{self.memory}-{name}.png", full_page=True)


def misclassified(reader: Reader) -> str:
    """1: find a misclassified example and say why."""
    page = reader.page
    page.goto(reader.start)
    if not reader.text:
        # Of two tasks learned in turn, one that is right without the other was forgotten.
        forgotten = reader.memory == "continual"
        wanted = "^Misclassified, and correct without" if forgotten else "^Misclassified"
        heading = page.get_by_role("heading", name=re.compile(wanted)).first
        heading.wait_for()
        reader.picture("start")
        heading.locator("xpath=following-sibling::ul[1]").get_by_role("link").first.click()
        settle(page)
        if forgotten:  # the page leaves the other task out
            assert reader.answer().startswith("Under this filter the prediction changes"), reader.answer()
            reader.region("Filter").get_by_role("link", name=re.compile("^without")).first.click()
    else:
        page.get_by_role("heading", name="The first examples").wait_for()
        reader.picture("start")
        page.locator("main").get_by_role("listitem").get_by_role("link").first.click()
        settle(page)
        # The darkest token is where the model was most surprised.
        tokens = reader.region("Example").locator("a[title^=surprise]")
        surprises = [float((own.get_attribute("title") or "0").split()[-1]) for own in tokens.all()]
        assert surprises, "no token says how surprising it was"
        tokens.nth(surprises.index(max(surprises))).click()
    settle(page)
    said = reader.answer()
    found = re.match(r"Predicted (\d+)(.*?), not (\d+)(.*?), by ([\d.]+)\. By (.*)", said)
    assert found, f"the answer says no why: {said[:200]!r}"
    assert re.search(r"[+\u2212-][\d.]", found[6]), said
    reader.wrong = page.url
    return said[:160]


def placebo(reader: Reader) -> str:
    """2: test whether leaving a class out means anything."""
    page = reader.page
    reader.back_to_the_example()
    found = re.match(r"Predicted (\d+)", reader.answer())
    assert found
    chips = reader.region("Filter").get_by_role("link")
    own = chips.filter(has_text=re.compile(rf"^{found[1]}\b"))
    if own.count():  # the class that was predicted
        reader.other = found[1]
        own.first.click()
    else:  # the group that added most, by the answer's own link
        without = reader.region("Answer").get_by_role("link", name=re.compile("^without"))
        assert without.count(), "neither the filter nor the answer offers a class to leave out"
        reader.other = (without.first.get_attribute("aria-label") or "").removeprefix("without ")
        without.first.click()
    settle(page)
    shown = reader.region("Is the change unusual?")
    shown.wait_for()
    if shown.get_by_text("There was no answer within").count():  # it says that it comes by itself
        shown.get_by_text("random removals").first.wait_for()
    words = " ".join(shown.inner_text().split())
    reader.picture("placebo")
    assert re.search(r"\? unusual|usual among|within the random range", words), f"no verdict: {words[:200]}"
    rates = re.search(r"corrected: ([\d,]+) of ([\d,]+) .*?broken: ([\d,]+) of ([\d,]+)", words)
    assert rates, f"no corrected and broken counts: {words[:200]}"
    badge = " ".join(shown.get_by_role("heading").inner_text().split())
    return f"without {reader.other}: {badge}; {rates[0]}"


def forgotten(reader: Reader) -> str:
    """3: find the step where a task was forgotten."""
    page = reader.page
    reader.back_to_the_example()
    reader.unfold("Training")
    shown = reader.region("Outputs over time")
    shown.get_by_text("As a table").click()
    table = shown.get_by_role("table")
    rows = [[cell.strip() for cell in row.split("\t")] for row in table.inner_text().strip().split("\n")]
    if reader.memory != "continual":
        assert len(rows) > 5, f"only {len(rows)} steps"
        raise DoesNotApply(f"one task alone was learned; {len(rows) - 1} steps are shown, {len(rows[0]) - 1} lines")
    # The label's line is above zero as long as the example is read right.
    label = reader.region("Example").get_by_text(re.compile("^label")).first.inner_text().split()[1]
    margins = _column(rows, label)
    lost = [(one[0], two[0]) for one, two in pairwise(margins) if one[1] > 0 > two[1]]
    assert lost, "the label's line never falls below zero"
    before, after = lost[-1]
    chart = shown.get_by_role("figure").filter(has_text="Each output less").locator("svg")
    box = chart.bounding_box()
    assert box is not None
    chart.click(position={"x": box["width"] * after / margins[-1][0], "y": box["height"] / 2})
    settle(page)
    chip = " ".join(reader.region("Filter").get_by_role("link", name=re.compile("^as of step")).inner_text().split())
    reader.picture("forgotten")
    return f"the example is lost between {before:,} and {after:,}; the page is {chip!r}"


def _column(rows: list[list[str]], name: str) -> list[tuple[int, float]]:
    """A value for each step."""
    place = rows[0].index(name)
    number = [own[place].rstrip(" %").replace(",", "").replace("\u2212", "-") for own in rows[1:]]
    return [(int(own[0].replace(",", "")), float(value)) for own, value in zip(rows[1:], number, strict=True)]


def attended(reader: Reader) -> str:
    """4: find the training texts that a word attends to."""
    page = reader.page
    if not reader.text:
        raise DoesNotApply("its samples are images")
    reader.back_to_the_example()
    example = reader.region("Example")
    words = example.locator("a[title^=surprise]").filter(has_text=re.compile(r"^ \w{4,}$"))
    assert words.count(), "no whole word to click"
    word = words.nth(words.count() // 2)
    named = word.inner_text()
    word.click()
    settle(page)
    assert example.locator("mark").inner_text().strip() == named.strip()
    reader.unfold("Data")
    lines = reader.region("Most similar training examples").get_by_role("listitem")
    lines.first.wait_for()
    marks = [own.strip() for own in lines.locator("mark").all_inner_texts()]
    reader.picture("attended")
    assert len(marks) == lines.count(), f"{len(marks)} of {lines.count()} texts have their word marked"
    return f"{named.strip()!r} attends to {marks[:6]}"


def compared(reader: Reader) -> str:
    """5: compare two checkpoints."""
    page = reader.page
    reader.back_to_the_example()
    page.get_by_role("link", name="compare", exact=True).click()
    page.get_by_role("heading", name="Side by side").wait_for()
    steps = page.get_by_label("step")
    assert steps.count() == 2, f"{steps.count()} fields for a step"
    last = int(steps.first.input_value())
    steps.nth(1).fill(str(last // 4))
    page.get_by_role("button", name="show", exact=True).click()
    differs = page.get_by_role("heading", name=re.compile("^Why they differ"))
    differs.wait_for()
    expect(page.get_by_role("heading", name=re.compile(f"as of step {last // 4:,}"))).to_be_visible()
    total = page.get_by_role("row", name=re.compile("^(margin|output)")).last.inner_text().split()
    reader.picture("compare")
    return f"step {last} and {last // 4}: {' '.join(total)}"


def followed(reader: Reader) -> str:
    """6: follow one training sample to the predictions it changed."""
    page = reader.page
    reader.back_to_the_example()
    reader.unfold("Data")
    first = reader.region("Most similar training examples").get_by_role("listitem").first
    first.get_by_role("link").first.click()
    title = page.get_by_role("heading", name=re.compile("^Training sample"))
    title.wait_for()
    visits = page.get_by_role("heading", name=re.compile("^Trained on in")).inner_text()
    moved = reader.region("Predictions without it")
    changed = re.search(r"([\d,]+) of ([\d,]+) examples were asked.*?([\d,]+) predictions change", moved.inner_text())
    assert changed, f"no count of what changed: {moved.inner_text()[:200]!r}"
    reader.picture("sample")
    helped = moved.get_by_role("heading", name=re.compile("^Helped")).locator("xpath=following-sibling::ul[1]")
    assert helped.get_by_role("link").count(), "it helped no prediction"
    said = f"{title.inner_text()}: {visits}, {changed[3]} of {changed[1]} predictions change"
    helped.get_by_role("link").first.click()
    settle(page)
    without = reader.region("Filter").get_by_role("link", name=re.compile("^without"))
    assert without.count(), "the page of a helped example has no filter"
    after = reader.answer()
    assert "Under this filter" in after, f"the page that its link leads to says {after[:200]!r}"
    return said


def searched(reader: Reader) -> str:
    """7: search a phrase."""
    page = reader.page
    reader.back_to_the_example()
    if not page.get_by_role("searchbox").count():
        if not reader.text:
            raise DoesNotApply("its samples are images")
        raise NotThere("the page has no search box")
    page.get_by_role("searchbox").fill("the lion")
    page.keyboard.press("Enter")
    lines = page.get_by_role("region", name="Samples with the phrase").get_by_role("listitem")
    lines.first.wait_for()
    marks = {own.lower() for own in lines.locator("mark").all_inner_texts()}
    assert marks == {"the lion"}, marks
    reader.picture("search")
    count = lines.count()
    page.get_by_role("link", name="remove their slots").click()
    settle(page)
    assert "Under this filter" in reader.answer()
    return f"{count} lines have 'the lion'; their samples are left out by a link"


def lassoed(reader: Reader) -> str:
    """8: lasso a cluster and ablate it."""
    page = reader.page
    reader.back_to_the_example()
    link = page.get_by_role("link", name="map", exact=True)
    if not link.count():
        raise NotThere("the page has no link to a map")
    link.click()
    canvas = page.get_by_role("img", name=re.compile("^The slots of"))
    canvas.wait_for()
    page.wait_for_timeout(500)
    reader.picture("map")
    box = canvas.bounding_box()
    assert box is not None
    page.get_by_role("button", name="lasso").click()
    removal = page.get_by_role("link", name=re.compile("^remove"))
    said = ""
    # The reader draws a circle where points are, and a smaller one if those are too many.
    for size in (0.12, 0.06, 0.03, 0.015):
        middle, high = box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"]
        wide = size * min(box["width"], box["height"])
        page.mouse.move(middle - wide, high - wide)
        page.mouse.down()
        for right, down in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
            page.mouse.move(middle + right * wide, high + down * wide, steps=6)
        page.mouse.up()
        status = page.get_by_role("status").filter(has_text="chosen")
        status.first.wait_for()
        said = " ".join(status.first.inner_text().split())
        if removal.count():
            break
    assert removal.count(), f"nothing chosen could be removed: {said[:200]}"
    reader.picture("lasso")
    removal.first.click()
    settle(page)
    assert "Under this filter" in reader.answer()
    reader.region("Is the change unusual?").get_by_text("random removals").first.wait_for()
    badge = " ".join(reader.region("Is the change unusual?").get_by_role("heading").inner_text().split())
    return f"{said[:60]} Then {badge}"


def exported(reader: Reader) -> str:
    """9: export a figure and its numbers."""
    page = reader.page
    reader.back_to_the_example()
    reader.unfold("Training")
    shown = reader.region("Sums by step")
    shown.get_by_text("Export").click()
    with page.expect_download() as download:
        shown.get_by_role("button", name=re.compile("^SVG")).first.click()
    figure = reader.pictures / f"{reader.memory}-figure.svg"
    download.value.save_as(figure)
    drawn = figure.read_text(encoding="utf-8")
    assert "<svg" in drawn
    assert "dualform" not in drawn or "memory" in drawn
    with page.expect_download() as download:
        shown.get_by_role("link", name=re.compile("^CSV")).first.click()
    table = reader.pictures / f"{reader.memory}-figure.csv"
    download.value.save_as(table)
    rows = list(csv.reader(io.StringIO(table.read_text(encoding="utf-8"))))
    assert len(rows) > 2, rows
    answer = reader.region("Answer")
    answer.get_by_text("Export").click()
    with page.expect_download() as download:
        answer.get_by_role("button", name=re.compile("^SVG")).first.click()
    download.value.save_as(reader.pictures / f"{reader.memory}-answer.svg")
    return f"SVG of {len(drawn) // 1000} kB, CSV of {len(rows)} rows: {','.join(rows[0])}"


def sent(reader: Reader) -> str:
    """10: send a link that opens the same view."""
    page = reader.page
    page.goto(reader.wrong)
    settle(page)
    without = reader.region("Answer").get_by_role("link", name=re.compile("^without"))
    if without.count():
        without.first.click()
        settle(page)
    reader.unfold("Data")
    reader.region("Most similar training examples").wait_for()
    page.get_by_role("button", name="copy link").click()
    page.get_by_role("button", name="copied").wait_for()
    address = page.evaluate("navigator.clipboard.readText()")
    own = _words(page)
    with reader.context().new_page() as friend:
        friend.goto(address)
        settle(friend)
        other = _words(friend)
    assert own == other, f"{len(own)} and {len(other)} lines differ: {sorted(set(own) ^ set(other))[:4]}"
    return f"{len(address)} letters, {len(own)} lines alike"


def _words(page: Page) -> list[str]:
    said = page.get_by_role("main").inner_text().splitlines()
    return [own.strip() for own in said if own.strip()]


TASKS: tuple[Callable[[Reader], str], ...] = (
    *(misclassified, placebo, forgotten, attended, compared, followed, searched, lassoed, exported, sent),
)


def perform(reader: Reader) -> list[str]:
    """A line for each task."""
    lines = []
    for number, task in enumerate(TASKS, 1):
        named = (task.__doc__ or "").partition(": ")[2].rstrip(".")
        begun = perf_counter()
        context = reader.context(accept_downloads=True, permissions=["clipboard-read", "clipboard-write"])
        reader.page = context.new_page()
        try:
            if number > 1 and not reader.wrong:
                raise NotThere("task 1 found no example")
            said = f"ok      {task(reader)}"
        except DoesNotApply as why:
            said = f"n/a     {why}"
        except NotThere as why:
            said = f"missing {why}"
        except Exception as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            said = f"FAILED  {first[:300]}"
            with _ignored():
                reader.picture(f"failed-{number}")
            if os.environ.get("TASKS_TRACE"):
                traceback.print_exc()
        finally:
            with _ignored():
                reader.page.goto("about:blank")
            context.close()
        lines.append(f"{number:2} {named:<62} {reader.memory:<9} {perf_counter() - begun:5.1f} s  {said}")
        say(lines[-1])
    return lines


@contextmanager
def _ignored() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        say(f"   ({type(error).__name__} ignored)")


def measure_first(reader: Reader) -> None:
    """Of a server that nobody has asked anything: its start page, complete."""
    context = reader.context()
    page = context.new_page()
    begun = perf_counter()
    page.goto(reader.start, wait_until="commit")
    page.get_by_role("heading", level=1).first.wait_for()
    reader.times["start, heading"] = perf_counter() - begun
    page.locator("main").get_by_role("listitem").first.wait_for()
    reader.times["cold start page"] = perf_counter() - begun
    page.wait_for_load_state()
    reader.times["start, complete"] = perf_counter() - begun
    page.goto("about:blank")
    context.close()


PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def measure(reader: Reader) -> None:
    """Of a server that has answered before."""
    context = reader.context()
    reader.page = page = context.new_page()
    page.goto(reader.wrong)
    settle(page)
    page.get_by_role("link", name=re.compile("next")).click()
    settle(page)
    following = page.url
    page.goto("about:blank")
    begun = perf_counter()
    page.goto(following.replace("among=misclassified", "among=all"), wait_until="commit")
    reader.region("Answer").wait_for()
    reader.times["answer"] = perf_counter() - begun
    settle(page)
    reader.times["whole page"] = perf_counter() - begun
    reader.times["first paint"] = page.evaluate(PAINTED) / 1000
    links = reader.region("Answer").get_by_role("link", name=re.compile("^without"))
    begun = perf_counter()
    links.nth(min(1, links.count() - 1)).click()
    page.get_by_text(re.compile("^Under this filter")).wait_for()
    reader.times["new ablation"] = perf_counter() - begun
    reader.region("Is the change unusual?").get_by_text("random removals").first.wait_for()
    reader.times["its placebo"] = perf_counter() - begun
    settle(page)
    page.goto("about:blank")
    context.close()


def photograph(reader: Reader) -> None:
    """A misclassified example with all sections, and with something left out: light, dark, and on a phone."""
    for name, width, options in (
        ("light", 1440, {"color_scheme": "light"}),
        ("dark", 1440, {"color_scheme": "dark"}),
        ("phone", 390, {"color_scheme": "light", "device_scale_factor": 2}),
    ):
        context = reader.context(**options, viewport={"width": width, "height": 1000})
        reader.page = page = context.new_page()
        page.goto(reader.start)
        page.get_by_role("listitem").first.wait_for()
        reader.picture(f"start-{name}")
        page.goto(reader.wrong)
        settle(page)
        for section in ("Data", "Layers", "Training", "Record"):
            reader.unfold(section)
        reader.picture(f"all-{name}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            say(f"   {reader.memory}, {name}: the page is {wide} px wide on a screen of {width}")
        for problem in page.locator(".failure:visible").all_inner_texts():
            say(f"   {reader.memory}, {name}: the page says {problem[:200]!r}")
        without = reader.region("Answer").get_by_role("link", name=re.compile("^without"))
        if without.count():
            without.first.click()
            settle(page)
            reader.picture(f"without-{name}")
        page.goto("about:blank")
        context.close()


@contextmanager
def explored(path: Path) -> Iterator[str]:
    """The address of `dualform explore`, until it is told to end."""
    command = ["dualform", "explore", str(path), "--address", "127.0.0.1:0"]
    if path.name == "gpt":
        command += ["--tokenizer", str(path.parent / "tokenizer.json")]
    with (path.parent / f"{path.name}.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            said = []
            for line in server.stdout:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+/\S*", line):
                    yield found[0]
                    break
            else:
                raise RuntimeError(f"dualform explore told no address: {''.join(said)[:500]}")
        finally:
            server.terminate()
            server.wait(30)


def main(data: Path, out: Path, *names: str) -> None:
    if CHROMIUM is None:
        sys.exit(MISSING)
    pictures = out / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for name in names or RUNS:
        if not (out / name).exists():
            begun = perf_counter()
            RUNS[name](data, out / name)
            say(f"recorded {name} in {perf_counter() - begun:.0f} s")
    expect.set_options(timeout=PATIENCE)
    times: dict[str, dict[str, float]] = {}
    with chromium() as browser:
        for name in names or RUNS:
            watch = Watch()
            with explored(out / name) as start:
                reader = Reader(browser, start, data, out / name, pictures, watch)
                measure_first(reader)
                perform(reader)
                for after in (measure, photograph):
                    if reader.wrong and not os.environ.get("TASKS_ONLY"):
                        try:
                            after(reader)
                        except Exception as error:
                            say(f"   {name}: {after.__name__} failed: {str(error)[:300]}")
                times[name] = reader.times
            for complaint in dict.fromkeys(watch.unexpected + watch.elsewhere):
                say(f"   {name}: the browser complains: {complaint[:200]}")
    for what in dict.fromkeys(key for own in times.values() for key in own):
        say(f"{what:<16}" + "".join(f"  {name} {own.get(what, float('nan')):6.2f} s" for name, own in times.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
