"""Attribution methods of other packages: captum, dattri, kronfluence and bergson.

Shapes: n training samples, t test examples, b examples of a batch, p parameters. Scores are float64[t, n]: the greater
a score, the more the training sample lowers the loss of the test example.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

from dualform_studies.attribution.recipes import Examples, Recipe
from dualform_studies.attribution.training import Trained
from dualform_studies.attribution.ways import Scores, Way

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


def ways(recipe: Recipe) -> dict[str, Way]:
    """By name. One raises ImportError without its package, which the extra `peers`
    brings; bergson has no place there, for it brings 600 MB.
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
        return trained.lr

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return trained.loss(outputs, targets).sum()

    network = trained.build().eval()
    method = TracInCP(
        network,
        TensorDataset(*trained.trained),
        trained.checkpoints,
        load,
        layers=[name for name, layer in network.named_modules() if isinstance(layer, _LAYERS)],
        loss_fn=loss,
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

    states = [trained.checkpoints[-1], *(trained.retrained(seed) for seed in range(1, networks))]
    network = _Flat(trained.build().eval())

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

    network = _Flat(trained.build().eval())

    def loss(params: Mapping[str, Tensor], data: Examples) -> Tensor:
        inputs, targets = data
        return trained.loss(network.outputs(params, inputs), targets).mean()

    seen = trained.trained.of(slice(samples))
    with _quiet():
        method = IFAttributorCG(_task(network, loss, [trained.checkpoints[-1]]), regularization=_CG_DAMPING)
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
            return trained.loss(outputs, targets).sum()

        def compute_measurement(self, batch: Sequence[Tensor], model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

    network = trained.build()
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
        optimizer = torchopt.sgd(trained.lr, momentum=momentum)
        trainer, state = Trainer.initialize(_WithLoss(network.train(), trained.loss), optimizer)
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
    network = _WithLoss(trained.build().eval(), trained.loss)
    given = {name: parameter.detach().requires_grad_() for name, parameter in params.items()}
    for inputs, targets in _loader(trained.tested, len(trained.tested.targets) if trained.one_query else 1):
        ones = torch.ones(len(targets))
        loss = functional_call(network, given, (inputs, targets, ones, ones))
        yield dict(zip(given, torch.autograd.grad(loss, list(given.values())), strict=True))


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
    return scores.detach().double().numpy()
