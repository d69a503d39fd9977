from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from dualform_studies.assignment import Assignment
from dualform_studies.pages.claims import HOLDS, Beside, Claim
from dualform_studies.pages.frame import new_figure
from dualform_studies.pages.page import Page
from dualform_studies.reproduction import main, write_reproduction


def test_the_document_holds_every_page_that_there_is(tmp_path: Path):
    run = tmp_path / "runs" / "continual"
    page = Page(run, "Continual learning")
    with new_figure(run / "report" / "plot.png", 1.0) as figure:
        figure.subplots().plot([1, 2])
    page.figure(run / "report" / "plot.png", "Two points.")
    command = Assignment(run, steps=5, prompts=("a fox",)).command("continual")
    page.write({"command": command, "beside_paper": [Beside("accuracy", "96 %", "97 %").plain()]})
    docs = tmp_path / "docs"
    (docs / "reproduction" / "continual").mkdir(parents=True)
    (docs / "reproduction" / "continual" / "stale.png").touch()
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(docs)])
    assert told.exit_code == 0, told.output
    text = (docs / "reproduction.md").read_text()
    assert text.startswith("# The paper, reproduced")
    assert "## Continual learning" in text
    assert f"| continual | `{command}` |" in text
    assert "| single | not run |" in text
    assert "| continual | accuracy | 96 % | 97 % | - |" in text
    assert "](reproduction/continual/plot.png)" in text
    assert [path.name for path in (docs / "reproduction" / "continual").iterdir()] == ["plot.png"]


def test_claims_come_first_and_lead_to_their_evidence(tmp_path: Path):
    claim = Claim("section 5.2", "Its class leads.", "one example", "81 % of 10,000", HOLDS, "80 % or more", "Leading")
    for name in ("single", "joint"):
        page = Page(tmp_path / "runs" / name, name)
        page.heading("Leading")
        page.write({"command": f"dualform study {name}", "claims": [claim.plain()]})
    (tmp_path / "docs").mkdir()
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    row = "| Its class leads. (section 5.2) | one example | 81 % of 10,000 | holds | [joint](#joint-leading) |"
    assert row in text
    assert text.index(row) < text.index("dualform study single")
    assert '<a id="joint-leading"></a>' in text


def test_a_replay_stands_beside_the_memory_that_stored_its_keys(tmp_path: Path):
    def write(name: str, sums: str) -> None:
        prompts = [{"name": "table-3", "digests": {"top_k": "a", "sums": "b"}}]
        prompts += [{"name": "table-4", "digests": {"top_k": "c", "sums": sums}}]
        seconds = {"training": 60.0, "asking": 1.6}
        report = {"command": f"dualform {name}", "prompts": prompts, "disk_bytes": 4_510_000_000, "seconds": seconds}
        Page(tmp_path / "runs" / name, "Aesop").write(report)

    write("aesop", "d")
    write("aesop-replay", "e")
    (tmp_path / "docs").mkdir()
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    assert "| table-3 | equal to the last bit | equal to the last bit |" in text
    assert "| table-4 | equal to the last bit | DIFFERENT |" in text
    assert "| keys stored | 4.510 | 62 |" in text


def test_a_command_says_what_an_assignment_does(tmp_path: Path):
    assignment = Assignment(tmp_path, seed=3, runs=2, prompts=("it's", "b"), dry_run=True)
    assert assignment.command("aesop") == (
        "dualform study aesop --data DATA --out RUN --seed 3 --runs 2 --prompt 'it'\"'\"'s' --prompt b --dry-run"
    )
