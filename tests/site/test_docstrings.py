"""What the reference shows: every public name once, and of each a docstring that speaks to whoever calls it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from docs.site.prose import docstrings

import dualform
import dualform_client

ROOT = Path(__file__).parents[2]
NAMES = {f"{package.__name__}.{name}" for package in (dualform, dualform_client) for name in package.__all__}
TOLD = {"dualform.__version__", "dualform_client.connect"}
"""Names that the page tells of in a sentence."""
FILES = re.compile(r"[\w/]+\.(?:py|c|h)\b|\b(?:store|record|query|rules|live|influence|answers|questions)/\w*")


def test_every_public_name_has_its_place_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert sorted([*shown, *TOLD]) == sorted(NAMES)
    assert all(f"`{name}`" in page for name in TOLD)


def test_no_docstring_names_a_file_of_ours():
    """Who reads the reference has no such file at hand."""
    own = docstrings()
    assert len(own) > len(NAMES - TOLD)
    assert {path: found for path, text in own.items() if (found := FILES.findall(text))} == {}


def test_every_public_method_says_what_it_does():
    silent = []
    for package, attribute in (name.split(".") for name in NAMES - TOLD):
        value = getattr(dualform if package == "dualform" else dualform_client, attribute)
        for own, member in inspect.getmembers(value) if inspect.isclass(value) else ():
            module = getattr(member, "__module__", getattr(getattr(member, "fget", None), "__module__", ""))
            if own.startswith("_") or not (callable(member) or isinstance(member, property)):
                continue
            if "dualform" in str(module) and not inspect.getdoc(getattr(value, own)):
                silent.append(f"{attribute}.{own}")
    assert silent == []
