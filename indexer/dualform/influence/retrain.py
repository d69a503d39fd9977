"""A recorded training run again without some of its samples, as the judge of what an adjoint predicts.

Shapes: k sets of samples, n queries, S samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from dualform.answers.adjoint import Retrainings
from dualform.errors import BadInput
from dualform.influence.adjoint import Queries
from dualform.influence.checkpoint import Checkpoint
from dualform.influence.recorded_training import Batches, Progress, recorded_training
from dualform.record.example_signals import Loss
from dualform.record.model_arguments import Inputs, device_of
from dualform.store.attributions import check_name


@torch.inference_mode(False)
def retrain(
    path: str | PathLike[str],
    model: nn.Module,
    queries: tuple[Inputs, Any],
    loss: Loss,
    batches: Batches,
    train_loss: Loss | None = None,
    *,
    without: Iterable[Any] | None = None,
    random: int = 25,
    share: float = 0.01,
    seed: int = 0,
    name: str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Retrainings:
    """The losses of queries after the recorded training is run again without sets of samples.

    - `path`, `model`, `queries`, `loss`, `batches`, `train_loss`: as for `adjoint`.
    - `without`: sets of samples, by number, as bool[S] or by an SQL condition, each of which is left out of one
      training; None for `random` sets of a `share` of the samples, drawn with `seed`.
    - `name`: keep the losses in the memory, as rows of the table `retrainings` with this name, and the samples of each
      set as rows of `left_out`.
    - `checkpoint`, `progress`: as for `adjoint`; trainings in place of updates.

    A sample that is left out has weight 0 in the loss, and its batch keeps its size. Everything else is as it was
    recorded: first weights, batches, optimizer. One training a set, after one that is held against the record.

    Raises as `adjoint`, and BadInput for samples that the training does not have.
    """
    check_name(name)
    training = recorded_training(path, model, batches, train_loss or loss)
    training.require_ended(name)
    samples = training.samples
    if without is None:
        for said, number, fits in (
            ("share", share, isinstance(share, float) and 0 < share < 1 and round(share * len(samples))),
            ("random", random, isinstance(random, int) and random > 0),
            ("seed", seed, isinstance(seed, int) and seed >= 0),
        ):
            if not fits:
                hint = "For example random=25, share=0.01, seed=0: 25 sets of one sample in a hundred, one at least."
                raise BadInput(f"{said} cannot be {number!r}.", hint=hint, field=said)
        generator = np.random.default_rng(seed)
        size = round(share * len(samples))
        sets = np.zeros((random, len(samples)), dtype=bool)
        for own in sets:
            own[generator.choice(len(samples), size, replace=False)] = True
    else:
        if isinstance(without, str) or not isinstance(without, Iterable):
            raise BadInput("without must be a list of sets.", hint="For example without=[[3, 17]].", field="without")
        sets = np.array([training.marked(own) for own in without])
        if not len(sets):
            raise BadInput("without contains no set.", hint="For example without=[[3, 17]].", field="without")
    asked = Queries(queries, loss, training)
    saved = Checkpoint(checkpoint, b"retrain", training.identity, asked.identity, sets.tobytes())
    *_, last = training.checked()
    complete = asked.losses_at(last)
    saved.require_losses(complete)
    losses = [] if saved.found is None else list(saved.found["after"].numpy())
    for own in sets[len(losses) :]:
        weights = torch.from_numpy(~own).to(device_of(training.model), torch.get_default_dtype())
        losses.append(asked.losses_at(training.rerun(weights)))
        if progress is not None:
            progress("training again", len(losses), len(sets))
        if saved.due or (name is not None and len(losses) == len(sets)):
            saved.save(complete, after=torch.from_numpy(np.array(losses)))
    answer = Retrainings(sets, np.array(losses), complete, samples)
    if name is not None:
        numbers, places = np.nonzero(sets)
        members = {key: pa.array(training.columns[key][places]) for key in ("dataset", "sample")}
        left_out = pa.table({"set": pa.array(numbers), **members})
        training.keep(name, {"retrainings": answer.to_arrow(), "left_out": left_out}, asked.examples_at(last))
    saved.remove()
    return answer
