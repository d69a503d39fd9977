"""From the text of a filter to an SQL expression that can reach nothing but the slots' columns.

DuckDB's own parser reads the text; what it read is walked, node by node, and written again as SQL of our own:
only kinds of node, functions and types that are named there, column names that exist, and every
constant as a bound parameter. Whatever else is refused, so a new DuckDB that learns new syntax cannot open a door.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from dualform.errors import BadMask, NotFound
from dualform.query.bounds import LONGEST, UNBOUNDED, Pattern, QuestionBounds, require_short, require_simple
from dualform.questions.arguments import shown
from dualform.questions.filters import Filter, Ids
from dualform.store.shard import scratch
from dualform.store.tables import KINDS, alike_but_for_case

DEEPEST = 100
"""Nesting of expressions."""
COPYING = {"FUNCTION", "CAST", "CASE"}
"""Kinds of node that may make a text of those below."""
_DECIMAL_DIGITS = 38
"""Of a DECIMAL at most; a number of more is a DOUBLE."""
COLUMN_LETTERS = 64
"""That a column's text is taken to have."""

COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
OPERATORS = {
    "OPERATOR_NOT": "(NOT {0})",
    "OPERATOR_IS_NULL": "({0} IS NULL)",
    "OPERATOR_IS_NOT_NULL": "({0} IS NOT NULL)",
    "OPERATOR_COALESCE": "coalesce({all})",
    "COMPARE_IN": "({0} IN ({others}))",
    "COMPARE_NOT_IN": "({0} NOT IN ({others}))",
}
MATCHING = {"COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM"}
"""Comparisons that ask for one value by name."""
ARITHMETIC = {"+", "-", "*", "/", "//", "%", "**", "^", "||"}
PATTERNS = {"~~", "!~~", "~~*", "!~~*", "~~~", "^@", "like_escape", "not_like_escape", "ilike_escape"}
PATTERNS |= {"not_ilike_escape", "regexp_matches", "regexp_full_match"}
NAMED = {
    "abs",
    "sign",
    "floor",
    "ceil",
    "ceiling",
    "round",
    "trunc",
    "mod",
    "sqrt",
    "pow",
    "greatest",
    "least",
    "isnan",
}
NAMED |= {"lower", "upper", "length", "substring", "substr", "trim", "ltrim", "rtrim", "left", "right"}
NAMED |= {"starts_with", "ends_with", "contains", "prefix", "suffix"}
FUNCTIONS = ARITHMETIC | PATTERNS | NAMED
_NAMES_OF_TYPES = {
    "BOOLEAN": ("BOOL", "LOGICAL"),
    "TINYINT": ("INT1",),
    "SMALLINT": ("INT2", "SHORT"),
    "INTEGER": ("INT", "INT4", "SIGNED"),
    "BIGINT": ("INT8", "LONG"),
    "HUGEINT": ("INT16",),
    "FLOAT": ("REAL", "FLOAT4"),
    "DOUBLE": ("FLOAT8",),
    "VARCHAR": ("TEXT", "STRING", "CHAR", "BPCHAR"),
}
TYPES = {alias: name for name, aliases in _NAMES_OF_TYPES.items() for alias in (name, *aliases)}
"""What a CAST may name, beside the types of columns."""
_ALLOWED = (
    "Allowed: comparisons, AND, OR, NOT, IN (…), BETWEEN, LIKE, IS NULL, CASE, CAST, arithmetic, and the functions "
    f"{', '.join(sorted(NAMED))}, coalesce, regexp_matches."
)


class Membership(NamedTuple):
    """A column that is compared with a list of ids: what an expression reads of it is a column of its own."""

    column: str
    ids: Ids

    @property
    def name(self) -> str:
        """Of the column that says which rows are among them: no user's column has such a name."""
        return f"{self.column} IN {self.ids.digest}"


