"""Parameter groups, AdamW, Muon, gradient clipping, weight averaging (EMA, tail average)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.core.errors import ConfigError
from vitrail.train.processes import is_sharded, own_part, whole_tensor
from vitrail.train.settings import OptimSettings

FEATURE_CHANNELS = 8  # an image has fewer channels, a layer's features more

# Learned vectors stored as tables: decaying them towards zero defeats their purpose.
_UNDECAYED_NAME = re.compile(r"position|pos_embed|token|bias|scale|gamma|temperature")


class ParameterGroups(NamedTuple):
    """The trainable parameters of a model, grouped by optimiser and weight decay."""

    hidden: dict[str, nn.Parameter]
    """Matrices of the repeated blocks, and convolution kernels over features."""
    decayed: dict[str, nn.Parameter]
    """Other matrices and kernels: first convolution, embeddings, head."""
    undecayed: dict[str, nn.Parameter]
    """Norms, biases, position embeddings and tokens."""


def group_parameters(model: nn.Module) -> ParameterGroups:
    """Group the trainable parameters; a tied one appears once, under its first name.

    A hidden matrix is two-dimensional and lies in a ``ModuleList``, or in a ``Sequential`` of several
    composite modules of one class. A hidden kernel has at least ``FEATURE_CHANNELS`` input channels.
    """
    groups = ParameterGroups({}, {}, {})
    blocks = tuple(
        f"{name}." if name else ""
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) or (isinstance(module, nn.Sequential) and _repeats(module))
    )
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_hidden_matrix = parameter.ndim == 2 and name.startswith(blocks)
        is_hidden_kernel = parameter.ndim > 2 and parameter.shape[1] >= FEATURE_CHANNELS
        if parameter.ndim < 2 or _UNDECAYED_NAME.search(name.rpartition(".")[2]) or "position" in name:
            groups.undecayed[name] = parameter
        elif is_hidden_matrix or is_hidden_kernel:
            groups.hidden[name] = parameter
        else:
            groups.decayed[name] = parameter
    return groups


class Optimisers:
    """The optimisers of one model, driven by one relative learning rate.

    Args:
        model: already on its device and, if applicable, sharded.

    Raises:
        ConfigError: Muon is asked for a sharded model; it needs whole matrices.
    """

    def __init__(self, model: nn.Module, settings: OptimSettings) -> None:
        groups = group_parameters(model)
        self._parameters = groups.hidden | groups.decayed | groups.undecayed
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in self._parameters.items()}
        self._clip_norm = settings.clip_norm
        muon = groups.hidden if settings.name == "muon" else {}
        if any(is_sharded(parameter) for parameter in muon.values()):
            raise ConfigError(
                "optim.name is muon and train.parallel is fsdp",
                expected="whole matrices for Muon, that is train.parallel=ddp",
                remedy="Set train.parallel=ddp or optim.name=adamw",
            )
        decayed = groups.decayed if muon else groups.hidden | groups.decayed
        self._optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                [
                    {"params": list(decayed.values()), "weight_decay": settings.weight_decay},
                    {"params": list(groups.undecayed.values()), "weight_decay": 0.0},
                ],
                lr=settings.learning_rate,
                betas=settings.betas,
                fused=all(parameter.device.type in ("cpu", "cuda") for parameter in model.parameters()),
            )
        ]
        self._kernels = {kernel: _as_matrix(kernel) for kernel in muon.values() if kernel.ndim > 2}
        self._names |= {matrix: self._names[kernel] for kernel, matrix in self._kernels.items()}
        if muon:
            self._optimisers.append(
                torch.optim.Muon(
                    [self._kernels.get(parameter, parameter) for parameter in muon.values()],
                    lr=settings.matrix_learning_rate,
                    weight_decay=settings.weight_decay,
                )
            )
        for group in self._groups():
            group["peak"] = group["lr"]

    def set_rate(self, rate: float) -> None:
        for group in self._groups():
            group["lr"] = group["peak"] * rate

    def scale(self, factor: Float[Tensor, ""]) -> None:
        gradients = [
            own_part(parameter.grad) for parameter in self._parameters.values() if parameter.grad is not None
        ]
        torch._foreach_mul_(gradients, factor)

    def clip(self) -> Float[Tensor, ""]:
        """Clip the gradients to the norm of the settings, and return their norm before."""
        limit = self._clip_norm or float("inf")
        return whole_tensor(torch.nn.utils.clip_grad_norm_(self._parameters.values(), limit, foreach=True))

    def step(self) -> None:
        for kernel, matrix in self._kernels.items():
            matrix.grad = None if kernel.grad is None else kernel.grad.flatten(1)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for kernel in self._kernels:
            kernel.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser state as ``parameter/quantity``; empty before the first step."""
        state: dict[str, Tensor] = {}
        for optimiser in self._optimisers:
            for parameter in (each for group in optimiser.param_groups for each in group["params"]):
                for quantity, value in optimiser.state.get(parameter, {}).items():
                    assert isinstance(value, Tensor), f"{quantity} is not a tensor and would not be stored"
                    state[f"{self._names[parameter]}/{quantity}"] = value
        return state

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load what ``state`` returned; the tensors are used, not copied."""
        by_parameter: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, _, quantity = key.rpartition("/")
            by_parameter.setdefault(name, {})[quantity] = value
        for optimiser in self._optimisers:
            optimiser.state.clear()
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    memory = by_parameter.get(self._names[parameter])
                    if memory is not None:
                        optimiser.state[parameter] = memory

    def parameter(self, key: str) -> Tensor:
        return self._parameters[key.rpartition("/")[0]]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimiser in self._optimisers for group in optimiser.param_groups]


def _as_matrix(kernel: nn.Parameter) -> Tensor:
    """View a kernel as a matrix, output channels by everything else, which Muon can orthogonalise.

    Paper: Jordan et al. 2024 (Muon), "convolutional filters are flattened".
    """
    matrix = kernel.detach().flatten(1)
    assert matrix.data_ptr() == kernel.data_ptr(), "the kernel is not contiguous"
    return matrix


def _repeats(module: nn.Sequential) -> bool:
    composites = [type(child) for child in module if any(True for _ in child.children())]
    return len(composites) > 1 and len(set(composites)) == 1


def averaging_weight(step: int, horizon: float) -> float:
    """Return the weight of the newest weights in the moving average after ``step`` steps (at least 1).

    ``max(1 / horizon, 10 / (9 + step))``: early averages look back over a tenth of the steps done, so
    that they are not stuck at the initial weights; later ones over ``horizon`` steps.

    >>> averaging_weight(1, horizon=50)
    1.0
    >>> averaging_weight(10_000, horizon=50)
    0.02
    """
    return max(1 / max(horizon, 1.0), 10 / (9 + step))


class WeightAverage:
    """Averaged copies of the trainable parameters; buffers are not averaged.

    Args:
        model: already on its device and, if applicable, sharded; each process averages its own shard.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._whole = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self._weights = [own_part(parameter.detach()) for parameter in trained.values()]
        self._averages = [own_part(average) for average in self._whole.values()]

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """Move every average towards its parameter by the given fraction."""
        torch._foreach_lerp_(self._averages, self._weights, weight)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name; they are not copies."""
        return dict(self._whole)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        for weight, average in zip(self._weights, self._averages, strict=True):
            kept: Tensor = weight.clone()
            weight.copy_(average)
            average.copy_(kept)
