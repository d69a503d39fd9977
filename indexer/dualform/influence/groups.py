"""The groups that a ledger has: of the slots of all layers together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dualform.answers import GroupKey
from dualform.query.groups import group_entries
from dualform.query.view import Check, View
from dualform.query.where import mask
from dualform.store.layer import Layer


def groups_of_layers(
    view: View, layers: Mapping[str, Layer], by: tuple[str, ...], check: Check
) -> tuple[tuple[GroupKey, ...], NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """The groups of all layers' slots, how many slots each has in all of their spaces, and by layer the group of each
    entry.
    """
    every = {name: mask.selection(view, layer, None, check) for name, layer in layers.items()}
    own = {name: group_entries(view, layer, every[name], by, check) for name, layer in layers.items()}
    keys = list(dict.fromkeys(key for groups in own.values() for key in groups.keys))
    keys.sort(key=lambda key: [(value is None, value if value is not None else 0) for value in key])
    number = {key: place for place, key in enumerate(keys)}
    counts, numbers, counted = np.zeros(len(keys), dtype=np.int64), {}, set[str]()
    for name, groups in own.items():
        places = np.array([number[key] for key in groups.keys], dtype=np.int64)
        numbers[name] = places[groups.numbers]
        if layers[name].space not in counted:
            counted.add(layers[name].space)
            counts[places] += groups.counts
    return tuple(keys), counts, numbers
