"""All trainings of two ranks, one after another in the same two processes: processes take seconds to start."""

from __future__ import annotations

from . import rank_trainings, sharded_trainings

TRAININGS = (
    rank_trainings.even,
    rank_trainings.budgeted,
    rank_trainings.budgeted_by_steps,
    rank_trainings.uneven,
    rank_trainings.accumulated,
    rank_trainings.accumulated_inside,
    rank_trainings.fewer,
    rank_trainings.fewer_of_the_first,
    sharded_trainings.sgd,
    sharded_trainings.adamw,
    sharded_trainings.half_precision,
    sharded_trainings.accumulated_inside,
    sharded_trainings.transformer,
    sharded_trainings.refused,
    sharded_trainings.unrecorded,
    sharded_trainings.left_early,
    rank_trainings.killed,
)


def run(rank, path):
    for train in TRAININGS:
        train(rank, path)
