"""What a device holds: copies of blocks that still live, while there is room."""

from __future__ import annotations

import gc

import numpy as np

from dualform.query.engine import Engine
from dualform.query.score.backends.torch import DeviceCopies, TorchDeviceBackend
from tests.query import arrays


class Device:
    def __init__(self, room: int) -> None:
        self.room, self.uploads = room, 0

    def upload(self, block):
        self.uploads += 1
        self.room -= block.nbytes
        return block.copy()

    def copies(self) -> DeviceCopies:
        return DeviceCopies(self.upload, lambda: self.room)


def test_a_block_is_copied_once():
    device, keys = Device(1 << 20), np.ones((100, 8), np.float32)
    copies = device.copies()
    for _ in range(3):
        assert np.array_equal(copies.get(keys[20:50]), keys[20:50])
    assert device.uploads == 1
    copies.get(keys[20:51])
    assert (device.uploads, len(copies)) == (2, 2)


def test_a_copy_goes_with_its_block():
    device, keys = Device(1 << 20), np.ones((100, 8), np.float32)
    copies = device.copies()
    copies.get(keys[:10])
    copies.get(keys[10:])
    del keys
    gc.collect()
    assert len(copies) == 0


def test_what_does_not_fit_is_copied_for_each_question():
    device, keys = Device(10_000), np.ones((100, 8), np.float32)
    copies = device.copies()
    copies.get(keys)
    copies.get(keys)
    assert (device.uploads, len(copies)) == (2, 0)


def test_a_device_gives_the_same_hits_whatever_fits(rng):
    keys = rng.normal(size=(3000, 16)).astype(np.float32)
    memory = arrays.memory({"0": keys}, {"label": [i % 3 for i in range(3000)]})
    expected = arrays.engine(memory).topk("0", keys[:5], k=7)
    for room in (0, 1 << 30):
        engine = Engine(memory, TorchDeviceBackend("cpu", lambda room=room: room))
        for _ in range(2):
            hits = engine.topk("0", keys[:5], k=7)
            assert hits.ids.tolist() == expected.ids.tolist()
            assert hits.flat_scores.tobytes() == expected.flat_scores.tobytes()
            masked = engine.topk("0", keys[:5], k=7, where="label = 1")
            assert all(slot % 3 == 1 for slot in masked.ids)
