"""A training that is recorded in several folders, one run after the other."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import dualform
from tests.query.trained import _copy as state_of
from tests.record.listed import batches, small_net
from tests.trainings import learn

FIRST, STEPS = 12, 30
LAYERS = ("0", "2", "4")
SETTINGS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}


class Training:
    """One network under SGD, recorded in as many folders as it is asked to."""

    def __init__(self, **settings) -> None:
        torch.manual_seed(0)
        self.model = small_net()
        self.settings = SETTINGS | settings
        self.optimizer = torch.optim.SGD(self.model.parameters(), **self.settings)
        self.done = 0
        self.history = [state_of(self.model)]

    def resume(self, momentum: str = "kept") -> None:
        """As another process does, from a checkpoint; the momentum is kept, lost, or another."""
        self.model = copy.deepcopy(self.model)
        before = copy.deepcopy(self.optimizer.state_dict())
        self.optimizer = torch.optim.SGD(self.model.parameters(), **self.settings)
        if momentum != "lost":
            self.optimizer.load_state_dict(before)
        if momentum == "another":
            for state in self.optimizer.state.values():
                state["momentum_buffer"].mul_(0.5)

    def record(self, path, until: int):
        with dualform.Recorder(self.model, self.optimizer, path) as recorder:
            for x, y in batches(STEPS)[self.done : until]:
                with recorder.step(dataset="odd" if self.done % 2 else "even", label=y, sample=np.arange(8)):
                    learn(self.optimizer, cross_entropy(self.model(x), y))
                self.done += 1
                self.history.append(state_of(self.model))
            recorder.query_set("test", batches(1)[0][0])
        return path
