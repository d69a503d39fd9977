"""The states of torch's random number generators: taken at the beginning of a step, and put back to run it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def random_states(model: nn.Module) -> dict[str, bytes]:
    """By device, of the CPU and of each GPU that the model is on."""
    return {name: _state(device).numpy().tobytes() for name, device in _devices(model).items()}


@contextmanager
def random_states_as(states: Mapping[str, bytes], model: nn.Module) -> Iterator[None]:
    """Draw random numbers inside as from states of `random_states`; afterwards as if nothing had been drawn. Where
    states are missing, draw inside from those of now.
    """
    devices = _devices(model)
    before = {name: _state(device) for name, device in devices.items()}
    try:
        for name in states.keys() & devices.keys():
            _put(devices[name], torch.frombuffer(bytearray(states[name]), dtype=torch.uint8))
        yield
    finally:
        for name, state in before.items():
            _put(devices[name], state)


def _devices(model: nn.Module) -> dict[str, torch.device]:
    found = (torch.device("cpu"), *(own.device for own in model.parameters() if own.device.type == "cuda"))
    return {str(device): device for device in found}


def _state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)


def _put(device: torch.device, state: Tensor) -> None:
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)
