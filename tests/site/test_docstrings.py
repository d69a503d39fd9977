"""What the reference shows: every public name once, and of each a docstring that speaks to whoever calls it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import pytest

import dualform
import dualform_client

ROOT = Path(__file__).parents[2]
NAMES = {f"{package.__name__}.{name}" for package in (dualform, dualform_client) for name in package.__all__}
TOLD = {"dualform.__version__", "dualform_client.connect"}
"""Names that the page tells of in a sentence."""
FILES = re.compile(r"[\w/]+\.(?:py|c|h)\b|\b(?:store|record|query|rules|live|influence|answers|questions)/\w*")


@pytest.fixture(scope="module")
def packages():
    loader = griffe.GriffeLoader(search_paths=[ROOT / room for room in ("indexer", "protos", "clients")])
    for name in ("dualform", "dualform_client"):
        loader.load(name)
    loader.resolve_aliases(external=False)
    return loader.modules_collection


def docstrings(shown: griffe.Object | griffe.Alias) -> Iterator[tuple[str, str]]:
    """By path, what the reference shows of an object and of its public members, inherited ones too."""
    if shown.docstring is not None:
        yield shown.path, shown.docstring.value
    if shown.is_class:
        for name, member in shown.all_members.items():
            if not name.startswith("_") or name == "__init__":
                yield from docstrings(member)


def test_every_public_name_has_its_place_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert sorted([*shown, *TOLD]) == sorted(NAMES)
    assert all(f"`{name}`" in page for name in TOLD)


def test_no_docstring_names_a_file_of_ours(packages):
    """Who reads the reference has no such file at hand."""
    own = {path: text for name in NAMES - TOLD for path, text in docstrings(packages[name])}
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
