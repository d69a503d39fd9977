"""Fifteen small trainings: of each kind of layer, optimizer, precision and way to record."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import dualform
from dualform.record.ranks import Ranks

ROWS, STEPS, CLASSES, LENGTH, WORDS = 8, 9, 4, 6, 13


@dataclass
class Training:
    """A recorded training, and what of it is asked."""

    model: nn.Module
    layers: tuple[str, ...]
    """The layers that are asked, the output layer last."""
    inputs: Tensor
    """Of examples that the model is asked about."""
    labels: Tensor
    columns: tuple[str, ...] = ("dataset", "label")
    filters: tuple[str, ...] = ("dataset = 'a'", "step < 6", "dataset <> 'a' AND step > 2")
    traced: bool = True
    """Whether the examples' gradients are stored, and a ledger is asked for."""
    keys: bool = True


@dataclass
class Data:
    """`a` for the first half of the steps, then `b`: rows of 40 samples, drawn with a seed."""

    inputs: Tensor
    labels: Tensor
    seed: int = 5
    batches: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.batches = [torch.randint(len(self.inputs), (ROWS,), generator=generator) for _ in range(STEPS)]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        for step, index in enumerate(self.batches):
            weight = torch.linspace(0, 1, ROWS) + step
            said = {"dataset": "a" if step < STEPS // 2 else "b", "label": self.labels[index], "sample": index}
            yield self.inputs[index], self.labels[index], {**said, "weight": weight.double()}


def vectors(*shape: int) -> Data:
    generator = torch.Generator().manual_seed(1)
    return Data(torch.randn(40, *shape, generator=generator), torch.randint(CLASSES, (40,), generator=generator))


def texts() -> Data:
    generator = torch.Generator().manual_seed(2)
    return Data(
        torch.randint(WORDS, (40, LENGTH), generator=generator), torch.randint(CLASSES, (40,), generator=generator)
    )


def steps_of(recorder: Any, model: nn.Module, optimizer: torch.optim.Optimizer, data: Data) -> None:
    """Every step of a training, and nothing else."""
    for x, y, said in data:
        with recorder.step(**said):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()


def run(
    recorder: dualform.Recorder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    clip: float | None = None,
    call: Callable[[Tensor], Tensor] | None = None,
    steps: range = range(STEPS),
    traced: bool = True,
) -> None:
    """Train on the batches of `steps`, and after the last of all store the query sets."""
    for step, (x, y, said) in enumerate(data):
        if step not in steps:
            continue
        with recorder.step(**said):
            optimizer.zero_grad()
            cross_entropy((call or model)(x), y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    if steps.stop == STEPS:
        x, y = data.inputs[:4], data.labels[:4]
        recorder.query_set("test", x, label=y)
        if traced:
            recorder.query_set("traced", x, label=y, loss=nn.CrossEntropyLoss(reduction="none"))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 7, bias=False), nn.Tanh(), nn.Linear(7, CLASSES))


MLP = ("0", "2", "4")


def trained(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    layers: tuple[str, ...],
    clip: float | None = None,
    call: Callable[[Tensor], Tensor] | None = None,
    traced: bool = True,
    options: dict[str, Any] | None = None,
    **asked: Any,
) -> Training:
    with dualform.Recorder(model, optimizer, path, quiet=True, **(options or {})) as recorder:
        run(recorder, model, optimizer, data, clip, call, traced=traced)
    return Training(model, layers, data.inputs[4:7], data.labels[4:7], traced=traced, **asked)


def sgd(path: Path) -> Training:
    """Momentum, weight decay, a schedule, clipping; samples with pictures."""
    model, data = mlp(), vectors(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.95)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    with dualform.Recorder(model, optimizer, path, quiet=True, label_names={"a": list("wxyz")}) as recorder:
        recorder.previews("a", dualform.PreviewSet.images(data.inputs.reshape(40, 2, 3)))
        run(recorder, model, optimizer, data, clip=0.5)
    return Training(model, MLP, data.inputs[4:7], data.labels[4:7])


def adamw(path: Path) -> Training:
    """With a normalisation, whose parameters belong to no layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, CLASSES))
    return trained(path, model, torch.optim.AdamW(model.parameters(), lr=0.01), vectors(6), ("0", "3"), clip=1.0)


def convolution(path: Path) -> Training:
    """Strides, groups, batch normalisation; Nesterov momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 2, stride=2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, nesterov=True)
    return trained(path, model, optimizer, vectors(2, 4, 4), ("0", "3.1", "6"))


class Reader(nn.Module):
    """Words to a class by two blocks of attention; `again` runs a block, as gradient checkpointing does."""

    def __init__(self, again: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, 8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head, self.again = nn.Linear(8, CLASSES), again

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = self.again(block, x)
        return self.head(x.mean(1))


READER = ("embedding", "blocks.0.self_attn.q", "blocks.1.linear2", "head")


def attention(path: Path) -> Training:
    model = Reader()
    return trained(path, model, torch.optim.AdamW(model.parameters(), lr=5e-3), texts(), READER, clip=1.0)


def checkpointed(path: Path) -> Training:
    """A network whose blocks run again in the backward pass."""
    model = Reader(lambda block, x: checkpoint(block, x, use_reentrant=False))
    return trained(path, model, torch.optim.SGD(model.parameters(), lr=0.05), texts(), READER, traced=False)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.lstm = nn.Embedding(WORDS, 6), nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(words))[0][:, -1])


