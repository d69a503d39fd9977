"""A memory whose shards are answered for by processes elsewhere, as one engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dualform.query.shards.front import Front, open_front
from dualform.query.shards.shard_engine import names_of_shards
from dualform_service.shards.fleet import SECONDS, Fleet, Launch
from dualform_service.shards.ray import QUESTIONS, ray_answerers


@contextmanager
def opened_on(launch: Launch, path: str | Path, seconds: float = SECONDS) -> Iterator[Front]:
    """An engine in front of the answerers that `launch` starts, one for each shard of the memory at `path`.

    `seconds`: in which an answerer must say its share; whoever misses that is replaced. Raises as dualform.open.
    """
    with Fleet(launch, lambda: names_of_shards(path), seconds) as fleet, open_front(path, fleet) as front:
        yield front


@contextmanager
def opened_on_ray(
    path: str | Path, address: str | None = None, seconds: float = SECONDS, questions: int = QUESTIONS
) -> Iterator[Front]:
    """The same on the machines of a Ray cluster. Arguments as `ray_answerers` has them; raises MissingPackage."""
    with opened_on(ray_answerers(path, address, questions=questions), path, seconds) as front:
        yield front
