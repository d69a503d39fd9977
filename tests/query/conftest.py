from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session")
def by_adamw(tmp_path_factory):
    """A memory of `adam_trainings.record`, the trained model, and its parameters once so many steps were taken."""
    from tests.query.adam_trainings import record

    path = tmp_path_factory.mktemp("adamw") / "m"
    return path, *record(path)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
