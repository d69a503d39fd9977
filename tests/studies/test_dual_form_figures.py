from __future__ import annotations

from pathlib import Path

from dualform_studies.dual_form_figures import DUAL, PRIMAL, draw_dual_form
from dualform_studies.pages.frame import LARGEST_PNG


def test_both_forms_are_drawn_small_enough_to_be_kept(tmp_path: Path):
    drawn = draw_dual_form(tmp_path)
    assert [path.stem for path in drawn] == [PRIMAL, DUAL]
    for path in drawn:
        assert 5_000 < path.stat().st_size <= LARGEST_PNG
        assert path.with_suffix(".svg").is_file()
