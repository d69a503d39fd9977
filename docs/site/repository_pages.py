"""Files of the repository that lie outside docs/, as pages of the site: links lead to them there as in a checkout.

Every file or folder that a page links to has a page under repository/: Markdown as it is, other text as code, a folder
as the list of its files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository/"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(?=[)#\s])")
_LANGUAGES = {".proto": "protobuf", ".yml": "yaml", ".js": "javascript", ".service": "ini", ".md": "markdown"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for whatever is linked to, and for what those pages link to."""
    waiting = [path for file in files.documentation_pages() for path in _linked(file.src_uri, file.content_string)]
    waiting += [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]  # of the navigation
    while waiting:
        path = waiting.pop()
        path = path / "README.md" if (path / "README.md").is_file() else path
        uri = _uri(path)
        if not uri.startswith(OUTSIDE) or files.get_file_from_path(uri):
            continue
        content = _content(path)
        files.append(File.generated(config, uri, content=content))
        waiting += _linked(uri, content)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Its links as they hold on the site."""
    here = page.file.src_uri

    def on_site(link: re.Match[str]) -> str:
        target = _target(here, link.group())
        return posixpath.relpath(_uri(target), posixpath.dirname(here)) if _is_ours(target) else link.group()

    return _LINK.sub(on_site, markdown)


def _linked(uri: str, content: str) -> Iterator[Path]:
    return (path for link in _LINK.findall(content) if _is_ours(path := _target(uri, link)))


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(ROOT) and path.exists()


def _target(uri: str, link: str) -> Path:
    """The file of the repository that a link on a page of the site means."""
    return (_source(uri).parent / link).resolve()


def _source(uri: str) -> Path:
    """Where a page of the site stands in the repository."""
    if not uri.startswith(OUTSIDE):
        return ROOT / "docs" / uri
    return ROOT / uri.removeprefix(OUTSIDE)


def _uri(path: Path) -> str:
    """The page, or the file, of the site that shows a file or folder of the repository."""
    inside = path.is_relative_to(ROOT / "docs") and path != ROOT / "docs"
    uri = path.relative_to(ROOT / "docs").as_posix() if inside else OUTSIDE + path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{uri}/README.md" if (path / "README.md").is_file() else f"{uri}/index.md"
    if path.suffix == ".ipynb":
        return uri.removesuffix(".ipynb") + ".md"
    return uri if inside or path.suffix == ".md" else f"{uri}.md"


def _content(path: Path) -> str:
    """The Markdown of a page; of what is no Markdown, one that the search leaves out."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch: {{exclude: true}}\n---\n\n# {name}\n\n"
    if path.is_dir():
        entries = sorted(one.name for one in path.iterdir() if one.name != "__pycache__")
        return head + "".join(f"- [{entry}]({entry})\n" for entry in entries)
    language = _LANGUAGES.get(path.suffix, path.suffix.removeprefix("."))
    return f"{head}````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"
