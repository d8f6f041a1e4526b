"""An LSTM, attention to all and in windows, and a convolution, over sequences and token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.models.cost import count_forward
from vitrail.nn.attention import MultiHeadAttention
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CausalAttention
from vitrail.nn.decoder_step import CausalStep
from vitrail.nn.recurrent import LSTM
from vitrail.nn.relative import GridRelativeBias
from vitrail.nn.window_attention import WindowAttention
from vitrail.nn.windows import fit_windows

LayerName = Literal["recurrent", "attention", "windows", "convolution"]
LAYERS: tuple[LayerName, ...] = ("recurrent", "attention", "windows", "convolution")
KERNEL_SIZE = 3
WINDOW = 64  # tokens, about as many as Swin's 7 x 7 cells
NUM_HEADS = 4
LAST_STEPS = 8  # whose median is the time of one more token
Forward = Callable[[], Tensor]
Step = Callable[[], Tensor]


def build_layer(name: LayerName, width: int) -> nn.Module:
    """Return a layer with random weights."""
    if name == "recurrent":
        return LSTM(width, width).eval()
    if name == "attention":
        return MultiHeadAttention(width, NUM_HEADS).eval()
    if name == "windows":
        windows = fit_windows((1, WINDOW), (1, WINDOW), shifted=False)
        bias = GridRelativeBias(windows.size, NUM_HEADS)
        return WindowAttention(width, NUM_HEADS, windows=windows, shifted=False, bias=bias).eval()
    return nn.Conv1d(width, width, KERNEL_SIZE, padding=KERNEL_SIZE // 2).eval()


def forward_of(layer: nn.Module, x: Tensor) -> Forward:
    """Return the forward pass over some sequences (batch tokens dim), in the layout that the layer reads."""
    if isinstance(layer, LSTM):
        steps = x.transpose(0, 1).contiguous()
        return lambda: layer.read(steps)
    if isinstance(layer, nn.Conv1d):
        channels = x.transpose(1, 2).contiguous()
        return lambda: layer(channels)
    if isinstance(layer, WindowAttention):
        places = fit_windows((1, x.shape[1]), (1, WINDOW), shifted=False).completed[1]
        whole = F.pad(x, (0, 0, 0, places - x.shape[1]))
        return lambda: layer(whole, grid=(1, x.shape[1]))
    return lambda: layer(x)


class OverSequence(nn.Module):
    """A layer's forward pass over sequences, in the layout that it reads.

    Args:
        layer: as ``build_layer`` returns it.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Tensor:
        """Return what the layer makes of some sequences, in its own layout."""
        return forward_of(self.layer, x)()


class Memory(NamedTuple):
    """What a forward pass over one sequence needs."""

    bytes: int
    """The most that its tensors take at one time, with the layer's weights; attention by a fused kernel."""
    attention_bytes: int
    """What the weights of attention would take of all heads, if they were written."""


def count_memory(name: LayerName, width: int, length: int) -> Memory:
    """Count the memory of a layer's forward pass over one sequence, in float32; nothing is computed."""
    with torch.device("meta"):
        layer = OverSequence(build_layer(name, width))
        cost = count_forward(layer, torch.empty(1, length, width), {})
    elements = sum(each.num_heads * each.num_elements for each in cost.attention)
    return Memory(cost.peak_bytes, elements * torch.float32.itemsize)


def stepper_of(name: LayerName, width: int, layers: dict[LayerName, nn.Module], x: Tensor) -> Step:
    """Return what reads one more token, again and again, and keeps what the layer needs of those before."""
    layer = layers[name]
    if isinstance(layer, LSTM):
        state = (x.new_zeros(1, width), x.new_zeros(1, width))

        def step_recurrent() -> Tensor:
            nonlocal state
            hidden, cell = layer.advance(layer.enter(x[0]), state)
            state = hidden, cell
            return hidden

        return step_recurrent
    if isinstance(layer, nn.Conv1d):
        window = x.new_zeros(1, width, KERNEL_SIZE)

        def step_convolution() -> Tensor:
            nonlocal window
            window = torch.cat((window[..., 1:], x.transpose(1, 2)), dim=-1)
            return F.conv1d(window, layer.weight, layer.bias)

        return step_convolution
    attend_to_past = CausalStep(CausalAttention(width, NUM_HEADS))
    cache = KeyValueCache.empty(1, num_layers=1)

    def step_attention() -> Tensor:
        nonlocal cache
        if isinstance(layer, WindowAttention) and cache.num_steps == WINDOW:  # the next window begins
            cache = KeyValueCache.empty(1, num_layers=1)
        cache = cache.lengthened(device=x.device)
        return attend_to_past(x, cache, layer=0)

    return step_attention


def time_calls(call: Callable[[], Tensor], num_calls: int) -> float:
    """Return the seconds of one call, after one that is not counted."""
    call()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - began) / num_calls


def time_steps(step: Step, lengths: Sequence[int]) -> Iterator[float]:
    """Take steps up to the greatest length, and yield the seconds of one at each: the median of the last."""
    taken: list[float] = []
    for length in lengths:
        while len(taken) < length:
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
        yield median(taken[-LAST_STEPS:])
