"""The examples of the README, and of the page that goes on from it, run as they stand, in an empty folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import dualform
from dualform_service.config import ServiceConfig
from dualform_service.server import Server
from tests.coverage import document

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
GUIDES = ("recording.md", "influence.md", "asking.md", "explorer.md")
PAGES = README + "".join((ROOT / "docs" / page).read_text() for page in GUIDES)
EXAMPLES = dict(re.findall(r"<!-- tested: (\w+) -->\n```python\n(.*?)```", PAGES, re.DOTALL))
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINKED = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md")]
LINKED += (ROOT / "docs" / "results").glob("*.md")


def run(name: str, given: Mapping[str, Any] | None = None, **replaced: str) -> dict[str, Any]:
    """`given`: what the page says that the reader has. Returns what the reader has then."""
    code = EXAMPLES[name]
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    names = dict(given or {})
    exec(compile(code, f"the example {name}", "exec"), names)
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
    assert len(README.split()) < 1600


def test_every_example_is_about_fifteen_lines():
    assert EXAMPLES.keys() == {
        "record", "estimate", "lightning", "transformers", "ask", "rerun", "client", "target", "gradients", "ledger",
        "followed", "tables", "previews", "preview", "quickstart",
    }  # fmt: skip
    for name, code in EXAMPLES.items():
        if name == "quickstart":
            continue
        assert len([line for line in code.splitlines() if line.strip()]) <= 16, name


def test_the_price_of_recording_is_that_of_the_benchmarks():
    """Its ratios and targets on two threads, keys and values first."""
    page = (Path(__file__).parent.parent / "docs" / "results" / "benchmarks.md").read_text()
    row = r"^\| training, (?:only )?keys .* steps, 2 threads \| .* \| ([\d.]+)(?: \([^)]*\))? \| at most ([\d.]+) \|"
    (ratio, target), (alone, target_alone) = re.findall(row, page, re.MULTILINE)
    said = " ".join(README.split())
    assert f"the paper's network takes {ratio} times as long to train on two threads (the target is {target})" in said
    assert f"and {alone} times if only keys are stored (target {target_alone};" in said


def test_the_price_of_small_networks_is_that_of_the_coverage():
    middle, _, _ = document.price(document.read(), "AdamW")
    assert f"{1e3 * middle:.1f} ms for each layer and step under AdamW, on one thread" in " ".join(README.split())


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = run("quickstart")["memory"]
    assert quick.verify()["head"].exact
    quick.close()
    (said,) = re.findall(r"    digits 0-4, now: .*?(?=\n\n\S)", README, re.DOTALL)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[:2] for line in said.splitlines()] == [line[:2] for line in printed]
    now, without, _ = (float(line[-1].rstrip("%")) for line in printed[:3])
    assert now < 10 < 90 < without
    recorded = run("record")
    asked = run("ask")
    assert len(run("tables", asked)["frame"]) == 10
    assert len(run("target", asked)["pushed"].ranked()) == 10
    assert len(run("gradients", {**recorded, **asked})["helped"].ranked(17)) == 10
    ledger = run("ledger", recorded)["ledger"]
    assert ledger.sums.shape == (20, 500)
    assert abs(ledger.residual).max() < 0.01 * abs(ledger.final - ledger.initial).max()
    run("previews", {"torch": torch, "nn": torch.nn, "dualform": dualform})
    assert len(list(tmp_path.glob("*.png"))) == 3
    run("preview", {"torch": torch})
    run("estimate", **{"1000": "30", "train(dualform.Recorder)": ""})
    assert run("followed", run("rerun"))["ledger"].sums.shape == (2, 500)
    with dualform.open("runs/mine") as memory:
        server = Server(memory, ServiceConfig("127.0.0.1:0", sql=True))
        port = server.start()
        try:
            run("client", **{"50051": str(port)})
        finally:
            server.stop(1)
    printed = capsys.readouterr().out
    assert re.search(r"^http://127\.0\.0\.1:\d+/$", printed, re.MULTILINE)
    assert "Reconstruction errors: " in printed
    assert "(20, 10)" in printed
    assert "30 steps of" in printed


@pytest.mark.filterwarnings("ignore")  # the packages' own
def test_the_examples_of_trainers_run(tmp_path, monkeypatch):
    import pytorch_lightning

    from tests.integrations.test_lightning import loader, network
    from tests.integrations.test_transformers import Texts, arguments, llama

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run("lightning", {"module": network(pytorch_lightning), "loader": loader()})
    run("transformers", {"model": llama(), "data": Texts(), "args": arguments(tmp_path, max_steps=2)})
    for name, steps in (("lightning", 9), ("trainer", 2)):
        with dualform.open(tmp_path / "runs" / name) as memory:
            assert memory.info().steps == steps
            assert "sample" in memory.sql("SELECT * FROM slots LIMIT 1")
