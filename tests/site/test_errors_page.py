"""The page of errors has every code."""

from __future__ import annotations

import re
from pathlib import Path

from dualform import errors

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


def test_every_code_has_a_row_with_its_class():
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)`", PAGE, re.MULTILINE))
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DualformError)
    ]
    assert rows == {kind.code: kind.__name__ for kind in kinds}
