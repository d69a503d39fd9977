"""From the text of a mask to an SQL expression that can reach nothing but the slots' columns.

DuckDB's own parser reads the text; what it read is walked, node by node, and written again as SQL of our own
(expression_writer.py): only kinds of node, functions and types that are named there, column names that exist, and every
constant as a bound parameter. Whatever else is refused, so a new DuckDB that learns new syntax cannot open a door.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dualform.errors import BadMask
from dualform.query.bounds import UNBOUNDED, QuestionBounds
from dualform.query.where.connection import connect
from dualform.query.where.expression_writer import DEEPEST, ExpressionWriter, Membership
from dualform.query.where.size import LONGEST, Pattern, require_short, require_simple
from dualform.questions.arguments import shown
from dualform.questions.filters import Filter, Ids
from dualform.store.user_columns import alike_but_for_case


@dataclass(frozen=True)
class Expression:
    """A checked expression."""

    sql: str
    """Of our own writing, with $1, $2, … for constants."""
    parameters: tuple[Any, ...]
    datasets: tuple[str, ...] = ()
    """Texts that the column `dataset` is compared with by name."""
    columns: tuple[str, ...] = ()
    """Columns that it names."""
    valued: tuple[str, ...] = ()
    """Those whose values matter: they occur elsewhere than under IS NULL."""
    nodes: int = 0
    """Of its syntax tree."""
    patterns: tuple[Pattern, ...] = ()
    work: int = 0
    """What one row takes: one for each node but constants, and for each 64 letters that are copied."""

    members: tuple[Membership, ...] = ()
    """Columns that are compared with lists of ids."""

    @property
    def identity(self) -> str:
        """The same for texts that differ only in how they are written."""
        ids = "".join(f" {own.ids.digest}" for own in self.members)
        return f"{self.sql} {[(type(value).__name__, value) for value in self.parameters]}{ids}"


def parse(where: str | Filter, columns: Collection[str], bounds: QuestionBounds = UNBOUNDED) -> Expression:
    """The expression that a condition writes over `columns`.

    Raises BadMask for a text that is no single allowed expression, or a larger one than `bounds` say, and NotFound for
    a column that does not exist.
    """
    text, values = (where.sql, where.values) if isinstance(where, Filter) else (where, ())
    if not isinstance(text, str):
        raise BadMask(
            f"where must be an SQL condition, not {shown(text)}.", hint='For example where="label <> 3".', field="where"
        )
    if not text.strip():
        raise BadMask("where must not be blank.", hint="Leave it out to keep every slot.", field="where")
    if len(text) > LONGEST:
        raise BadMask(f"where must be at most {LONGEST:,} characters long, not {len(text):,}.", field="where")
    said = text + "".join(value for value in values if isinstance(value, str))
    _require_unicode(said)
    require_short(said, bounds)
    if _deepest_bracket(text) > DEEPEST:  # thousands of them keep DuckDB's parser busy for many seconds
        raise _too_deep()
    read = _parse.__wrapped__ if any(isinstance(value, Ids) for value in values) else _parse  # ids may be many
    found = read(text, tuple(columns), where.typed if isinstance(where, Filter) else ())
    require_simple(found.nodes, found.patterns, bounds)
    used = {name.lower() for name in found.columns}
    if pair := alike_but_for_case(name for name in columns if name.lower() in used):
        raise BadMask(
            f"Columns {pair[0]!r} and {pair[1]!r} differ only in case, which SQL ignores.",
            hint="Use another column in where=, or record the training again with other names.",
            field="where",
        )
    return found


@lru_cache(maxsize=64)
def _parse(text: str, columns: tuple[str, ...], typed: tuple[tuple[str, Any], ...]) -> Expression:
    values = tuple(value for _, value in typed)
    try:
        writer = ExpressionWriter({name.lower(): name for name in columns}, values)
        sql = writer.write(_condition(text))
    except RecursionError:
        raise _too_deep() from None
    if len(writer.bound) < len(values):
        raise BadMask(
            f"where has {len(writer.bound)} question marks but {len(values)} values.",
            hint='Pass one value for each ?, for example where=("label = ?", 3).',
            field="where",
        )
    return Expression(
        sql,
        tuple(writer.parameters),
        tuple(writer.datasets),
        tuple(writer.used),
        tuple(writer.valued),
        writer.nodes,
        tuple(writer.patterns),
        writer.work,
        tuple(writer.members),
    )


def _require_unicode(text: str) -> None:
    """DuckDB's parser takes no other text, and raises what is no error of ours."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadMask(
            "where contains text that is not valid Unicode (a lone surrogate).", hint="Replace it.", field="where"
        ) from None


def _too_deep() -> BadMask:
    return BadMask(f"where must not be nested more than {DEEPEST} deep.", field="where")


def _deepest_bracket(text: str) -> int:
    """How deep brackets are nested, those in quotes counted along."""
    depth = deepest = 0
    for letter in text:
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth -= 1
    return deepest


def _condition(text: str) -> Any:
    """DuckDB's syntax tree of the text, read where a condition stands: SELECT takes more, as ALL or a last comma."""
    with closing(connect(1)) as connection:
        row = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE {text}"]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    if tree["error"]:
        raise BadMask(
            f"where is not valid SQL: {tree.get('error_message', 'no reason given')}.",
            hint="Write an SQL condition over slot columns, for example where=\"dataset <> 'fashion-mnist'\".",
            field="where",
        )
    if len(tree["statements"]) != 1:
        raise BadMask(f"where must be one condition, not {len(tree['statements'])} statements.", field="where")
    node = tree["statements"][0]["node"]
    plain = {"type": "SELECT_NODE", "aggregate_handling": "STANDARD_HANDLING", "modifiers": [], "cte_map": {"map": []}}
    rest = ("group_expressions", "group_sets", "having", "sample", "qualify")
    if any(node.get(name) != value for name, value in plain.items()) or any(node.get(name) for name in rest):
        raise BadMask("where must be only a condition.", hint="Leave out GROUP BY, LIMIT and the like.", field="where")
    return node["where_clause"]
