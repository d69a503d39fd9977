"""The groups that a ledger has: of the slots of all layers together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.query.groups import check_spaces, group_entries, joined_keys
from dualform.query.view import Check, View
from dualform.query.where import mask
from dualform.store.layer import Layer


def groups_of_layers(
    view: View, layers: Mapping[str, Layer], by: tuple[str, ...], check: Check
) -> tuple[tuple[GroupKey, ...], NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The groups of all layers' slots, how many slots each has in all of their spaces, and by layer the group of each
    entry. Raises NotFound for a column that there is not, BadInput where one says different things in several spaces.
    """
    every = {name: mask.selection(view, layer, None, check) for name, layer in layers.items()}
    own = {name: group_entries(view, layer, every[name], by, check) for name, layer in layers.items()}
    check_spaces(view, {layer.space for layer in layers.values()}, by)
    keys, places = joined_keys({name: groups.keys for name, groups in own.items()})
    numbers = {name: places[name][groups.numbers] for name, groups in own.items()}
    counts = np.zeros(len(keys), dtype=np.int64)
    for space in {layer.space for layer in layers.values()}:
        # A slot that several layers have counts once.
        of_slots = np.full(view.snapshot.space(space).count, -1, dtype=np.int64)
        for name, layer in layers.items():
            if layer.space == space:
                slots = view.snapshot.entries(name).slots
                of_slots[slice(None) if slots is None else slots] = numbers[name]
        counts += np.bincount(of_slots[of_slots >= 0], minlength=len(keys))
    return keys, counts, numbers
