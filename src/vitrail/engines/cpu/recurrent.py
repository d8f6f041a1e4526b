"""LSTMs under autocast on a CPU, also where oneDNN has no bfloat16 LSTM."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.nn import recurrent

# oneDNN has no bfloat16 LSTM without AVX-512, and raises under autocast: there it runs in float32.
HAS_BFLOAT16_LSTM = torch.backends.cpu.get_cpu_capability() == "AVX512"


def run_lstm(
    x: Float[Tensor, "steps batch dim"],
    start: Sequence[Float[Tensor, "directions batch hidden"]],
    weights: Sequence[Tensor],
    *,
    training: bool,
    bidirectional: bool = False,
) -> Float[Tensor, "steps batch states"]:
    """As ``nn.recurrent.run_lstm``, in float32 where the CPU needs it; in the same type as there."""
    if x.device.type != "cpu" or HAS_BFLOAT16_LSTM:
        return recurrent.run_lstm(x, start, weights, training=training, bidirectional=bidirectional)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    with torch.autocast("cpu", enabled=False):
        wide = [weight.float() for weight in weights]
        states = recurrent.run_lstm(x.float(), start, wide, training=training, bidirectional=bidirectional)
    return states.to(dtype)
