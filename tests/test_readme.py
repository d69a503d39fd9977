"""The example of the README runs as it stands, in an empty folder, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- tested: (\w+) -->\n```python\n(.*?)```", README, re.DOTALL))
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]


def run(name: str) -> dict[str, Any]:
    """What the reader has once the example was run."""
    names: dict[str, Any] = {}
    exec(compile(EXAMPLES[name], f"the example {name}", "exec"), names)
    return names


def test_every_link_leads_somewhere():
    """Of the pages that are not on the site, whose build holds its own links."""
    lost = []
    for page in OUTSIDE:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file, _, heading = link.partition("#")
            target = page.parent / file if file else page
            if link.startswith("http") or (target.exists() and not heading):
                continue
            text = target.read_text(encoding="utf-8") if target.exists() else ""
            slugs = [re.sub(r"[^\w -]", "", own.lower()).replace(" ", "-") for own in HEADING.findall(text)]
            if heading not in slugs and f'<a id="{heading}">' not in text:
                lost.append((page.name, link))
    assert lost == []


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
