"""dualform in one file of plain torch and NumPy: the idea, to be read.

A linear layer computes y = W x + b. SGD with learning rate lr and momentum m changes W at update s by the gradient
G_s = sum over rows t of delta_t x_t^T, where x_t is the layer's input and delta_t the loss's gradient by its output. So

    W_T = W_0 + sum over s < T of a_s(T) G_s,      a_s(T) = -lr (1 - m^(T - s)) / (1 - m)
    W_T x = W_0 x + sum over rows t of (x_t . x) a_s(T) delta_t

The layer is a memory: x_t are its keys, a_s delta_t its values, and x_t . x is the attention that the query x pays to
row t of the training. The bias is one more column of W, with the input 1. (Irie et al., ICML 2022, equations 3 to 7.)

    python clients/examples/dualform_in_200_lines.py      records a training on scikit-learn's digits, and asks it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array: TypeAlias = NDArray[Any]


class Recorder:
    """Records every linear layer of a model that SGD trains without weight decay, dampening or Nesterov's momentum."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.SGD) -> None:
        (group,) = optimizer.param_groups
        self.lr, self.momentum = group["lr"], group["momentum"]
        self.layers = {name: own for name, own in model.named_modules() if isinstance(own, nn.Linear)}
        self.initial = {name: _weight(own) for name, own in self.layers.items()}
        self._keys: dict[str, list[torch.Tensor]] = {name: [] for name in self.layers}
        self._deltas: dict[str, list[torch.Tensor]] = {name: [] for name in self.layers}
        self._columns: list[Mapping[str, Array]] = []
        self._handles = [own.register_forward_hook(self._hook(name)) for name, own in self.layers.items()]
        self._recording = False

    @contextmanager
    def step(self, **columns: Array) -> Iterator[None]:
        """One update. `columns`: what each row of the batch is, such as its label."""
        self._columns.append({name: np.asarray(own) for name, own in columns.items()})
        self._recording = True
        yield
        self._recording = False

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
            if self._recording:
                self._keys[name].append(args[0].detach())
                output.register_hook(self._deltas[name].append)  # it comes with the backward pass

        return hook

    def memory(self) -> Memory:
        for handle in self._handles:
            handle.remove()
        sizes = [len(next(iter(own.values()))) for own in self._columns]
        step = np.repeat(np.arange(len(sizes)), sizes)
        columns = {name: np.concatenate([own[name] for own in self._columns]) for name in self._columns[0]}
        keys = {name: torch.cat(own).double().numpy() for name, own in self._keys.items()}
        deltas = {name: torch.cat(own).double().numpy() for name, own in self._deltas.items()}
        return Memory(self.initial, keys, deltas, {"step": step, **columns}, len(sizes), self.lr, self.momentum)


def _weight(layer: nn.Linear) -> Array:
    """float64[d_out, d_in + 1]: the weight, with the bias as its last column."""
    return np.column_stack([layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()])


@dataclass
class Memory:
    """All slots of a training. Shapes: T slots, d_in and d_out of a layer."""

    initial: Mapping[str, Array]
    """By layer, float64[d_out, d_in + 1]."""
    keys: Mapping[str, Array]
    """By layer, float64[T, d_in]."""
    deltas: Mapping[str, Array]
    """By layer, float64[T, d_out]."""
    columns: Mapping[str, Array]
    """What each slot is: its step, and what was passed to `Recorder.step`."""
    steps: int
    lr: float
    momentum: float

    def topk(self, layer: str, query: Array, k: int, where: Array | None = None) -> tuple[Array, Array]:
        """The k slots of greatest attention score x_t . x, best first, and their scores."""
        scores = self.keys[layer] @ query
        slots = np.arange(len(scores)) if where is None else np.flatnonzero(where)
        best = slots[np.lexsort((slots, -scores[slots]))[:k]]
        return best, scores[best]

    def group_sum(self, layer: str, query: Array, by: str) -> dict[object, float]:
        """How much attention goes to each value of a column."""
        scores = self.keys[layer] @ query
        column = self.columns[by]
        return {own: float(scores[column == own].sum()) for own in np.unique(column).tolist()}

    def coefficients(self, at_step: int) -> Array:
        """a_s(T) of each slot: what its gradient has moved the weights by after `at_step` updates."""
        left = np.maximum(at_step - self.columns["step"], 0)
        return -self.lr * (1 - self.momentum**left) / (1 - self.momentum)

    def weight(self, layer: str, where: Array | None = None, at_step: int | None = None) -> Array:
        """float64[d_out, d_in + 1]: with only some slots' terms (ablation), as of a step (rewind)."""
        values = self.coefficients(self.steps if at_step is None else at_step)[:, None] * self.deltas[layer]
        keys = np.column_stack([self.keys[layer], np.ones(len(values))])
        if where is not None:
            keys, values = keys[where], values[where]
        return self.initial[layer] + values.T @ keys

    def contributions(self, layer: str, query: Array, by: str) -> dict[object, Array]:
        """What the slots of each value of a column add to the layer's output; with W_0 x + b_T they add up to it."""
        values = self.coefficients(self.steps)[:, None] * self.deltas[layer]
        scores = self.keys[layer] @ query
        column = self.columns[by]
        return {own: scores[column == own] @ values[column == own] for own in np.unique(column).tolist()}

    def reconstruction_error(self, layer: str, trained: nn.Linear) -> float:
        """||W_T - rebuilt|| / ||W_T - W_0||: how far the rebuilt weights are from the trained ones."""
        real = _weight(trained)
        return float(np.linalg.norm(real - self.weight(layer)) / np.linalg.norm(real - self.initial[layer]))

    @contextmanager
    def applied(self, model: nn.Module, where: Array | None = None, at_step: int | None = None) -> Iterator[None]:
        """The model with the weights that `where` and `at_step` leave; it has its own again at the end."""
        before = {name: own.clone() for name, own in model.state_dict().items()}
        state = dict(before)
        for name in self.initial:
            weight = torch.from_numpy(self.weight(name, where, at_step)).float()
            state |= {f"{name}.weight": weight[:, :-1], f"{name}.bias": weight[:, -1]}
        model.load_state_dict(state)
        yield
        model.load_state_dict(before)


def main() -> None:
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    old, new = torch.where(y < 5)[0], torch.where(y >= 5)[0]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    recorder = Recorder(model, optimizer)
    for task, part in enumerate((old, new)):
        for _ in range(200):
            batch = part[torch.randint(len(part), (50,))]
            with recorder.step(task=np.full(50, task), label=y[batch].numpy(), sample=batch.numpy()):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    memory = recorder.memory()

    def accuracy() -> str:
        return f"{(model(x[old]).argmax(1) == y[old]).float().mean():.0%}"

    print("digits 0-4, now:", accuracy())
    with memory.applied(model, where=memory.columns["task"] == 0):
        print("without the second task:", accuracy())
    with memory.applied(model, at_step=204):
        print("4 updates into it:", accuracy())
    slots, scores = memory.topk("0", x[old[0]].double().numpy(), k=3)
    print("attends most to the samples", memory.columns["sample"][slots], "with scores", scores.round(2))
    for name, layer in recorder.layers.items():
        print(f"layer {name} is rebuilt with an error of {memory.reconstruction_error(name, layer):.1e}")


if __name__ == "__main__":
    main()
