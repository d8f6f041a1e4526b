"""An LSTM, self-attention and a convolution, timed over whole sequences and token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.nn.attention import MultiHeadAttention
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.decoder_attention import CausalAttention
from vitrail.nn.decoder_step import CausalStep
from vitrail.nn.recurrent import LSTM

LayerName = Literal["recurrent", "attention", "convolution"]
LAYERS: tuple[LayerName, ...] = ("recurrent", "attention", "convolution")
KERNEL_SIZE = 3
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
    return nn.Conv1d(width, width, KERNEL_SIZE, padding=KERNEL_SIZE // 2).eval()


def forward_of(layer: nn.Module, x: Tensor) -> Forward:
    """Return the forward pass over some sequences (batch tokens dim), in the layout that the layer reads."""
    if isinstance(layer, LSTM):
        steps = x.transpose(0, 1).contiguous()
        return lambda: layer.read(steps)
    if isinstance(layer, nn.Conv1d):
        channels = x.transpose(1, 2).contiguous()
        return lambda: layer(channels)
    return lambda: layer(x)


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
