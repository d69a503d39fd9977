"""Key sources: the ways to store a layer's keys, by the name that the manifest has for each.

A new one is a file here, with a subclass of KeyFormat (key_format.py), and a line in the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from dualform.store.sources.absent import Absent
from dualform.store.sources.bfloat16 import Bfloat16
from dualform.store.sources.dense import Dense
from dualform.store.sources.key_format import Geometry, KeyFormat
from dualform.store.sources.patches import Patches
from dualform.store.sources.row_numbers import RowNumbers

__all__ = ["FORMATS", "Geometry", "KeyFormat"]

FORMATS: Mapping[str, type[KeyFormat]] = {
    "rows": Dense,
    "bfloat16": Bfloat16,
    "row numbers": RowNumbers,
    "patches": Patches,
    "none": Absent,
}
