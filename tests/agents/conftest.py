from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dualform


@pytest.fixture(scope="session")
def memory(small_run: Path) -> Iterator[dualform.Engine]:
    with dualform.open(small_run) as memory:
        yield memory