@dataclass
class ExpressionWriter:
    """Writes a syntax tree as SQL, collecting its constants."""

    columns: dict[str, str]
    """Lower-case name -> name: SQL names are the same in either case."""
    values: Sequence[Any] = ()
    """Of question marks."""
    bound: set[int] = field(default_factory=set)
    """Which of them the expression has."""
    members: list[Membership] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    used: dict[str, None] = field(default_factory=dict)
    """Columns that occur, in the order of their first occurrence."""
    valued: dict[str, None] = field(default_factory=dict)
    """Those that occur anywhere but under IS NULL."""
    depth: int = 0
    null_tests: int = 0
    """Around the node that is being written."""
    nodes: int = 0
    patterns: list[Pattern] = field(default_factory=list)
    work: int = 0
    """As Expression has it."""
    letters: int = 0
    """Of the constants and columns so far."""

    def write(self, node: Any) -> str:
        kind = str(node.get("class"))
        written = _WRITERS.get(kind)
        if written is None:
            raise refused(kind.lower().replace("_", " "))
        if node.get("alias"):
            raise BadMask(
                f"where must not name an expression ({node['alias']!r}).", hint="Leave out AS.", field="where"
            )
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        before = self.letters
        sql = written(self, node)
        self.depth -= 1
        self.nodes += 1
        self.work += kind != "CONSTANT"
        if kind in COPYING:
            self.work += (self.letters - before) // 64
        return sql

    def all(self, nodes: list[Any]) -> list[str]:
        return [self.write(node) for node in nodes]

    def constant(self, node: Any) -> str:
        value = _value(node["literal"])
        self.parameters.append(value)
        self.letters += len(node["literal"]["text"] or "")
        sql = f"${len(self.parameters)}"
        # DuckDB reads 0.5 as DECIMAL(2,1), and binds it as DECIMAL(1,1); 2**63 it binds as UBIGINT.
        if isinstance(value, Decimal):
            whole, _, rest = _plain(node["literal"]["text"]).partition(".")
            return f"CAST({sql} AS DECIMAL({len(whole + rest)}, {len(rest)}))"
        return f"CAST({sql} AS HUGEINT)" if isinstance(value, int) and 2**63 <= value < 2**64 else sql

    def parameter(self, node: Any) -> str:
        value = self.value_of(node)
        if isinstance(value, Ids):
            raise BadMask(
                "where can use a list of ids only after a column and IN.",
                hint='For example where=("sample IN ?", ids) or where=("sample NOT IN ?", ids).',
                field="where",
            )
        self.parameters.append(value)
        self.letters += len(value) if isinstance(value, str) else 0
        return f"${len(self.parameters)}"

    def value_of(self, node: Any) -> Any:
        """What stands for a question mark. Raises BadMask where none does."""
        number = str(node["identifier"])
        place = int(number) - 1 if number.isdecimal() else -1
        if not 0 <= place < len(self.values):
            raise BadMask(
                f"where has a question mark without a value (${number}).",
                hint='Pass one value for each ?, for example where=("label = ?", 3).',
                field="where",
            )
        self.bound.add(place)
        return self.values[place]

    def membership(self, left: Any, right: Any) -> str:
        """Whether a column is one of some ids."""
        self.nodes += 1
        if left.get("class") != "COLUMN_REF":
            raise BadMask(
                "where can compare only a column with a list of ids.",
                hint='Write a column\'s name before IN, for example where=("sample IN ?", ids).',
                field="where",
            )
        name = self.column(left)
        column = next(own for own in self.used if quoted(own) == name)
        own = Membership(column, self.value_of(right))
        if column == "dataset":
            self.datasets += [value for value in own.ids.values if isinstance(value, str)]
        self.members.append(own)
        return quoted(own.name)

    def pattern(self, node: Any) -> str | None:
        """A pattern as it is written or bound; None of one that is computed."""
        if node.get("class") == "CONSTANT":
            return str(node["literal"]["text"])
        value = self.value_of(node) if node.get("class") == "PARAMETER" else None
        return value if isinstance(value, str) else None

    def is_list(self, node: Any) -> bool:
        return node.get("class") == "PARAMETER" and isinstance(self.value_of(node), Ids)

    def column(self, node: Any) -> str:
        names = node["column_names"]
        if len(names) != 1:
            raise refused(f"the qualified name {'.'.join(names)}")
        name = self.columns.get(names[0].lower())
        if name is None:
            listed = ", ".join(self.columns.values())
            raise NotFound(
                f"There is no slot column {names[0]!r}.",
                hint=f"Columns: {listed}. Texts take single quotes: dataset = 'mnist'.",
                field="where",
            )
        self.used[name] = None
        self.letters += COLUMN_LETTERS
        if not self.null_tests:
            self.valued[name] = None
        return quoted(name)

    def comparison(self, node: Any) -> str:
        if node["type"] not in COMPARISONS:
            raise refused(f"the comparison {node['type']}")
        if node["type"] in MATCHING:
            self.note_datasets([node["left"], node["right"]])
        return f"({self.write(node['left'])} {COMPARISONS[node['type']]} {self.write(node['right'])})"

    def note_datasets(self, nodes: list[Any]) -> None:
        if any(n.get("class") == "COLUMN_REF" and n["column_names"][-1].lower() == "dataset" for n in nodes):
            literals = [n["literal"] for n in nodes if n.get("class") == "CONSTANT"]
            self.datasets += [literal["text"] for literal in literals if literal["kind"] == "STRING"]
            bound = [self.value_of(n) for n in nodes if n.get("class") == "PARAMETER"]
            self.datasets += [value for value in bound if isinstance(value, str)]

    def conjunction(self, node: Any) -> str:
        word = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        return f"({word.join(self.all(node['children']))})"

    def operator(self, node: Any) -> str:
        if node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
            left, *rest = node["children"]
            if len(rest) == 1 and self.is_list(rest[0]):  # IN (?) is as IN ?
                written = self.membership(left, rest[0])
                return written if node["type"] == "COMPARE_IN" else f"(NOT {written})"
            self.note_datasets(node["children"])
        tests_null = node["type"] == "OPERATOR_IS_NULL"
        self.null_tests += tests_null
        first, *others = self.all(node["children"])
        self.null_tests -= tests_null
        if node["type"] not in OPERATORS:
            raise refused(f"the operator {node['type']}")
        return OPERATORS[node["type"]].format(first, others=", ".join(others), all=", ".join([first, *others]))

    def between(self, node: Any) -> str:
        return f"({self.write(node['input'])} BETWEEN {self.write(node['lower'])} AND {self.write(node['upper'])})"

    def case(self, node: Any) -> str:
        checks = [f"WHEN {self.write(c['when_expr'])} THEN {self.write(c['then_expr'])}" for c in node["case_checks"]]
        return f"(CASE {' '.join(checks)} ELSE {self.write(node['else_expr'])} END)"

    def cast(self, node: Any) -> str:
        target = node["type_expr"]
        name = str(target.get("type_name", "")).upper()
        types = TYPES | {own: own for own, kind in KINDS.items() if kind.letters}
        if name not in types or target.get("class") != "TYPE" or target.get("children"):
            listed = ", ".join(dict.fromkeys(types.values()))
            raise refused(f"the type {name or target.get('class')}", f"Types: {listed}.")
        return f"{'TRY_CAST' if node['try_cast'] else 'CAST'}({self.write(node['child'])} AS {types[name]})"

    def function(self, node: Any) -> str:
        name = str(node["function_name"]).lower()
        if name not in FUNCTIONS or node["qualified_name"]["path"] != [node["function_name"]]:
            raise refused(f"the function {'.'.join(node['qualified_name']['path'])}")
        extras = (node["distinct"], node["filter"], node["order_bys"]["orders"], node["schema"], node["catalog"])
        if any(extras) or any(argument["name"] for argument in node["arguments"]):
            raise refused(f"anything but plain arguments of {name}")
        arguments = [argument["expression"] for argument in node["arguments"]]
        if name == "contains" and len(arguments) == 2 and self.is_list(arguments[0]):  # how DuckDB reads column IN ?
            return self.membership(arguments[1], arguments[0])
        if (
            name == "contains"
            and len(arguments) == 2
            and _is_one_value(arguments[0])
            and not _is_one_value(arguments[1])
        ):
            raise BadMask(
                "where has one value after IN, which SQL reads as a search within it.",
                hint='Write "column = ?" for one value, or pass a list for "column IN ?".',
                field="where",
            )
        if name in PATTERNS:
            literals = [self.pattern(own) for own in arguments[1:2]]
            self.patterns += [Pattern(name, literal) for literal in literals]
        return f"{quoted(name)}({', '.join(self.all(arguments))})"


