"""The loop that tests train networks with, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor


def learn(optimizer: Any, loss: Tensor, change: Callable[[], object] = lambda: None) -> None:
    """One update by the gradients of this loss alone, and by what `change` makes of them."""
    optimizer.zero_grad()
    loss.backward()
    change()
    optimizer.step()


def take_steps(recorder: Any, optimizer: Any, batches: int | Iterable[Any], loss: Any, **columns: Any) -> None:
    """A recorded step with one update for each batch, or for each number below `batches`.

    `loss` is a function of the batch, and so is a column that is not the same at all steps. A batch that is a tuple is
    given as several arguments.
    """
    for batch in range(batches) if isinstance(batches, int) else batches:
        given = batch if isinstance(batch, tuple) else (batch,)
        with recorder.step(**{name: own(*given) if callable(own) else own for name, own in columns.items()}):
            learn(optimizer, loss(*given))


def record_steps(recorder: Any, optimizer: Any, batches: int | Iterable[Any], loss: Any, **columns: Any) -> None:
    """A whole recorded training, as `take_steps` takes it."""
    with recorder:
        take_steps(recorder, optimizer, batches, loss, **columns)
