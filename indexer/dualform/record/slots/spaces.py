"""Which slot space each layer belongs to.

Slot spaces: which one a layer's slots belong to, and what each space is found to be.

A key [B, d_in] makes the space "sample", a key [B, L..., d_in] the space "token"; `spaces=` names others. A routed
layer, whose rows the model chooses (an expert's), has a space of its own. The patches of convolutions are slots of
"patch" where all of them have outputs of one size at first, else each has a space of its own. So has an embedding whose
rows are none of the batch's, as that of positions, which are looked up once for all rows: nothing is known of them.

Whether numbers that are looked up are of rows of the batch, or the same for all rows, as positions are.

Shapes: B rows, L tokens of a row.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from math import prod

from dualform.errors import BadInput, NotFound
from dualform.patterns import matches
from dualform.record.layout import RecordedSpace, Signal
from dualform.record.taps import Tap
from dualform.store.maintenance.attributions import TABLES as ATTRIBUTIONS
from dualform.store.tables import OPTIONAL, OTHERS, SHARES, TABLES

Leading = tuple[int, ...]


def lookup_of(layer: str, own: Signal, others: Sequence[Signal], said: int | None) -> tuple[bool, str]:
    """Whether the slots of a call belong to no row of the batch, or may not; and what is in doubt, one sentence or
    empty. `others`: the calls of the step in all spaces whose rows are the batch's; `said`: B, where entries have rows.
    """
    leading, counts = own.leading, _row_counts(others, said)
    tells = [other.leading for other in others if not other.form.looks_up]
    if counts and not _may_have_rows(leading, counts, tells):
        return True, ""
    if own.form.shared(own.keys, leading):
        one = 1 in leading[:2] and len(leading) > 1 and bool(counts) and all(1 in other[:2] for other in tells)
        return not one, "" if one else _doubt(layer, leading, "its numbers are those of positions")
    tokens = [other.leading for other in others if len(other.leading) > 1]
    square = any(leading == (other[1],) and (other[0] == other[1] or leading not in tells) for other in tokens)
    return square, _doubt(layer, leading, "there are as many positions") if square else ""


def _row_counts(others: Sequence[Signal], said: int | None) -> set[int]:
    """What B may be; empty where nothing tells."""
    if said is not None:
        return {said}
    own = [other for other in others if not other.form.looks_up]
    deep = [set(other.leading[: 2 if other.form.batch_axis is None else 1]) for other in own if len(other.leading) > 1]
    flat = {other.leading[0] for other in own if len(other.leading) == 1}
    if not deep:
        return flat
    agreed = set.intersection(*deep)
    return (agreed & flat) or agreed or set.union(*deep) | flat


def _may_have_rows(own: Leading, counts: set[int], others: Sequence[Leading]) -> bool:
    """Whether numbers of some dimensions may be of rows of the batch."""
    if any(prod(own) == prod(other) for other in others if len(own) > 1 or len(other) > 1):
        return True
    if len(own) == 1:
        return own[0] in counts
    once = own[0] == 1 and 1 not in counts and not any(1 in other[:2] for other in others)
    return not once and not counts.isdisjoint(own[:2])


def _doubt(layer: str, leading: Leading, why: str) -> str:
    what = "one number of each row or of each position" if len(leading) == 1 else "rows of the batch"
    space = "sample" if len(leading) == 1 else "token"
    return (
        f"whether layer {layer!r} saw {what} cannot be told from {list(leading)}: {why}. The rows of its slots "
        f"are unknown. If it sees rows, pass spaces={{{layer!r}: {space!r}}}; otherwise, routed=[{layer!r}]."
    )


RESERVED = frozenset({"slots", "samples", "commits", *TABLES, *OPTIONAL, *OTHERS, *SHARES, *ATTRIBUTIONS})
"""Names of tables and views of the store."""
DEFAULTS = ("sample", "token")
"""Spaces of layers that no name was given for: of rows, and of tokens."""


class Spaces:
    """The spaces of one recording. A layer stays in the space that it was first put into."""

    def __init__(
        self, taps: Sequence[Tap], named: Mapping[str, str] | None = None, routed: Sequence[str] | None = None
    ) -> None:
        """`named`: name or pattern of layers -> space; `routed`: names or patterns of layers whose rows the model
        chooses.

        Raises NotFound for a pattern that no layer matches, BadInput for a name that no space can have.
        """
        layers = [tap.name for tap in taps]
        _check_patterns("spaces", named or (), layers)
        _check_patterns("routed", routed or (), layers)
        for space in (named or {}).values():
            _check_name(space)
        self._defaults = list(dict.fromkeys([*DEFAULTS, *(t.key_form.space for t in taps if t.key_form.space)]))
        """Spaces of layers that no name was given for: of rows, of tokens, and of what a key form says."""
        _check_case([*self._defaults, *dict.fromkeys((named or {}).values())])
        self.all_layers = layers
        """Those that may get slots."""
        self._routed = {name for name in layers if any(matches(name, pattern) for pattern in routed or ())}
        self._named = {
            name: next(space for pattern, space in (named or {}).items() if matches(name, pattern))
            for name in layers
            if any(matches(name, pattern) for pattern in named or ())
        }
        self.named = set(self._named)
        """Layers whose space was given by name."""
        self._refuse_mixed(layers)
        for name in layers:
            if name in self._routed and name not in self._named:
                self._named[name] = self._own_space(name)
        self.known: dict[str, RecordedSpace] = {}
        """By name, of those that have had slots."""
        self.layers: dict[str, str] = {}
        """Layer -> space, of those that have had slots."""
        self.token_layers: set[str] = set()
        """Layers whose keys have token dimensions."""
        axes = {tap.name: tap.key_form.batch_axis for tap in taps}
        self.axes: dict[str, int] = {name: axis for name, axis in axes.items() if axis is not None}
        """Layer -> the axis of its keys that is the batch by its kind, or was said of it alone to be."""
        self.shown: set[str] = set()
        """Layers whose own batches showed that they have the batch where their space has it."""
        self._warned: set[str] = set()

    def space_of(self, layer: str, leading: tuple[int, ...]) -> str:
        """The space of a layer, by its name or by its key's dimensions before the last."""
        if layer in self.layers:
            return self.layers[layer]
        return self._named.get(layer) or ("token" if len(leading) > 1 else "sample")

    def meet(self, calls: Mapping[str, Sequence[Signal]], rows: int | None) -> None:
        """Give spaces to layers that are called for the first time and whose slots are no tokens, or no rows of the
        batch; `calls` of a step by layer, `rows`: B, where what was said has rows.
        """
        new = {name: own[0] for name, own in calls.items() if name not in self.layers and name not in self._named}
        for space in dict.fromkeys(signal.form.space for signal in new.values() if signal.form.space):
            sizes = {name: signal.form.places for name, signal in new.items() if signal.form.space == space}
            alike = len(set(sizes.values())) == 1 and space not in self.known
            for name in sizes:
                self._named[name] = space if alike else self._own_space(name)
        for name, signal in new.items():
            if not signal.form.looks_up:
                continue
            others = [other for of, own in calls.items() for other in own if of != name and of not in self._routed]
            shared, doubt = lookup_of(name, signal, others, rows)
            if doubt:
                self.warn_once(f"layer {name}", doubt)
            if shared:
                self._routed.add(name)
                self._named[name] = self._own_space(name)

    def _own_space(self, layer: str) -> str:
        return own_name(layer, {*self._defaults, *self._named.values()})

    def check_names(self, spoken: Sequence[str]) -> None:
        """Raises BadInput for a name of a space that there is not."""
        names = sorted({*self.known, *self._named.values()})
        for space in spoken:
            if space not in names:
                raise BadInput(
                    f"There is no space {space!r}.", hint=f"Spaces: {', '.join(map(repr, names))}.", field="at"
                )

    @property
    def names(self) -> set[str]:
        """Of every space there may be."""
        return {*DEFAULTS, *self.known, *self._named.values()}

    def check_axes(self, spoken: Sequence[str]) -> None:
        """Raises BadInput for a name in batch_dim that is neither a space nor a layer."""
        for name in spoken:
            if name not in self.names and name not in self.all_layers:
                raise BadInput(
                    f"batch_dim names {name!r}, which is neither a space nor a layer.",
                    hint=f"Spaces: {', '.join(map(repr, sorted(self.names)))}.",
                    field="batch_dim",
                )

    def axis_of(self, layer: str) -> int:
        """Which axis of a layer's keys is the batch, as far as it is known; else the first."""
        space = self.known.get(self.layers.get(layer, ""))
        return self.axes.get(layer, 0 if space is None else space.axis)

    def warn_once(self, about: str, message: str) -> None:
        """Warn of what a recording goes on without: once of each layer or space."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def routed(self, layer: str) -> bool:
        return layer in self._routed

    def admit(self, layer: str, space: RecordedSpace, tokens: bool) -> None:
        """A layer had its first slots."""
        self.known.setdefault(space.name, space)
        self.layers[layer] = space.name
        if tokens:
            self.token_layers.add(layer)

    def _refuse_mixed(self, layers: Sequence[str]) -> None:
        of: dict[str, str] = {}
        for name in layers:
            space = self._named.get(name, "")
            other = of.setdefault(space, name)
            apart = (name in self._routed) != (other in self._routed)
            if space and (apart or (name in self._routed and space in DEFAULTS)):
                raise BadInput(
                    f"layer {name!r} shares space {space!r} with layers that are not routed.",
                    hint="Put routed layers into another space: Recorder(spaces={layer: space}).",
                    field="spaces",
                )


def lost_call(layer: str, reason: str) -> str:
    """The warning of a call of a layer that has no slots."""
    lost = f"{reason}. The slots of that call are not recorded, and scores of layer {layer!r} leave them out"
    return f"{lost}, also in later steps."


def _check_patterns(field: str, patterns: Mapping[str, str] | Sequence[str], layers: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(matches(name, pattern) for name in layers):
            known = ", ".join(repr(name) for name in layers)
            raise NotFound(
                f"{field}={pattern!r} does not match any recorded layer.", hint=f"Layers: {known}.", field=field
            )


def _check_name(space: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", space):
        raise BadInput(
            f"{space!r} cannot name a space.",
            hint="Use letters, digits and underscores, with a letter first.",
            field="spaces",
        )
    if space.lower() in RESERVED or space.lower().startswith("extents_"):
        raise BadInput(
            f"{space!r} cannot name a space: it is the name of a table.", hint="Choose another name.", field="spaces"
        )


def _check_case(spaces: Sequence[str]) -> None:
    of: dict[str, str] = {}
    for space in spaces:
        other = of.setdefault(space.lower(), space)
        if other != space:
            raise BadInput(
                f"spaces {other!r} and {space!r} differ only in case, which SQL ignores.",
                hint="Choose another name.",
                field="spaces",
            )


def own_name(layer: str, taken: set[str]) -> str:
    """A layer's name, or that of a part of the model, as the name of a space that is none of `taken`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", layer)
    if not name[:1].isalpha() or name.lower() in RESERVED or name.lower().startswith("extents_"):
        name = f"layer_{name}"
    own, number = name, 2
    while own.lower() in {other.lower() for other in taken}:
        own, number = f"{name}_{number}", number + 1
    return own