_WRITERS: dict[str, Callable[[ExpressionWriter, Any], str]] = {
    "CONSTANT": ExpressionWriter.constant,
    "PARAMETER": ExpressionWriter.parameter,
    "COLUMN_REF": ExpressionWriter.column,
    "COMPARISON": ExpressionWriter.comparison,
    "CONJUNCTION": ExpressionWriter.conjunction,
    "OPERATOR": ExpressionWriter.operator,
    "BETWEEN": ExpressionWriter.between,
    "CASE": ExpressionWriter.case,
    "CAST": ExpressionWriter.cast,
    "FUNCTION": ExpressionWriter.function,
}


def _value(literal: Any) -> Any:
    """A constant as the Python value that DuckDB binds, or casts, to the type that it would read."""
    kind, text = literal["kind"], literal["text"]
    match kind:
        case "STRING":
            return text
        case "INTEGER":
            return _number(int, text)
        case "NUMERIC":
            # One digit is that of the point.
            return _number(float if "e" in text.lower() or len(_plain(text)) > 1 + _DECIMAL_DIGITS else Decimal, text)
        case "BOOLEAN":
            return text == "true"
        case "NULL_LITERAL":
            return None
    raise refused(f"a constant of kind {kind}")


def _is_one_value(node: Any) -> bool:
    return node.get("class") in ("CONSTANT", "PARAMETER")


def _number(kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(_plain(text))
    except (ValueError, ArithmeticError):
        raise refused(f"the number {text}") from None


def _plain(number: str) -> str:
    return number.replace("_", "")


def refused(what: str, hint: str = _ALLOWED) -> BadMask:
    return BadMask(f"where cannot use {what}.", hint=hint, field="where")


def quoted(name: str) -> str:
    """A column or function name as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


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
    with scratch() as connection:
        ((serialized,),) = connection.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE {text}"]).fetchall()
    tree: dict[str, Any] = json.loads(serialized)
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
