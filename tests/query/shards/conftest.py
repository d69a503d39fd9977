from __future__ import annotations

import pytest

from dualform.query.sums import key_sums


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of sums that hold slots of several steps and shards, and are many."""
    monkeypatch.setattr(key_sums, "BLOCK", 7)
