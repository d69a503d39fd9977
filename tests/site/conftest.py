"""The commands that pages and notebooks call, warm."""

from __future__ import annotations

import pytest

from tests.site.warm import warm


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    with warm(tmp_path_factory.mktemp("commands")) as folder:
        yield folder
