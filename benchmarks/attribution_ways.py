"""The trainings whose losses are attributed, and the ways to attribute them: floors, dualform's, and other packages'.

Shapes: n samples, b samples of a batch, t tests, p parameters, w tokens of a window, V tokens of the vocabulary.
Scores are float64[t, n]: the greater, the more a sample is said to lower a test's loss.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, gelu
from torch.utils.data import DataLoader, TensorDataset

import dualform
from dualform import Recorder
from dualform.extras import missing_package
from dualform_studies.images.datasets import Images, load_dataset
from dualform_studies.text.corpora import load_corpus

Scores: TypeAlias = NDArray[np.float64]
Parameters: TypeAlias = Iterable[nn.Parameter]
State: TypeAlias = Mapping[str, Tensor]

TESTED = 500
"""Held-out examples that say how well the network learned: the first images of the test file, or the first windows."""
WINDOW, VOCABULARY = 32, 512
"""Tokens of a window, and byte pairs learned from the training text."""
_CHECKPOINTS = 5
_QUERY_SET = "tested"

# ---- Recipes


class Examples(NamedTuple):
    inputs: Tensor
    """float32[n, 784], pixels from -1 to 1; or int64[n, w], tokens."""
    targets: Tensor
    """int64[n], labels; or int64[n, w], the tokens that follow."""

    def of(self, rows: Any) -> Examples:
        return Examples(self.inputs[rows], self.targets[rows])


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """float32[b]: the cross entropy of each example, for a window the mean over its tokens."""
    each = cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


@dataclass(frozen=True)
class Recipe:
    name: str
    network: Callable[[], nn.Module]
    optimizer: Callable[[Parameters], torch.optim.Optimizer]
    words: str
    """Network and optimizer, in words."""
    samples: int
    """The first images of MNIST's training file, or the first windows of Aesop's fables."""
    batch: int
    epochs: int
    text: bool = False
    random: bool = False
    """Whether training draws random numbers, as dropout does."""
    every_way: bool = False
    """Whether ways are run that take more than half an hour on larger networks."""

    @property
    def dataset(self) -> str:
        return "aesop" if self.text else "mnist"

    @property
    def lr(self) -> float:
        return float(self.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"])

    def build(self, seed: int = 0) -> nn.Module:
        """A network whose initial weights follow from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.network()

    def batches(self, seed: int) -> Iterator[NDArray[np.int64]]:
        """int64[b] of every step: all samples in a new order for each epoch, the last batch with what is left."""
        draw = np.random.default_rng(seed)
        for _ in range(self.epochs):
            order = draw.permutation(self.samples)
            yield from (order[start : start + self.batch] for start in range(0, self.samples, self.batch))

    def examples(self, data: Path | None) -> tuple[Examples, Examples]:
        """The training samples, and TESTED held-out examples or all that there are. Raises as the readers of data."""
        return (_windows if self.text else images)(data, self.samples)

    def spoiled(self, trained: Examples, share: float, seed: int) -> tuple[Examples, NDArray[np.bool_]]:
        """The samples with a share of them spoiled, and bool[n], which: another label, or the tokens shuffled."""
        draw = np.random.default_rng(seed)
        wrong = np.zeros(self.samples, dtype=bool)
        wrong[draw.choice(self.samples, size=round(share * self.samples), replace=False)] = True
        rows = torch.from_numpy(np.flatnonzero(wrong))
        inputs, targets = trained.inputs.clone(), trained.targets.clone()
        if self.text:
            tokens = torch.cat([inputs[rows], targets[rows, -1:]], dim=1).numpy()
            shuffled = torch.from_numpy(draw.permuted(tokens, axis=1))
            inputs[rows], targets[rows] = shuffled[:, :-1], shuffled[:, 1:]
        else:
            targets[rows] = (targets[rows] + torch.from_numpy(draw.integers(1, 10, len(rows)))) % 10
        return Examples(inputs, targets), wrong

    def described(self) -> str:
        what = f"windows of {WINDOW} tokens" if self.text else "images"
        return f"{self.words}; {self.samples:,} {what}, {self.batch} a batch, {self.epochs} epochs"

    def quick(self) -> Recipe:
        """The same with less of everything, for a look in minutes."""
        return replace(self, samples=self.samples // 4, batch=self.batch // 2, epochs=max(2, self.epochs // 3))


def _perceptron(activation: type[nn.Module], dropout: float = 0.0) -> nn.Sequential:
    layers = list[nn.Module]()
    for before, after in ((784, 128), (128, 64)):
        layers += [nn.Linear(before, after), activation(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 8, stride=4, padding=2),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


class _Block(nn.Module):
    """Causal attention and a perceptron, each after a layer normalization. Plain products: they differentiate twice."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.perceptron = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in parts)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        later = torch.full(scores.shape[-2:], -torch.inf).triu(1)
        seen = (scores + later).softmax(-1) @ value
        x = x + self.mixed(seen.transpose(-3, -2).flatten(-2))
        found: Tensor = x + self.perceptron(gelu(self.hidden(self.before_perceptron(x))))
        return found


class Transformer(nn.Module):
    """A small GPT with learned positions; the output layer does not share the embedding's weights."""

    def __init__(self, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.words.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """float32[b, w, V], of int64[b, w]."""
        found: Tensor = self.head(self.norm(self.blocks(self.words(tokens) + self.positions)))
        return found


def images(data: Path | None, samples: int) -> tuple[Examples, Examples]:
    """The first training images of MNIST, and the first TESTED test images."""
    dataset = load_dataset("mnist", data)

    def first(part: Images, count: int) -> Examples:
        pixels = torch.from_numpy(part.pixels[:count].astype(np.float32))
        return Examples(pixels / 127.5 - 1, torch.from_numpy(part.labels[:count].copy()))

    return first(dataset.train, samples), first(dataset.test, TESTED)


def _windows(data: Path | None, samples: int) -> tuple[Examples, Examples]:
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise missing_package(error) or error from None
    corpus = load_corpus("aesop", data)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False)
    tokenizer.train_from_iterator([corpus.train], trainer)

    def first(text: str, count: int) -> Examples:
        tokens = torch.tensor(tokenizer.encode(text).ids)
        count = min(count, (len(tokens) - 1) // WINDOW)
        places = WINDOW * torch.arange(count)[:, None] + torch.arange(WINDOW)
        return Examples(tokens[places], tokens[places + 1])

    return first(corpus.train, samples), first(corpus.test, TESTED)


def _sgd(lr: float) -> Callable[[Parameters], torch.optim.Optimizer]:
    return partial(torch.optim.SGD, lr=lr, momentum=0.9)


# "dattri" is the MNIST benchmark of dattri (Deng et al., 2024), which has 50 epochs. The others were chosen to train
# smoothly, and accurately for their size: large batches, moderate rates, smooth activations, a large eps of AdamW.
# A derivative predicts a retraining better then.
RECIPES = (
    Recipe(
        "dattri",
        partial(_perceptron, nn.ReLU, dropout=0.1),
        _sgd(0.01),
        "a perceptron 784-128-64-10 with ReLU and dropout 0.1; SGD with momentum 0.9, learning rate 0.01",
        samples=5000,
        batch=64,
        epochs=15,
        random=True,
        every_way=True,
    ),
    Recipe(
        "smooth",
        partial(_perceptron, nn.Tanh),
        _sgd(0.05),
        "a perceptron 784-128-64-10 with tanh; SGD with momentum 0.9, learning rate 0.05",
        samples=2000,
        batch=500,
        epochs=15,
        every_way=True,
    ),
    Recipe(
        "cnn",
        _convolutions,
        _sgd(0.02),
        "two strided convolutions (16 and 32 channels) with GELU and a linear layer; SGD with momentum 0.9, learning "
        "rate 0.02",
        samples=2000,
        batch=100,
        epochs=20,
    ),
    Recipe(
        "gpt",
        Transformer,
        partial(torch.optim.AdamW, lr=2e-3, eps=1e-4, weight_decay=0.01),
        f"a causal transformer of 2 blocks, width 64, 4 heads, GELU and {VOCABULARY} byte pairs; AdamW, learning rate "
        "0.002, eps 0.0001, weight decay 0.01",
        samples=1000,
        batch=50,
        epochs=5,
        text=True,
    ),
)


# ---- Training


@dataclass(frozen=True, eq=False)
class Trained:
    """A recorded training, and everything that a way to attribute may ask of it."""

    recipe: Recipe
    seed: int
    trained: Examples
    tested: Examples
    """The t examples to attribute."""
    network: nn.Module
    """As training left it, in eval mode."""
    checkpoints: Sequence[State]
    """At equal distances in epochs; the last one is the end."""
    memory: Path
    """The recorded training."""
    seconds: float
    """Of the training, until all is on disk."""
    one_query: bool
    """Whether only the mean loss of the tests is asked for, so that a way may return float64[1, n]."""


def train(
    recipe: Recipe,
    examples: Examples,
    seed: int,
    left_out: NDArray[np.bool_] | None = None,
    *,
    memory: Path | None = None,
    tested: Examples | None = None,
    states: list[State] | None = None,
) -> nn.Module:
    """The trained network, in eval mode.

    Samples that are left out, bool[n], weigh 0 in the loss. The mean keeps its divisor, and initial weights, order and
    dropout are as with all samples (trajectory-specific removal, as of Ilyas and Engstrom, 2025).

    - `memory`: a folder to record the training in, with `tested` as a query set.
    - `states`: takes the state dicts of the checkpoints.
    """
    network = recipe.build(seed)
    optimizer = recipe.optimizer(network.parameters())
    weights = torch.ones(recipe.samples)
    if left_out is not None:
        weights[torch.from_numpy(left_out)] = 0
    moments = [recipe.samples * round(epoch) for epoch in np.linspace(0, recipe.epochs, _CHECKPOINTS + 1)[1:]]
    recorder = memory and Recorder(network, optimizer, memory, quiet=True, keep_random=recipe.random)
    seen = 0
    with torch.random.fork_rng(devices=[]), recorder or nullcontext():
        torch.manual_seed(seed)  # only dropout draws after this
        for batch in recipe.batches(seed):
            inputs, targets = examples.of(torch.from_numpy(batch))
            label = None if recipe.text else targets
            with recorder.step(recipe.dataset, label, batch) if recorder else nullcontext():
                optimizer.zero_grad()
                losses = loss(network(inputs), targets)
                torch.autograd.backward((losses * weights[batch]).sum() / len(batch))
                optimizer.step()
            seen += len(batch)
            if states is not None and seen in moments:
                states.append({name: own.detach().clone() for name, own in network.state_dict().items()})
        if recorder and tested:
            recorder.query_set(_QUERY_SET, tested.inputs, label=tested.targets, loss=loss)
    return network.eval()


@torch.no_grad()
def losses_of(network: nn.Module, tested: Examples) -> Scores:
    """float64[t]."""
    return np.asarray(loss(network(tested.inputs), tested.targets).double().numpy())


def recorded(
    recipe: Recipe, trained: Examples, tested: Examples, seed: int, folder: Path, *, one_query: bool = False
) -> Trained:
    """The training recorded into `folder`; if it is there already, it is read."""
    memory, file = folder / "memory", folder / "checkpoints.pt"
    if not file.exists():
        shutil.rmtree(memory, ignore_errors=True)  # of a run that was cut off
        start, states = perf_counter(), list[State]()
        train(recipe, trained, seed, memory=memory, tested=tested, states=states)
        torch.save({"states": states, "seconds": perf_counter() - start}, part := file.with_suffix(".part"))
        part.replace(file)
    kept = torch.load(file)
    network = recipe.build()
    network.load_state_dict(kept["states"][-1])
    return Trained(recipe, seed, trained, tested, network.eval(), kept["states"], memory, kept["seconds"], one_query)


# ---- Floors, and dualform's ways

Way: TypeAlias = Callable[[Trained], Scores]


def floors(text: bool) -> dict[str, Way]:
    """Ways that look at no training; `text`: of windows, which have no labels."""
    return {"random": random} if text else {"random": random, "same label": same_label}


def ours(recipe: Recipe) -> dict[str, Way]:
    found: dict[str, Way] = {"attention": attention}
    if not recipe.text:
        found["contribution"] = contribution
    if recipe.every_way:
        found |= {"GradDot": graddot, "ledger": ledger}
    return found | {"adjoint": adjoint}


def random(trained: Trained) -> Scores:
    shape = len(trained.tested.targets), len(trained.trained.targets)
    return np.random.default_rng(trained.seed).normal(size=shape)


def same_label(trained: Trained) -> Scores:
    same = trained.tested.targets[:, None] == trained.trained.targets
    return np.asarray(same.double().numpy())


def attention(trained: Trained) -> Scores:
    """Cosines of what the output layer takes, summed over the tokens of windows. They know no losses."""
    return _sums(trained, _output_layer(trained), score="cosine")


def contribution(trained: Trained) -> Scores:
    """What a sample brought to the margin of a test's label over the strongest other output, in the output layer."""
    with torch.no_grad():
        outputs = trained.network(trained.tested.inputs)
    rows, labels = torch.arange(len(outputs)), trained.tested.targets
    others, margin = outputs.clone(), torch.zeros_like(outputs)
    others[rows, labels] = -torch.inf
    margin[rows, labels] += 1
    margin[rows, others.argmax(1)] -= 1
    return _sums(trained, _output_layer(trained), score="contribution", target=margin.numpy())


def graddot(trained: Trained) -> Scores:
    """Dot products of a sample's gradients while it was trained on with a test's at the end, in all layers."""
    return _sums(trained, "*", score="gradient")


def ledger(trained: Trained) -> Scores:
    """The change of a test's loss in all updates, by the samples that made them."""
    examples = dualform.Influence(_QUERY_SET, *trained.tested, loss, by=("sample",), method="path")
    found = dualform.ledger(trained.memory, trained.network, examples)
    return -_in_order(trained, found.groups, found.sums)


def adjoint(trained: Trained) -> Scores:
    """The derivative of a test's loss with respect to a sample's weight, through all updates."""

    def batches(step: int, samples: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return trained.trained.of(torch.from_numpy(samples))

    def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs, targets).mean()

    asked = mean_loss if trained.one_query else loss
    found = dualform.adjoint(trained.memory, trained.network, trained.tested, asked, batches, loss)
    scores = np.zeros((len(found), len(trained.trained.targets)))
    scores[:, found.samples] = found.values
    return scores


def _sums(trained: Trained, layer: str, **asked: Any) -> Scores:
    with dualform.open(trained.memory) as memory:
        found = memory.group_sum(layer, _QUERY_SET, by="sample", **asked)
    sums = np.asarray(found.sums, dtype=np.float64).reshape(len(trained.tested.targets), -1, len(found.groups))
    return _in_order(trained, found.groups, sums.sum(axis=1))


def _in_order(trained: Trained, groups: Any, sums: Scores) -> Scores:
    """In the order of the samples; one that is in no group has 0."""
    scores = np.zeros((len(sums), len(trained.trained.targets)))
    scores[:, [int(sample) for (sample,) in groups]] = sums
    return scores


def _output_layer(trained: Trained) -> str:
    names: list[str] = [name for name, own in trained.network.named_modules() if isinstance(own, nn.Linear)]
    return names[-1]


# ---- Other packages

CG_SAMPLES = 1000
"""Training samples in the Hessian of the conjugate gradients: the first of them."""

_AT_ONCE = 500
"""Examples whose gradients dattri and captum hold at a time, float32[b, p]."""
_AT_ONCE_CG = 10
"""Test examples that dattri solves for at a time: each holds the activations of `CG_SAMPLES`."""
_AT_ONCE_EKFAC = 100
_CG_DAMPING = 1e-1
"""Added to the Hessian, whose smallest eigenvalues are negative: with 0.01, scores of a sample for itself are wrong."""
_TRAK_DAMPING = 1e-2
"""Added to the kernel matrix of the projected gradients, which dattri divides by the square root of p."""
_EKFAC_DAMPING = None
"""kronfluence adds 0.1 times the mean eigenvalue of each layer."""
_LAYERS = (nn.Linear, nn.Conv2d)
"""Layers whose gradients captum and kronfluence can compute for each example in one backward pass."""


def others(recipe: Recipe) -> dict[str, Way]:
    """Methods of captum, dattri, kronfluence and bergson, by name.

    One raises ImportError without its package. The extra `peers` brings them all but bergson, which brings 600 MB.
    """
    found: dict[str, Way] = {
        "captum TracInCP": tracin,
        "dattri TRAK-10": lambda trained: trak(trained, 10),
        "kronfluence EK-FAC": ekfac,
    }
    if recipe.every_way:
        found["dattri IF-CG"] = conjugate_gradients
    if recipe.every_way and not recipe.random:
        found |= {"dattri TRAK-50": lambda trained: trak(trained, 50), "bergson MAGIC": magic}
    return found


def tracin(trained: Trained) -> Scores:
    """Dot products of gradients, summed over the checkpoints (Pruthi et al., 2020).

    captum computes per-example gradients only for linear and convolution layers, so the parameters of embeddings and
    norms do not count.
    """
    from captum.influence import TracInCP

    def load(model: nn.Module, state: dict[str, Tensor]) -> float:
        model.load_state_dict(state)
        return trained.recipe.lr

    def summed(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(outputs, targets).sum()

    network = trained.recipe.build().eval()
    method = TracInCP(
        network,
        TensorDataset(*trained.trained),
        trained.checkpoints,
        load,
        layers=[name for name, layer in network.named_modules() if isinstance(layer, _LAYERS)],
        loss_fn=summed,
        batch_size=_AT_ONCE,
        sample_wise_grads_per_batch=True,
    )
    parts = [method.influence((inputs, targets)) for inputs, targets in _loader(trained.tested)]
    return _array(torch.cat(parts))


def trak(trained: Trained, networks: int) -> Scores:
    """TRAK (Park et al., 2023) over the network and others, retrained from the seeds 1, 2, ...

    The output function is the margin log p - log(1 - p), averaged over the tokens of an example if it has several.
    """
    from dattri.algorithm import TRAKAttributor

    states = [
        trained.checkpoints[-1],
        *(train(trained.recipe, trained.trained, seed).state_dict() for seed in range(1, networks)),
    ]
    network = _Flat(trained.recipe.build().eval())

    def margin(params: Mapping[str, Tensor], data: Examples) -> Tensor:
        outputs, targets = network.single(params, data)
        own = outputs.gather(-1, targets)
        others = outputs.scatter(-1, targets, -torch.inf).logsumexp(-1, keepdim=True)
        return (own - others).mean()

    def probability(params: Mapping[str, Tensor], data: Examples) -> Tensor:
        outputs, targets = network.single(params, data)
        return outputs.softmax(-1).gather(-1, targets).mean()

    with _quiet():
        method = TRAKAttributor(_task(network, margin, states), probability, regularization=_TRAK_DAMPING)
        method.cache(_loader(trained.trained))
        return _array(method.attribute(_loader(trained.tested)).T)


def conjugate_gradients(trained: Trained, samples: int = CG_SAMPLES) -> Scores:
    """Influence functions (Koh and Liang, 2017) with the Hessian of the first `samples` training samples."""
    from dattri.algorithm import IFAttributorCG

    network = _Flat(trained.recipe.build().eval())

    def mean_loss(params: Mapping[str, Tensor], data: Examples) -> Tensor:
        inputs, targets = data
        return loss(network.outputs(params, inputs), targets).mean()

    seen = trained.trained.of(slice(samples))
    with _quiet():
        method = IFAttributorCG(_task(network, mean_loss, [trained.checkpoints[-1]]), regularization=_CG_DAMPING)
        # dattri adds up the results of the batches, so the Hessian is right only for a single one.
        method.cache(_loader(seen, samples))
        # It solves for the test examples again in each batch of training samples, so these are a single one, too.
        whole, tests = _loader(trained.trained, len(trained.trained.targets)), _loader(trained.tested, _AT_ONCE_CG)
        return _array(method.attribute(whole, tests).T)


def ekfac(trained: Trained) -> Scores:
    """Influence functions with EK-FAC (Grosse et al., 2023) over the linear and convolution layers."""
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Losses(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: Sequence[Tensor], model: nn.Module, sample: bool = False) -> Tensor:
            inputs, targets = batch
            outputs = model(inputs)
            if sample:
                shares = outputs.detach().softmax(-1).flatten(0, -2)
                targets = torch.multinomial(shares, 1).reshape(targets.shape)
            return loss(outputs, targets).sum()

        def compute_measurement(self, batch: Sequence[Tensor], model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    network = trained.recipe.build()
    network.load_state_dict(trained.checkpoints[-1])
    task = Losses()
    samples = TensorDataset(*trained.trained)
    with _quiet(), TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method = Analyzer("ekfac", prepare_model(network, task), task, cpu=True, output_dir=folder, disable_tqdm=True)
        method.fit_all_factors(
            "factors", samples, per_device_batch_size=_AT_ONCE_EKFAC, factor_args=FactorArguments("ekfac")
        )
        method.compute_pairwise_scores(
            "scores",
            "factors",
            TensorDataset(*trained.tested),
            samples,
            per_device_query_batch_size=_AT_ONCE_EKFAC,
            per_device_train_batch_size=_AT_ONCE_EKFAC,
            score_args=ScoreArguments(damping_factor=_EKFAC_DAMPING),
        )
        return _array(method.load_pairwise_scores("scores")["all_modules"])


def magic(trained: Trained) -> Scores:
    """MAGIC (Ilyas and Engstrom, 2025): the gradient of each test loss with respect to the weight of each training
    sample, through all steps of SGD. Trains the network again, then goes back through the steps once for each test.
    """
    import torchopt
    from bergson.magic.trainer import BackwardState, Trainer
    from torchopt.pytree import tree_iter

    network, stream, scores = trained.recipe.build(trained.seed), _Stream(trained), []
    momentum = trained.recipe.optimizer(network.parameters()).defaults["momentum"]
    with _quiet(), TemporaryDirectory() as folder:
        optimizer = torchopt.sgd(trained.recipe.lr, momentum=momentum)
        trainer, state = Trainer.initialize(_WithLoss(network.train(), loss), optimizer)
        state = trainer.train(state, stream, save_dir=folder, save_mode="sqrt").detach_()
        end = {name: parameter.clone() for name, parameter in state.params.items()}
        for gradient in _gradients(trained, end):
            momenta = [torch.zeros_like(one) for one in tree_iter(state.opt_state) if _is_float(one)]
            backward = BackwardState(gradient, momenta, torch.zeros_like(stream.weights))
            found = trainer.backward(folder, stream, backward, state, cleanup=False, save_mode="sqrt")
            scores.append(-found.weight_grads.detach())
    return _array(torch.stack(scores))


class _Stream:
    """Batches in the order of the training, as bergson's trainer reads them."""

    def __init__(self, trained: Trained) -> None:
        self.weights = nn.Parameter(torch.ones(len(trained.trained.targets)))
        self.device, self.requires_grad = torch.device("cpu"), True
        self._samples, self._batches = trained.trained, list(trained.recipe.batches(trained.seed))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, step: int) -> dict[str, Any]:
        rows = torch.from_numpy(self._batches[step])
        inputs, targets = self._samples.of(rows)
        # bergson divides by the sum of this mask, which is the same for the batch and for all its parts.
        mask = torch.ones(len(rows))
        return {"inputs": inputs, "targets": targets, "weights": self.weights[rows], "shift_loss_mask": mask}


class _WithLoss(nn.Module):
    """A network whose forward pass returns the weighted loss of a batch, as bergson's trainer requires."""

    def __init__(self, network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self._loss = network, loss

    def forward(self, inputs: Tensor, targets: Tensor, weights: Tensor, shift_loss_mask: Tensor) -> Tensor:
        return (self._loss(self.network(inputs), targets) * weights).sum() / len(weights)


def _gradients(trained: Trained, params: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Of each test loss, or of their mean, by the names of `_WithLoss`."""
    network = _WithLoss(trained.recipe.build().eval(), loss)
    given = {name: parameter.detach().requires_grad_() for name, parameter in params.items()}
    for inputs, targets in _loader(trained.tested, len(trained.tested.targets) if trained.one_query else 1):
        ones = torch.ones(len(targets))
        of_tests = functional_call(network, given, (inputs, targets, ones, ones))
        yield dict(zip(given, torch.autograd.grad(of_tests, list(given.values())), strict=True))


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class _Flat(nn.Module):
    """A network with all its parameters in a single one, float32[p].

    dattri cuts its vector of parameters into slices. The gradient of each slice has p numbers for each example, which
    is slow for a network of many parameters. It has only one slice to cut here.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network = (network,)
        self._shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
        self.flat = nn.Parameter(torch.zeros(sum(shape.numel() for shape in self._shapes.values())))

    def state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of this module that has the parameters of a state dict of the network."""
        return {"flat": torch.cat([state[name].flatten() for name in self._shapes])}

    def outputs(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        parts = torch.split(params["flat"], [shape.numel() for shape in self._shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        outputs: Tensor = functional_call(self._network[0], named, (inputs,))
        return outputs

    def single(self, params: Mapping[str, Tensor], data: Examples) -> tuple[Tensor, Tensor]:
        """Outputs [..., classes] and targets [..., 1] of one example."""
        inputs, targets = data
        return self.outputs(params, inputs[None])[0], targets[..., None]


def _task(network: _Flat, loss: Callable[..., Tensor], states: Sequence[Mapping[str, Tensor]]) -> Any:
    from dattri.task import AttributionTask

    return AttributionTask(loss, network, [network.state(state) for state in states])


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no log of other packages. Attention whose gradient can be differentiated again."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        logging.disable(level)


def _loader(examples: Examples, at_once: int = _AT_ONCE) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*examples), batch_size=at_once, shuffle=False)


def _array(scores: Tensor) -> Scores:
    return np.asarray(scores.detach().double().numpy())
