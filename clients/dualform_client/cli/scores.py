"""The scores that topk and sums ask for: --abs, --score, and --target with what belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import click

from dualform.answers import Status
from dualform.questions.gradients import GRADIENT
from dualform.questions.target import CONTRIBUTION
from dualform_client.cli.layers import LayerAnswer
from dualform_client.cli.mask_notes import describe_status
from dualform_client.cli.options import abs_option, allow_inexact_option, at_step_option, one_score, score_option

_target_option = click.option(
    "--target",
    "direction",
    metavar="OUTPUT[-OUTPUT]",
    help="Contributions to an output of the layer, by its number, or to one less another (3-8); --at-step and "
    "--allow-inexact go with it. Default: scores of keys alone.",
)


@dataclass(frozen=True)
class Score:
    """What is asked for."""

    name: str
    target: str | None
    at_step: int | None
    allow_inexact: bool

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments of the methods that ask."""
        return {
            "score": self.name,
            "target": self.target,
            "at_step": self.at_step,
            "allow_inexact": self.allow_inexact,
        }

    def title(self, layer: str | Sequence[str]) -> str:
        """Of an answer for one layer, or for several together."""
        layers = layer if isinstance(layer, str) else " + ".join(layer)
        if self.target is None:
            return f"{layers}: {self.name} scores"
        at = "" if self.at_step is None else f" as of step {self.at_step}"
        return f"{layers}: contributions to output {self.target.replace('-', ' less output ')}{at}"

    def record(self, status: Status | None) -> dict[str, Any]:
        """What JSON has of it."""
        if status is None:
            return {"score": self.name}
        return {"score": self.name, "target": self.target, "at_step": self.at_step, "status": asdict(status)}

    def space_of_queries(self, space: str) -> str:
        """The slot space whose rows the queries are, of an answer about slots of `space`: gradients are of examples."""
        return "sample" if self.name == GRADIENT else space

    def notes(self, layer: str | Sequence[str], status: Status | None) -> list[str]:
        return [] if status is None or status.exact else [f"{layer}: {describe_status(status, 0.0)}"]


def takes_score(command: Callable[..., LayerAnswer]) -> Callable[..., LayerAnswer]:
    """Gives a command its score, as `score`."""

    @wraps(command)
    def asked(
        *arguments: Any,
        absolute: bool,
        score: str | None,
        direction: str | None,
        at_step: int | None,
        allow_inexact: bool,
        **rest: Any,
    ) -> LayerAnswer:
        name = CONTRIBUTION if direction is not None and score is None and not absolute else one_score(absolute, score)
        return command(*arguments, score=Score(name, direction, at_step, allow_inexact), **rest)

    for option in (allow_inexact_option, at_step_option, _target_option, score_option, abs_option):
        asked = option(asked)
    return asked
