"""Which datasets a test can have without a network."""

from __future__ import annotations

from pathlib import Path

from dualform_studies.data_folder import data_folder
from dualform_studies.images.data.download import _FILES, _local


def at_hand(name: str, data: Path | None) -> bool:
    """Whether all four files of a dataset lie in the folder."""
    return all(_local(data_folder(data) / name, file) for file in _FILES)
