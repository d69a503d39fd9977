from __future__ import annotations

from pathlib import Path

from dualform_studies.dual_form_figures import CAPTIONS, draw_dual_form
from dualform_studies.pages.frame import LARGEST_PNG
from dualform_studies.reproduction import write_reproduction


def test_both_forms_are_drawn_small_enough_to_be_kept(tmp_path: Path):
    drawn = draw_dual_form(tmp_path)
    assert [path.stem for path in drawn] == list(CAPTIONS)
    for path in drawn:
        assert 5_000 < path.stat().st_size <= LARGEST_PNG
        assert path.with_suffix(".svg").is_file()


def test_they_stand_at_the_head_of_the_document(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "docs").mkdir()
    text = write_reproduction(tmp_path / "runs", tmp_path / "docs").read_text()
    for name in CAPTIONS:
        assert f"](reproduction/dual-form/{name}.png)" in text
        assert (tmp_path / "docs" / "reproduction" / "dual-form" / f"{name}.png").is_file()
    assert text.index("primal-form.png") < text.index("dual-form.png)\n") < text.index("The studies; DATA")
