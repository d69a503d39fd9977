"""The navigation of the site: a folder in it stands for the pages of that folder, and no page is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig

LEFT = "More"
"""The part of those pages of docs/ that mkdocs.yml does not name."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    docs = Path(config.docs_dir)
    config.nav = _expanded(config.nav, docs)
    left = sorted({path.name for path in docs.glob("*.md")} - set(_pages(config.nav)))
    if left:
        config.nav.append({LEFT: left})
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    """An entry of the navigation, in which the name of a folder, ending in a slash, has become its pages."""
    if isinstance(entry, list):
        return [_expanded(one, docs) for one in entry]
    if isinstance(entry, dict):
        return {title: _expanded(one, docs) for title, one in entry.items()}
    if not entry.endswith("/"):
        return entry
    return [path.relative_to(docs).as_posix() for path in sorted((docs / entry).glob("*.md"))]


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [page for one in (entry.values() if isinstance(entry, dict) else entry) for page in _pages(one)]
