"""Parameters and buffers that no slot explains: norms, free ones, biases of no layer, running statistics.

They are taken as the next step begins, in the training's own bits, so that a network as of any step is whole. What a
training writes to them after its update, as an average of earlier weights, is in them by then.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dualform.record.live_tensors import LiveTensors
from dualform.record.owners import Owners
from dualform.record.summary import listed
from dualform.record.taps import Tap
from dualform.store.others import STORED, OtherRow, Others, OtherTensor
from dualform.store.parameter import Parameter, whole

ALWAYS_BYTES = 1 << 20
"""What a step may always bring of them."""
_SHARE = 100
"""It may also bring one byte in so many of what else it brings."""
_MOST_BYTES = 256 << 20
"""Of one row: what may wait to be written."""


class OtherValues:
    """Used on the training's own thread."""

    def __init__(
        self,
        model: nn.Module,
        owners: Owners,
        taps: Sequence[Tap],
        initial: Mapping[str, NDArray[Any]],
        aliases: Mapping[str, str],
        sharded: Collection[str] = (),
    ) -> None:
        """`initial`: the state dict; `aliases`: further names of tapped parameters; `sharded`: names of those that are
        held in parts, by several processes, which are kept as at the end alone.

        Frozen parameters are left out, and what no optimizer holds: they stay as they were.
        """
        explained = _explained(taps, initial)
        parameters = model.named_parameters(remove_duplicate=False)
        still = {name for name, own in parameters if not (own.requires_grad and owners.hold(own))}
        names = [name for name in initial if name not in explained and name not in still and name not in aliases]
        self._sharded = [name for name in names if name in sharded]
        names = [name for name in names if name not in sharded]
        self._live = LiveTensors(model, names)
        self._tensors = [own for name in names if (own := self._tensor(name, initial[name].shape)) is not None]
        self._every = 0
        """0 before the first step is over, and where nothing is kept."""
        self._rows: list[OtherRow] = []

    def _tensor(self, name: str, shape: Sequence[int]) -> OtherTensor | None:
        """None for what the model does not hold under the name that its state dict has."""
        found = self._live.named(name) if self._live.has(name) else None
        if found is None or not _is_plain(found) or tuple(found.shape) != tuple(shape):
            return None
        kind = _kind(found)
        return OtherTensor(name, kind, tuple(shape)) if kind in STORED else None

    def begin(self, step_bytes: int) -> Others | None:
        """The first step is over, and brought so many bytes: what is kept from now on, and how often."""
        if self._sharded:
            what = (
                f"only final values are stored of sharded parameters outside recorded layers: {listed(self._sharded)}"
            )
            warnings.warn(f"{what}.", RuntimeWarning, stacklevel=2)
        size, allowed = sum(tensor.nbytes for tensor in self._tensors), max(ALWAYS_BYTES, step_bytes // _SHARE)
        if not size:
            return None
        what = f"{len(self._tensors)} parameters and buffers outside recorded layers take {size / 1e6:.3g} MB"
        if size > _MOST_BYTES:
            warnings.warn(f"{what}: only their final values are stored.", RuntimeWarning, stacklevel=2)
            return None
        self._every = -(-size // allowed)
        if self._every > 1:
            then = f"whole networks can be rebuilt after every {self._every} steps"
            warnings.warn(f"{what} and are not stored at every step: {then}.", RuntimeWarning, stacklevel=2)
        return Others(tuple(self._tensors), self._every)

    @property
    def bytes_a_step(self) -> int:
        """What a step brings of them, on average."""
        return sum(tensor.nbytes for tensor in self._tensors) // self._every if self._every else 0

    def look(self, at_step: int) -> None:
        """So many recorded steps were taken, and no other has begun yet."""
        self._rows = []
        if self._every and at_step % self._every == 0 and (content := self._content()) is not None:
            self._rows = [OtherRow(at_step, content.numpy())]

    def take(self) -> list[OtherRow]:
        """What no batch has taken along yet."""
        taken, self._rows = self._rows, []
        return taken

    def _content(self) -> Tensor | None:
        """uint8[b]; None where one of them is not there any more as it was."""
        live = [self._live.named(tensor.name) for tensor in self._tensors]
        parts = list[Tensor]()
        for own, tensor in zip(live, self._tensors, strict=True):
            if own is None or not _is_plain(own) or tuple(own.shape) != tensor.shape or _kind(own) != tensor.dtype:
                return None
            parts.append(own.detach().reshape(-1).view(torch.uint8))
        if len({part.device for part in parts}) > 1:
            parts = [part.cpu() for part in parts]
        return torch.cat(parts).cpu()


def _explained(taps: Sequence[Tap], initial: Mapping[str, NDArray[Any]]) -> set[str]:
    """Names of parameters of which every number is in a block that slots explain."""
    blocks: dict[str, list[Parameter]] = {}
    for tap in taps:
        for block in tap.parameters if tap.values else ():
            blocks.setdefault(block.name, []).append(block)
    return {name for name, own in blocks.items() if name in initial and whole(own, initial[name].shape)}


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is all here, number after number."""
    return type(tensor.data) is Tensor and tensor.layout == torch.strided and not tensor.is_meta


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
