"""The example of the README runs as it stands, in an empty folder, and every link of the pages leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.coverage import document

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- tested: (\w+) -->\n```python\n(.*?)```", README, re.DOTALL))
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINKED = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md")]
LINKED += (ROOT / "docs" / "results").glob("*.md")


def run(name: str) -> dict[str, Any]:
    """What the reader has once the example was run."""
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[name], f"the example {name}", "exec"), names)
    return names


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for link in [link for link in links if not link.startswith("http")]:
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if heading:
            text = target.read_text(encoding="utf-8")
            slugs = [re.sub(r"[^\w -]", "", own.lower()).replace(" ", "-") for own in HEADING.findall(text)]
            assert heading in slugs or f'<a id="{heading}">' in text, link


def test_the_readme_is_read_in_a_few_minutes():
    assert len(README.split()) < 1350


def test_the_price_of_recording_is_that_of_the_benchmarks():
    """Its ratio on two threads, of keys and values."""
    page = (Path(__file__).parent.parent / "docs" / "results" / "benchmarks.md").read_text()
    row = r"^\| training, (?:only )?keys .* steps, 2 threads \| .* \| ([\d.]+)(?: \([^)]*\))? \| at most ([\d.]+) \|"
    (ratio, _), _ = re.findall(row, page, re.MULTILINE)
    assert f"the paper's network takes {ratio} times as long to train on two threads" in " ".join(README.split())


def test_the_price_of_small_networks_is_that_of_the_coverage():
    middle, _, _ = document.price(document.read(), "AdamW")
    assert f"{1e3 * middle:.1f} ms for each layer and step under AdamW, on one thread" in " ".join(README.split())


def test_the_quick_start_runs(tmp_path, monkeypatch, capsys):
    assert EXAMPLES.keys() == {"quickstart"}
    monkeypatch.chdir(tmp_path)
    with run("quickstart")["memory"] as quick:
        assert quick.verify()["head"].exact
    (said,) = re.findall(r"    digits 0-4, now: .*?(?=\n\n\S)", README, re.DOTALL)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[:2] for line in said.splitlines()] == [line[:2] for line in printed]
    now, without, _ = (float(line[-1].rstrip("%")) for line in printed[:3])
    assert now < 10 < 90 < without
