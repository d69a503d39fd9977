from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from dualform_studies.networks.document import main
from dualform_studies.networks.layer_kinds import by_kind
from dualform_studies.pages.frame import new_figure
from dualform_studies.pages.page import Page


def test_the_document_holds_the_pages_with_their_figures(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "gpt2"
    page = Page(run, "A GPT-2")
    with new_figure(run / "report" / "plot.png", 1.0) as figure:
        figure.subplots().plot([1, 2])
    page.figure(run / "report" / "plot.png", "Two points.")
    page.write(
        {
            "command": "dualform study gpt2 --data DATA --out RUN",
            "seconds": {"all": 61.0},
            "subject": "a GPT-2 of 9 heads",
        }
    )
    (tmp_path / "docs").mkdir()
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(tmp_path / "docs")])
    assert told.exit_code == 0, told.output
    text = (tmp_path / "docs" / "networks.md").read_text()
    assert text.startswith("# Networks that people train, asked")
    assert "under bfloat16 autocast: a GPT-2 of 9 heads." in text
    assert "| gpt2 | `dualform study gpt2 --data DATA --out RUN` |" in text
    assert "| resnet18 | not run | - | - | - |" in text
    (shown,) = (tmp_path / "docs" / "networks" / "gpt2").iterdir()
    assert f"](networks/gpt2/{shown.name})" in text


def test_a_folder_without_reports_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(tmp_path)])
    assert told.exit_code == 1
    assert "holds no report of gpt2 or resnet18." in told.output
    assert not (tmp_path / "networks.md").exists()


def test_layers_of_a_kind_are_put_together_by_depth() -> None:
    layers = ["wte", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "head"]
    assert by_kind(layers) == {"attn": {0: "h.0.attn", 1: "h.1.attn"}, "mlp": {0: "h.0.mlp", 1: "h.1.mlp"}}
