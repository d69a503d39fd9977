"""Pages of docs/ whose examples are run as a reader runs them: the marked blocks of a page are one script of the shell.

Behind `<!-- tested -->` a block of Python or of the shell is run; behind `<!-- tested: NAME -->` it is saved as NAME.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "start.md", DOCS / "concepts.md", *sorted((DOCS / "howto").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- tested(?:: ([\w.]+))? -->\n)?```(python|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MARK = "<!-- tested"


def script(page: Path) -> str:
    """The blocks of a page, in its order."""
    return "\n".join(["set -euo pipefail", *(_part(*found) for found in BLOCK.findall(page.read_text("utf-8")))])


def _part(name: str, language: str, code: str) -> str:
    if language == "bash" and not name:
        return code
    command = f"cat > {name}" if name else "python -"
    return f"{command} <<'END_OF_BLOCK'\n{code}END_OF_BLOCK"
