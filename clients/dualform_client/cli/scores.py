"""The scores that topk and sums ask for: --abs, --score, and --toward with what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import click

from dualform.answers import Grade
from dualform.questions.gradients import GRADIENT
from dualform.questions.toward import CONTRIBUTION
from dualform_client.cli.layers import LayerAnswer
from dualform_client.cli.mask_notes import describe_grade
from dualform_client.cli.options import abs_option, allow_inexact_option, at_step_option, one_score, score_option

_toward_option = click.option(
    "--toward",
    metavar="OUTPUT[-OUTPUT]",
    help="Contributions to an output of the layer, by its number, or to one less another (3-8); --at-step and "
    "--allow-inexact go with it. Default: scores of keys alone.",
)


@dataclass(frozen=True)
class Score:
    """What is asked for."""

    name: str
    toward: str | None
    at_step: int | None
    allow_inexact: bool

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments of the methods that ask."""
        return {
            "score": self.name,
            "toward": self.toward,
            "at_step": self.at_step,
            "allow_inexact": self.allow_inexact,
        }

    def title(self, layer: str | Sequence[str]) -> str:
        """Of an answer for one layer, or for several together."""
        layers = layer if isinstance(layer, str) else " + ".join(layer)
        if self.toward is None:
            return f"{layers}: {self.name} scores"
        at = "" if self.at_step is None else f" as of step {self.at_step}"
        return f"{layers}: contributions to output {self.toward.replace('-', ' less output ')}{at}"

    def record(self, grade: Grade | None) -> dict[str, Any]:
        """What JSON has of it."""
        if grade is None:
            return {"score": self.name}
        return {"score": self.name, "toward": self.toward, "at_step": self.at_step, "grade": asdict(grade)}

    def space_of_queries(self, space: str) -> str:
        """The slot space whose rows the queries are, of an answer about slots of `space`: gradients are of examples."""
        return "sample" if self.name == GRADIENT else space

    def notes(self, layer: str | Sequence[str], grade: Grade | None) -> list[str]:
        return [] if grade is None or grade.exact else [f"{layer}: {describe_grade(grade, 0.0)}"]


def takes_score(command: Callable[..., LayerAnswer]) -> Callable[..., LayerAnswer]:
    """Gives a command its score, as `score`."""

    @wraps(command)
    def asked(
        *arguments: Any,
        absolute: bool,
        score: str | None,
        toward: str | None,
        at_step: int | None,
        allow_inexact: bool,
        **rest: Any,
    ) -> LayerAnswer:
        name = CONTRIBUTION if toward is not None and score is None and not absolute else one_score(absolute, score)
        return command(*arguments, score=Score(name, toward, at_step, allow_inexact), **rest)

    for option in (allow_inexact_option, at_step_option, _toward_option, score_option, abs_option):
        asked = option(asked)
    return asked
