"""The taps for nn.MultiheadAttention: its four products are layers, `<module>.q`, `.k`, `.v` and `.out_proj`.

Shapes: N sequences of L queries and S keys; E the width of a query, and d_out of each layer. Keys of layers lie as the
module's arguments do, [N, L, d_in], [L, N, d_in] or [L, d_in], so that they align with those of a linear layer behind.

The module computes the products without calling a module, of q, k and v mostly all at once, so a watcher tells each
layer of its part. While it is watched it does not take the fused path, which would show nothing. What bias_k, bias_v
and a zero that is attended to add to the sequence comes after the products.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils import parametrize

from dualform.errors import RecordingError
from dualform.record.layout import KeyForm
from dualform.record.taps.tap import Call, Listener, ModuleTap, Tap
from dualform.record.taps.watcher import SEES_ATTENTION, MatrixProduct, Watcher, block_of, saved_key
from dualform.store.layer import Parameter

_LETTERS = "qkv"
_PARTS = (*_LETTERS, "out_proj")


class TappedAttention(ModuleTap, module_type=nn.MultiheadAttention):
    """Finds the four layers of a module, which itself is none."""

    covered = ("out_proj",)

    @classmethod
    def batch_dim_of(cls, module: nn.Module) -> int | None:
        assert isinstance(module, nn.MultiheadAttention)
        return 0 if module.batch_first else 1

    @classmethod
    def refusal(cls, module: nn.Module) -> str:
        assert isinstance(module, nn.MultiheadAttention)
        if not SEES_ATTENTION:
            return "this version of torch computes attention in a way that shows no products"
        if parametrize.is_parametrized(module) or parametrize.is_parametrized(module.out_proj):
            return "a weight of it is parametrized: the optimizer does not update the weight itself"
        if not all(isinstance(getattr(*_owner(module, name)), nn.Parameter) for name in _weights(module).values()):
            return "a weight of it is computed from others"
        if type(module).forward is not nn.MultiheadAttention.forward or "forward" in vars(module):
            return f"{type(module).__name__} has a forward of its own"
        return ""

    @classmethod
    def taps_of(cls, name: str, module: nn.Module, values: bool = True) -> Sequence[Tap]:
        assert isinstance(module, nn.MultiheadAttention)
        watcher = _AttentionWatcher(module)
        return [_Part(watcher, name, part, weight, values) for part, weight in _weights(module).items()]


def _weights(module: nn.MultiheadAttention) -> dict[str, str]:
    """By layer, the name of the parameter that its weight is a block of."""
    one = module._qkv_same_embed_dim
    own = {letter: "in_proj_weight" if one else f"{letter}_proj_weight" for letter in _LETTERS}
    return {**own, "out_proj": "out_proj.weight"}


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, own = name.rpartition(".")
    return module.get_submodule(path), own


class _OtherTokens(KeyForm):
    """Keys of what is attended to, where that is not what attends: tokens of another sequence."""

    space = "memory"


class _Part(Tap):
    """One of the four layers."""

    def __init__(self, watcher: _AttentionWatcher, module: str, part: str, weight: str, values: bool) -> None:
        prefix = f"{module}." if module else ""
        super().__init__(f"{prefix}{part}", values)
        self._watcher, self.part, self.attends = watcher, part, part in ("q", "out_proj")
        self.batch_dim = TappedAttention.batch_dim_of(watcher.module)
        self.weight: Tensor = watcher.module.get_parameter(weight)
        self._owner = _owner(watcher.module, weight)
        self.d_out, self.d_in = watcher.module.embed_dim, self.weight.shape[1]
        first = _LETTERS.index(part) * self.d_out if part in _LETTERS else 0
        of_three = (first, first + self.d_out)
        self.rows = of_three if weight == "in_proj_weight" else (0, self.d_out)
        self.parameters = {Parameter(f"{prefix}{weight}", 0, self.d_in, rows=self.rows): self.weight}
        bias, rows = ("in_proj_bias", of_three) if part in _LETTERS else ("out_proj.bias", None)
        own: Tensor | None = getattr(*_owner(watcher.module, bias))
        if own is not None:
            self.parameters[Parameter(f"{prefix}{bias}", self.d_in, self.d_in + 1, rows=rows)] = own
        self.crossed: bool | None = None
        """Whether its keys are of other tokens than the queries of the module; None before its first call."""

    @property
    def computed_with(self) -> Tensor:
        """What stands in the weight's place now: where it is sharded over processes, all of it is put there to compute
        with.
        """
        found: Tensor = getattr(*self._owner)
        return found

    def attach(self, listener: Listener) -> None:
        self._watcher.taps.append(self)
        self._watcher.attach(listener)

    def detach(self) -> None:
        self._watcher.taps = [tap for tap in self._watcher.taps if tap is not self]
        if not self._watcher.taps:
            self._watcher.detach()

    def error_of(self, key: Tensor, kept: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
        (gradient,) = gradients
        assert gradient is not None
        assert self.batch_dim is not None
        # Products of several layers end with the last rows of the weight.
        width = gradient.shape[-1]
        start = 0 if width == self.d_out else self.rows[0] + width - len(self.weight)
        own = gradient[..., start : start + self.d_out]
        return self._watcher.laid(own, None if key.dim() == 2 else key.shape[self.batch_dim])

    def told(self, listener: Listener, crossed: bool) -> bool:
        """Whether a call can be taken: keys are always of the tokens that they were of at first."""
        crossed = crossed and not self.attends
        if self.crossed is None:
            self.crossed = crossed
            self.key_form = _OtherTokens() if crossed else self.key_form
        if self.crossed is not crossed:
            what = (
                "attended to its own tokens at first, and now to others",
                "attended to other tokens at first, and now to its own",
            )
            message = f"layer {self.name!r} {what[self.crossed]}"
            listener.refused(self, RecordingError(f"{message}.", hint="Leave it out with layers=."))
        return self.crossed is crossed


class _AttentionWatcher(Watcher):
    module: nn.MultiheadAttention
    compiles = True

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__(module)
        self.taps: list[_Part] = []
        """Those that are told."""
        self._batch: int | None = None
        """N of the call that runs; None where it has no batch."""
        self._crossed = False
        self._given: dict[str, weakref.ref[Tensor]] = {}
        """By part, what the call that runs was given."""
        self._projected = 0
        """Rows of the packed weight that products of the call were seen with."""

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(("query", "key"), args, strict=False)) | kwargs
        query: Tensor = given["query"]
        self._batch = None if query.dim() == 2 else query.shape[0 if self.module.batch_first else 1]
        self._crossed = given["key"] is not query
        if not is_compiling():
            value = given.get("value", given["key"])
            self._given = dict(zip(_PARTS, map(weakref.ref, (query, given["key"], value, query)), strict=True))
        self._projected = 0

    def given(self, part: str) -> Tensor | None:
        """What the call that runs was given, of which the keys of a part are made."""
        return None if is_compiling() or part not in self._given else self._given[part]()

    def laid(self, tensor: Tensor, batch: int | None) -> Tensor:
        """[L, N, d] or [L N, d], as torch computes with it, as the module's arguments lie."""
        if batch is None:
            return tensor.reshape(-1, tensor.shape[-1])
        whole = tensor.reshape(-1, batch, tensor.shape[-1])
        return whole.transpose(0, 1) if self.module.batch_first else whole

    def multiplied(self, listener: Listener, product: MatrixProduct, output: Tensor) -> Tensor | None:
        taps = self._taps_of(product.weight)
        saved = saved_key(product.key) if taps else product.key
        for tap in taps:
            if tap.told(listener, self._crossed):
                key = self.laid(saved, self._batch).to(output.dtype)
                call = Call(key, (output,), raw=not product.key.requires_grad, argument=self.given(tap.part))
                (output,) = tap.passed(listener, call)
        return output if taps else None

    def _taps_of(self, weight: Tensor) -> list[_Part]:
        """Those whose weights a product was made with, or may have been."""
        if not is_compiling():
            blocks = [(tap, block_of(weight, tap.computed_with)) for tap in self.taps]
            return [tap for tap, own in blocks if own and own.rows[0] <= tap.rows[0] and tap.rows[1] <= own.rows[1]]
        # Code that is traced does not tell where a part of a weight begins; they come in order.
        if whole := [tap for tap in self.taps if tap.weight is weight]:
            return whole
        first, self._projected = self._projected, self._projected + len(weight)
        packed = [tap for tap in self.taps if len(tap.weight) > tap.d_out]
        return [tap for tap in packed if first <= tap.rows[0] and tap.rows[1] <= self._projected]

    def unseen(self, listener: Listener) -> None:
        for tap in self.taps:
            tap.mode(listener)  # which tells why
