"""What holds for all tests, and the memories that several folders of them read."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A property that is slow is one whose machine is busy. Few examples a run: `make seeds` draws others ten times.
settings.register_profile("any machine", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_finish() -> None:
    """Takes what is loaded by now out of the garbage collector's sight: to pass over it takes 0.7 s each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else DuckDB's bindings say at the end that all of it leaked


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The memory of tests/contract/recorded.py, recorded once a worker. It is only read: a test that changes it takes
    a copy.
    """
    from tests.contract.recorded import record

    return record(tmp_path_factory.mktemp("small") / "run")
