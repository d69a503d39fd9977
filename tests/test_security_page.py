"""docs/security.md begins with what a memory reveals, and its bounds are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualform_explorer.guard import MOST_PARAMETERS
from dualform_explorer.server import CONNECTIONS, SECONDS
from dualform_service import auth, gate
from dualform_service.config import WHERE_BYTES, WHERE_NODES, ServiceConfig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
CONFIG = ServiceConfig()


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/security.md"])
def test_a_page_begins_with_what_a_memory_reveals(page):
    beginning = (ROOT / page).read_text(encoding="utf-8").partition("\n| ")[0]
    assert "training inputs" in beginning
    assert "unlearn" in beginning


@pytest.mark.parametrize(
    "bound",
    [
        f"{auth.BYTES} random bytes",
        f"{CONFIG.calls:,} in all and {CONFIG.connection_calls} a connection",
        f"at most {WHERE_BYTES >> 10} KiB and {WHERE_NODES:,} parts",
        f"{CONNECTIONS} connections, ten seconds for a request",
        f"at most {MOST_PARAMETERS} parameters",
        "scopes (" + ", ".join(f"`{scope}`" for scope in auth.SCOPES) + ")",
    ],
)
def test_a_bound_is_that_of_the_code(bound):
    assert bound in PAGE


def test_bounds_in_words_are_those_of_the_code():
    assert (gate.WRONG, CONFIG.message_seconds, CONFIG.write_seconds, SECONDS) == (10, 10, 10, 10)
    assert PAGE.count("ten wrong tokens") == 2
    assert PAGE.count("ten seconds") == 3
