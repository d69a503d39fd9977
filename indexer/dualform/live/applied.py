"""A model that computes with the weights of an answer for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count

import torch
from torch import Tensor, nn

from dualform.answers import Weights
from dualform.errors import BadInput, RecordingError
from dualform.record.hooks import refuse_recorded
from dualform.record.ranks import whole_model
from dualform.record.torch_internals import set_version_counters

_VERSIONS = count(1 << 30)
"""Of tensors while weights are applied to them: a graph that was made with some of them is no graph with others."""


@contextmanager
def applied(model: nn.Module, weights: Weights) -> Iterator[Weights]:
    """Inside, the model computes with `weights`, in the types and on the devices that it has; after it, its own tensors
    have their bits again, whatever was raised, and a graph that was made before can still go backward. A graph goes
    backward only while the weights stand that it was made with: torch refuses it elsewhere, as of any tensor that was
    written in place.

    What no recorded layer has (`weights.not_recorded`) stays the model's own. Yields the weights that were applied,
    by name, with the names that were left as `not_recorded`.

    Raises BadInput, before anything is written, for a model that lacks a parameter of the weights or has it in another
    shape; RecordingError for one that is being recorded, and where its weights were written inside, which is lost.
    """
    own = _tensors(whole_model(model))
    names = [name for name in weights if name not in weights.not_recorded]
    _check(own, {name: weights.arrays[name].shape for name in names})
    changed = "the applied weights as changes by the training"
    refuse_recorded((own[name] for name in names), changed, "apply the weights to a copy of the model")
    # A tied tensor has several names, and its weights under each of them.
    places = {id(own[name]): (own[name], weights[name]) for name in names}
    kept = [(tensor, tensor.detach().clone()) for tensor, _ in places.values()]
    left = (*(name for name in own if name not in names), *(part for part in weights.not_recorded if part not in own))
    tensors, before = [tensor for tensor, _ in kept], _versions(tensor for tensor, _ in kept)
    try:
        _write(places.values())
        inside = [next(_VERSIONS)] * len(before)
        _set_versions(tensors, inside)
        written = {place: tensor.clone() for place, (tensor, _) in places.items() if tensor.is_inference()}
        yield replace(weights, arrays={name: weights.arrays[name] for name in names}, not_recorded=left)
        if _versions(tensors) != inside or not all(torch.equal(places[p][0], own) for p, own in written.items()):
            raise RecordingError(
                "The weights of the model changed inside memory.applied, and these changes are lost.",
                hint="Train the model outside `with memory.applied(…)`, or train a copy.",
            )
    finally:
        _write(kept)
        _set_versions(tensors, before)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by each of their names."""
    return dict(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))


def _check(own: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    missing = [name for name in shapes if name not in own]
    if missing:
        raise BadInput(
            f"The model lacks {', '.join(map(repr, missing))}, which the memory was recorded with.",
            hint="Pass the model that was recorded, not one that contains it or a part of it.",
            field="model",
        )
    for name, shape in shapes.items():
        if tuple(own[name].shape) != tuple(shape):
            raise BadInput(
                f"{name!r} is {list(own[name].shape)} in the model and {list(shape)} in the memory.",
                hint="Give the model that was recorded.",
                field="model",
            )


def _write(places: Iterable[tuple[Tensor, Tensor]]) -> None:
    for tensor, numbers in places:
        # What was made in inference mode is written only there.
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            tensor.copy_(numbers)


def _versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each was written, in the order given; what was made in inference mode does not count it."""
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


def _set_versions(tensors: Iterable[Tensor], versions: list[int]) -> None:
    """As `_versions` gives them."""
    counting = [tensor for tensor in tensors if not tensor.is_inference()]
    set_version_counters(counting, versions)
