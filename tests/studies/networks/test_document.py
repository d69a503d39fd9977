from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from dualform_studies.networks.document import main
from dualform_studies.networks.layer_kinds import by_kind


def test_a_folder_without_reports_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    told = CliRunner().invoke(main, [str(tmp_path / "runs"), str(tmp_path)])
    assert told.exit_code == 1
    assert "has no report of gpt2 or resnet18." in told.output
    assert not (tmp_path / "results").exists()


def test_layers_of_a_kind_are_put_together_by_depth() -> None:
    layers = ["wte", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "head"]
    assert by_kind(layers) == {"attn": {0: "h.0.attn", 1: "h.1.attn"}, "mlp": {0: "h.0.mlp", 1: "h.1.mlp"}}
