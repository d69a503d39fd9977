"""The keys that a page's help names are those that its script knows."""

from __future__ import annotations

import re

from dualform_explorer.application import STATIC
from dualform_explorer.rendering import KEYS


def test_help_names_the_keys_that_the_script_knows():
    script = (STATIC / "keys.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"const KEYS = \{\n(.*?)\n\};", script, flags=re.DOTALL)
    known = re.findall(r'^  (?:"(.)"|(\w)): \(\) => ', table, flags=re.MULTILINE)
    assert len(known) == len(table.splitlines())
    assert sorted("".join(own) for own in known) == sorted(key for keys, _ in KEYS for key in keys.split())
