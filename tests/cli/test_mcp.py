"""dualform mcp: what keeps it from starting. What it answers: tests/agents/."""

from __future__ import annotations

import sys


def test_a_missing_package_is_named_with_its_extra(dualform, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    told = dualform("mcp", folder)
    assert told.code == 1
    assert "the package mcp is not installed; the extra [mcp] brings it." in told.err
    assert "pip install 'dualform[mcp]'" in told.err


def test_a_target_that_is_none_is_said_before_anything_is_spoken(dualform, tmp_path):
    told = dualform("mcp", tmp_path / "nix", "--json")
    assert told.json["error"]["code"] == "not_a_memory"