def lstm(path: Path) -> Training:
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-7)
    layers = ("embedding", "lstm", "head")
    return trained(path, model, optimizer, texts(), layers, clip=0.3)


class Mixture(nn.Module):
    """Each token to one of two experts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)
        self.router, self.experts = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        flat, gates = x.reshape(-1, 6), self.router(x).softmax(-1).reshape(-1, 2)
        chosen, out = gates.argmax(-1), torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            index = (chosen == number).nonzero()[:, 0]
            out = out.index_add(0, index, expert(flat[index]) * gates[index, number, None])
        return self.head((x + out.reshape(x.shape)).mean(1))


def experts(path: Path) -> Training:
    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    layers, options = ("router", "experts.0", "head"), {"routed": ["experts.*"]}
    return trained(path, model, optimizer, texts(), layers, traced=False, options=options, filters=("step < 6",))


def autocast(path: Path) -> Training:
    """Products in bfloat16, weights in float32."""
    model = mlp()

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return trained(path, model, optimizer, vectors(6), MLP, call=call)


def bfloat16(path: Path) -> Training:
    """Weights and products in bfloat16."""
    model, data = mlp().bfloat16(), vectors(6)
    data.inputs = data.inputs.bfloat16()
    return trained(path, model, torch.optim.SGD(model.parameters(), lr=0.1), data, MLP, traced=False)


def compiled(path: Path) -> Training:
    """Forward and backward traced by torch.compile, and run as traced."""
    model = mlp()
    torch._dynamo.reset()
    call = torch.compile(model, backend="aot_eager")
    training = trained(path, model, torch.optim.SGD(model.parameters(), lr=0.1), vectors(6), MLP, call=call)
    torch._dynamo.reset()
    return training


def resumed(path: Path) -> Training:
    """From a checkpoint with two steps on disk after it, in the same folder."""
    model, data = mlp(), vectors(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with dualform.Recorder(model, optimizer, path, quiet=True) as recorder:
        run(recorder, model, optimizer, data, steps=range(4))
        recorder.flush()
        saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        momenta = {number: state["momentum_buffer"].clone() for number, state in enumerate(optimizer.state.values())}
        run(recorder, model, optimizer, data, steps=range(4, 6))
    model.load_state_dict(saved)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, parameter in enumerate(model.parameters()):
        optimizer.state[parameter]["momentum_buffer"] = momenta[number]
    with dualform.Recorder(model, optimizer, path, quiet=True, resume=4) as recorder:
        run(recorder, model, optimizer, data, steps=range(4, STEPS))
    return Training(model, MLP, data.inputs[4:7], data.labels[4:7])


class Sum:
    """Adds up the numbers of two ranks that are threads, and shows each what both give."""

    def __init__(self) -> None:
        self.barrier, self.parts = threading.Barrier(2, timeout=120), [None, None]

    def gather(self, rank: int, own: Any) -> list[Any]:
        self.parts[rank] = own
        self.barrier.wait()
        both = list(self.parts)
        self.barrier.wait()
        return both

    def of(self, rank: int, numbers: Any) -> Any:
        one, other = self.gather(rank, numbers.copy())
        return one + other


class Exchange:
    """One rank's side of a sum."""

    def __init__(self, both: Sum, rank: int) -> None:
        self.both, self.rank = both, rank

    def total(self, numbers: Any) -> Any:
        return self.both.of(self.rank, numbers)

    def gather(self, own: Any) -> list[Any]:
        return self.both.gather(self.rank, own)

    def close(self) -> None:
        pass


def ranks(path: Path) -> Training:
    """Two data-parallel ranks, of which each has batches of its own."""
    both, means = Sum(), Sum()
    models = [mlp(), mlp()]
    own = [vectors(6), Data(vectors(6).inputs, vectors(6).labels, seed=6)]
    errors: list[BaseException] = []

    def train(rank: int) -> None:
        model = models[rank]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def average(*_: Any) -> None:
            for parameter in model.parameters():
                parameter.grad = torch.from_numpy(means.of(rank, parameter.grad.numpy())) / 2

        try:
            shared = Ranks(rank, 2, Exchange(both, rank))
            with dualform.Recorder(model, optimizer, path, quiet=True, ranks=shared) as recorder:
                for x, y, said in own[rank]:
                    with recorder.step(**said):
                        optimizer.zero_grad()
                        cross_entropy(model(x), y).backward()
                        average()
                        optimizer.step()
                recorder.query_set("test", own[0].inputs[:4], label=own[0].labels[:4])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return Training(models[0], MLP, own[0].inputs[4:7], own[0].labels[4:7], traced=False)


def keys_only(path: Path) -> Training:
    model = mlp()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return trained(path, model, optimizer, vectors(6), MLP, traced=False, options={"values": False})


def rerun(path: Path) -> Training:
    """Without keys, so that a second run of the training answers."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(path, model, optimizer, vectors(6), MLP, traced=False, options={"keys": False}, keys=False)


def budget(path: Path) -> Training:
    """Too few bytes for every sample of the steps that are planned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 40), nn.ReLU(), nn.Linear(40, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    options = {"budget": "31 MB", "steps": 3000, "seed": 3}
    return trained(path, model, optimizer, vectors(300), ("0", "2"), traced=False, options=options)


_ALL = [sgd, adamw, convolution, attention, lstm, experts, autocast, bfloat16, checkpointed, compiled, resumed, ranks]
TRAININGS: dict[str, Callable[[Path], Training]] = {
    training.__name__: training for training in [*_ALL, keys_only, rerun, budget]
}
