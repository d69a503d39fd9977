from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """The folder of the memories that two ranks recorded, of which the second was killed in the last training."""
    from .processes import launch
    from .sharded_trainings import run

    path = tmp_path_factory.mktemp("two")
    assert launch(run, 2, path) == [0, -signal.SIGKILL]
    return path
