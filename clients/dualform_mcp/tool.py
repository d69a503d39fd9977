"""A tool that an agent can call: its name, arguments and implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dualform.errors import BadInput
from dualform.methods import Answers
from dualform_mcp.bounds import bounded


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
