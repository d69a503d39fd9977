"""A tool that an agent can call, how exact its answers are, and bounds on their size, which fills an agent's context.

Answers count what they leave out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from dualform.answers import Status
from dualform.answers.table import json_value
from dualform.errors import BadInput
from dualform.methods import Answers

MOST_BYTES = 32 << 10
"""The most bytes of an answer as JSON."""
MOST_ROWS = 200
MOST_TEXT = 300
"""Letters of a text that a memory holds."""
MOST_MESSAGE = 1000
"""Letters of an error's message, and of its hint: it stands twice in an answer, and a letter may take six bytes."""
MOST_NAMES = 30
"""Of datasets, columns, query sets and the like."""
MOST_QUERIES = 8
"""The most stored examples in one question."""


def bounded(record: Mapping[str, Any], rows: str) -> dict[str, Any]:
    """An answer as JSON has it, with as many of its `rows` as there is room for, and how many were left out."""
    found = {name: plain(value) for name, value in record.items()}
    every, kept = found[rows], []
    room = MOST_BYTES - _bytes({**found, rows: [], f"{rows}_left_out": len(every)})
    for row in every[:MOST_ROWS]:
        room -= _bytes(row) + 2
        if room < 0:
            break
        kept.append(row)
    return {**found, rows: kept, f"{rows}_left_out": len(every) - len(kept)}


def plain(value: Any) -> Any:
    """A value as JSON has it, which JavaScript may read; long texts are cut."""
    if isinstance(value, Mapping):
        return dict(zip(cut_apart(map(str, value)), map(plain, value.values()), strict=True))
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    found = json_value(value)
    return cut(found) if isinstance(found, str) else found


def as_json(value: Any) -> str:
    """In one line, as short as JSON can be."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def first(named: Mapping[str, Any]) -> dict[str, Any]:
    """The first of many names."""
    return dict(list(named.items())[:MOST_NAMES])


def cut(text: str, most: int = MOST_TEXT) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def cut_apart(names: Iterable[str]) -> list[str]:
    """The names, cut, with numbers at the ends of those that are alike then."""
    found: dict[str, None] = {}
    for name in names:
        own, number = cut(name), 1
        while own in found:
            number += 1
            own = f"{cut(name)[: MOST_TEXT - 10]}…{number}"
        found[own] = None
    return list(found)


def _bytes(value: Any) -> int:
    return len(as_json(value).encode(errors="replace"))


RECORDED = "what was recorded of slots, as the training gave it"
_ROUNDED = "but that those of a model in float64 are rounded to float32"
_KEYS = f"of the stored keys alone, in float64; keys are the layer's inputs bit for bit, {_ROUNDED}"
_REASONS = {
    "abs": f"scores are {_KEYS}; sums of absolute scores are right to 1e-6 of them",
    "gradient": "dot products of gradients, from stored keys and stored error signals as the backward pass gave them, "
    + _ROUNDED,
}


def told(status: Status | None, reason: str = RECORDED) -> Mapping[str, Any]:
    """The exactness of an answer. `reason`: why an answer without a status is exact."""
    found = Status("exact", reason=reason) if status is None else status
    return {**asdict(found), "exact": found.exact}


def reason_of(score: str) -> str:
    """Why scores that need no weights are exact."""
    return _REASONS.get(score, f"scores are {_KEYS}")


class Arguments(BaseModel):
    """Arguments of a tool. One that it does not have is refused: a mask under another name would mask nothing."""

    model_config = ConfigDict(extra="forbid")


A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True)
class Tool(Generic[A]):
    name: str
    description: str
    arguments: type[A]
    answer: Callable[[Answers, A], Mapping[str, Any]]
    rows: str
    """The list in an answer that is cut where all of it would be too large."""

    @property
    def schema(self) -> dict[str, Any]:
        """The arguments as JSON Schema."""
        return self.arguments.model_json_schema()

    def call(self, memory: Answers, given: Mapping[str, Any]) -> dict[str, Any]:
        """The answer, of bounded size. Raises BadInput for invalid arguments, and the memory's errors."""
        return bounded(self.answer(memory, self._checked(given)), self.rows)

    def _checked(self, given: Mapping[str, Any]) -> A:
        try:
            return self.arguments.model_validate(given)
        except ValidationError as error:
            wrong = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors(include_url=False)]
            raise BadInput(
                "; ".join(f"{name}: {said}" for name, said in wrong) + ".",
                hint=f"Arguments of {self.name}: {', '.join(self.arguments.model_fields) or 'none'}.",
                field=wrong[0][0],
            ) from None
