"""Claim: per-token cost grows with the length for full attention, not for recurrence or local layers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from operator import attrgetter
from statistics import median
from typing import Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitrail.engines.cpu.decoding import CausalStep
from vitrail.lab import harness as lab
from vitrail.models.cost import count_forward
from vitrail.nn.attention import Attention
from vitrail.nn.cache import KeyValueCache
from vitrail.nn.recurrent import LSTM
from vitrail.nn.relative import GridRelativeBias
from vitrail.nn.windows import WindowAttention, fit_windows

LayerName = Literal["recurrent", "attention", "windows", "convolution"]
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
KERNEL_SIZE = 3
WINDOW = 64  # tokens, about as many as Swin's 7 x 7 windows
NUM_HEADS = 4
LAST_STEPS = 8  # whose median is the time of one more token
Call = Callable[[], Tensor]


def build_layer(name: LayerName, width: int) -> nn.Module:
    """Return a layer with random weights."""
    if name == "recurrent":
        return LSTM(width, width).eval()
    if name == "attention":
        return Attention(width, NUM_HEADS).eval()
    if name == "windows":
        windows = fit_windows((1, WINDOW), (1, WINDOW), shifted=False)
        bias = GridRelativeBias(windows.size, NUM_HEADS)
        return WindowAttention(width, NUM_HEADS, windows=windows, shifted=False, bias=bias).eval()
    return nn.Conv1d(width, width, KERNEL_SIZE, padding=KERNEL_SIZE // 2).eval()


def forward_of(layer: nn.Module, x: Tensor) -> Call:
    """Return the forward pass over sequences (batch tokens dim), in the layer's own layout."""
    if isinstance(layer, LSTM):
        steps = x.transpose(0, 1).contiguous()
        return lambda: layer.read(steps)
    if isinstance(layer, nn.Conv1d):
        channels = x.transpose(1, 2).contiguous()
        return lambda: layer(channels)
    if isinstance(layer, WindowAttention):
        length = fit_windows((1, x.shape[1]), (1, WINDOW), shifted=False).completed[1]
        whole = F.pad(x, (0, 0, 0, length - x.shape[1]))
        return lambda: layer(whole, grid=(1, x.shape[1]))
    return lambda: layer(x)


class OverSequence(nn.Module):
    """A layer of ``build_layer`` as a module over sequences."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Tensor:
        """Return the output in the layer's own layout."""
        return forward_of(self.layer, x)()


def stepper_of(name: LayerName, width: int, layers: dict[LayerName, nn.Module], x: Tensor) -> Call:
    """Return a function that reads one more token, with a cache of what the layer needs of those before."""
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
    attend_to_past = CausalStep(Attention(width, NUM_HEADS))
    cache = KeyValueCache.empty(1, num_layers=1)

    def step_attention() -> Tensor:
        nonlocal cache
        if isinstance(layer, WindowAttention) and cache.num_steps == WINDOW:  # the next window begins
            cache = KeyValueCache.empty(1, num_layers=1)
        cache = cache.lengthened(device=x.device)
        return attend_to_past(x, cache, layer=0)

    return step_attention


def time_calls(call: Call, num_calls: int) -> float:
    """Return the seconds of one call, after a warm-up call."""
    call()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - began) / num_calls


def time_steps(step: Call, lengths: Sequence[int]) -> Iterator[float]:
    """Step up to the longest length and yield the seconds of a step at each: the median of the last ones."""
    taken: list[float] = []
    for length in lengths:
        while len(taken) < length:
            began = time.perf_counter()
            step()
            taken.append(time.perf_counter() - began)
        yield median(taken[-LAST_STEPS:])


# Exponents of the length, of one token's cost, where length dominates width.
THEORY = {"recurrent": 0.0, "attention": 1.0, "windows": 0.0, "convolution": 0.0}
TOLERANCE = 0.35
MARGIN = 0.4  # of attention's exponent over the others'


class ForwardRow(lab.Row):
    """Time of a layer's forward pass over whole sequences, without gradients."""

    layer: LayerName
    """An LSTM, self-attention of 4 heads over all tokens or in windows of 64, or a convolution over 3 tokens,
    all equally wide."""
    length: int
    """Tokens of a sequence."""
    batch: int
    """Batch size."""
    us_per_token: float
    """Microseconds per token, the fastest of all repeats."""
    sequential_operations: int
    """Operations that must run one after another: an LSTM's steps; the others have no order among tokens."""


class StepRow(lab.Row):
    """Time of a decoding step, with the layer's cache of the tokens before."""

    layer: LayerName
    """What it caches: a state, the keys and values of all tokens or of the window, or the last 2 tokens."""
    length: int
    """Tokens so far, the newest included."""
    us: float
    """Microseconds: the median of the last steps, of the fastest repeat."""


class MemoryRow(lab.Row):
    """Memory of a layer's forward pass over one sequence, counted tensor by tensor."""

    layer: LayerName
    """As in the other tables."""
    length: int
    """Tokens of the sequence."""
    fused_bytes: int
    """Peak memory of weights and results, where a fused kernel never materialises attention weights."""
    attention_bytes: int
    """Attention weights of all heads, if materialised; 0 without attention."""
    bytes_per_token: float
    """Both together, per token."""


LengthRow = ForwardRow | StepRow | MemoryRow
LengthRowT = TypeVar("LengthRowT", ForwardRow, StepRow, MemoryRow, LengthRow)


def count_memory(name: LayerName, width: int, length: int) -> MemoryRow:
    """Count the memory of a forward pass over one sequence in float32, on the meta device."""
    with torch.device("meta"):
        layer = OverSequence(build_layer(name, width))
        cost = count_forward(layer, torch.empty(1, length, width), {})
    elements = sum(each.heads * each.elements for each in cost.attention)
    attention_bytes = elements * torch.float32.itemsize
    return MemoryRow(
        layer=name,
        length=length,
        fused_bytes=cost.peak_bytes,
        attention_bytes=attention_bytes,
        bytes_per_token=(cost.peak_bytes + attention_bytes) / length,
    )


class LengthCost(lab.Claim):
    """Time four layers of equal width at growing lengths, and count their memory."""

    statement = (
        "A token of a longer sequence costs self-attention proportionally more time and memory, and "
        "recurrent, convolutional and windowed layers the same; the recurrent one alone must take its steps "
        "one after the other."
    )
    source = "Vaswani et al. 2017, table 1 and section 4; Liu et al. 2021 (Swin), section 3.2"
    published = (
        "Complexity per layer and sequential operations: self-attention O(n^2 d) and O(1), recurrent O(n "
        "d^2) and O(n), convolutional O(k n d^2) and O(1), restricted to r neighbours O(r n d). For one of "
        "the n tokens that is n^1, n^0, n^0 and n^0; the weights of attention are n^2 numbers a head."
    )
    criterion = (
        "Exponents of the length are fitted to time and memory per token from fit_from tokens on, batch 1. "
        f"Holds if those of the forward pass are within {TOLERANCE} of 1 for attention to all and of 0 for "
        "the others, and one more token behind a cache gets dearer with length for it at least twice as much "
        f"as for the others. Partly if attention's exponent of time is at least {MARGIN} above all others."
    )

    width: int = Field(default=64, ge=4, multiple_of=4)
    """Of tokens and states; small, so that the length dominates early."""
    lengths: tuple[int, ...] = Field(default=(16, 64, 256, 512, 1024, 2048, 4096), min_length=2)
    """Tokens of the sequences, rising."""
    fit_from: int = Field(default=512, ge=1)
    """Shortest length that the exponents are fitted to; below it, constant costs dominate."""
    batches: tuple[int, ...] = (8, 32)
    """Further batch sizes, at ``batch_length``, to show the gain from batching."""
    batch_length: int = Field(default=256, ge=1)
    """Length of the batched sequences."""
    tokens_per_timing: int = Field(default=4096, ge=1)
    """Short sequences are repeated within a measurement up to this many tokens."""
    repeats: int = Field(default=7, ge=1)
    """Measurements of each; the fastest counts, as the least disturbed."""

    @model_validator(mode="after")
    def _check_lengths(self) -> LengthCost:
        num_fitted = sum(length >= self.fit_from for length in self.lengths)
        if list(self.lengths) != sorted(set(self.lengths)) or num_fitted < 2:
            raise ValueError("lengths must rise, and at least two of them reach fit_from")
        return self

    @torch.no_grad()
    def run(self, progress: lab.OnProgress, *, seed: int) -> list[LengthRow]:
        """Interleave all layers and lengths, so that a disturbance hits all alike."""
        generator = torch.Generator().manual_seed(seed)
        with lab.seeded(seed):
            layers = {name: build_layer(name, self.width) for name in LAYERS}
        sizes = [(length, 1) for length in self.lengths]
        sizes += [(self.batch_length, batch) for batch in self.batches]
        forward: dict[tuple[LayerName, int, int], list[float]] = defaultdict(list)
        steps: dict[tuple[LayerName, int], list[float]] = defaultdict(list)
        repeats = [(repeat + 1, self.repeats) for repeat in range(self.repeats)]
        for _ in lab.tracked(progress, repeats, "repeat {} of {}"):
            for name, (length, batch) in product(LAYERS, sizes):
                x = torch.randn(batch, length, self.width, generator=generator)
                num_calls = max(1, self.tokens_per_timing // (length * batch))
                seconds = time_calls(forward_of(layers[name], x), num_calls)
                forward[name, length, batch].append(seconds / (length * batch))
            for name in LAYERS:
                x = torch.randn(1, 1, self.width, generator=generator)
                taken = time_steps(stepper_of(name, self.width, layers, x), self.lengths)
                for length, seconds in zip(self.lengths, taken, strict=True):
                    steps[name, length].append(seconds)
        rows: list[LengthRow] = [
            ForwardRow(
                layer=name,
                length=length,
                batch=batch,
                us_per_token=min(seconds) * 1e6,
                sequential_operations=length if name == "recurrent" else 1,
            )
            for (name, length, batch), seconds in forward.items()
        ]
        for (name, length), rounds in steps.items():
            rows.append(StepRow(layer=name, length=length, us=min(rounds) * 1e6))
        return [
            *rows,
            *(count_memory(name, self.width, length) for name, length in product(LAYERS, self.lengths)),
        ]

    def judge(self, rows: Sequence[LengthRow]) -> lab.Judgement:
        exponents = {name: self._exponent(self._alone(rows, name), "us_per_token") for name in LAYERS}
        counts = {name: lab.rows_of(rows, MemoryRow, layer=name) for name in LAYERS}
        memory = {name: self._exponent(found, "bytes_per_token") for name, found in counts.items()}
        steps = {name: self._fitted(lab.rows_of(rows, StepRow, layer=name)) for name in LAYERS}
        growth = {name: found[-1].us / found[0].us for name, found in steps.items()}
        agree = all(
            abs(each[name] - THEORY[name]) <= TOLERANCE for each in (exponents, memory) for name in LAYERS
        )
        others = [name for name in LAYERS if name != "attention"]
        dearer = all(growth["attention"] >= 2 * growth[name] for name in others)
        ahead = all(exponents["attention"] - exponents[name] >= MARGIN for name in others)
        fitted = ", ".join(f"{name} {exponents[name]:+.2f} (theory {THEORY[name]:.0f})" for name in LAYERS)
        counted = ", ".join(f"{name} {memory[name]:+.2f}" for name in LAYERS)
        lengths = lab.column(steps["attention"], "length")
        grown = ", ".join(f"{name} {growth[name]:.1f}" for name in LAYERS)
        return lab.Judgement(
            verdict=lab.decide(holds=agree and dearer, partly=ahead),
            measured=f"Exponents of the time per token: {fitted}, of its memory: {counted}; "
            f"a step at {lengths[-1]:,} tokens, compared with {lengths[0]:,}, takes times {grown}"
            f"{self._gains(rows)}",
        )

    def draw(self, rows: Sequence[LengthRow]) -> lab.Figure:
        figure, (forward, step, memory) = lab.new_panels(3)
        for colour, name in zip(lab.COLOURS, LAYERS, strict=False):
            alone, counted = self._alone(rows, name), lab.rows_of(rows, MemoryRow, layer=name)
            fitted = f"n^{self._exponent(alone, 'us_per_token'):.2f}, theory n^{THEORY[name]:.0f}"
            of_memory = f"n^{self._exponent(counted, 'bytes_per_token'):.2f}"
            for axes, shown, field, text in (
                (forward, alone, "us_per_token", f"{name}, {fitted}"),
                (step, lab.rows_of(rows, StepRow, layer=name), "us", name),
                (memory, counted, "bytes_per_token", f"{name}, {of_memory}"),
            ):
                lab.draw_curve(axes, shown, "length", field, color=colour, marker="o", label=text)
        for axes, y, title in (
            (forward, "us per token", "forward pass, batch 1"),
            (step, "us", "one decoding step, with a cache"),
            (memory, "bytes per token", "memory, with the weights"),
        ):
            lab.label(axes, x="tokens n", y=y, title=title, legend=True, log="xy", base=2)
            axes.axvline(self.fit_from, color="grey", linestyle=":")
        return figure

    def _fitted(self, rows: Sequence[LengthRowT]) -> list[LengthRowT]:
        return sorted((row for row in rows if row.length >= self.fit_from), key=attrgetter("length"))

    def _exponent(self, rows: Sequence[LengthRow], field: str) -> float:
        fitted = self._fitted(rows)
        return lab.fit_exponent(lab.column(fitted, "length"), lab.column(fitted, field))

    def _alone(self, rows: Sequence[LengthRow], name: LayerName) -> list[ForwardRow]:
        return lab.rows_of(rows, ForwardRow, layer=name, batch=1)

    def _gains(self, rows: Sequence[LengthRow]) -> str:
        """Say what batching saves each layer: only the recurrent one has waited for something to do."""
        at_length = [row for row in lab.rows_of(rows, ForwardRow) if row.length == self.batch_length]
        largest = max((row.batch for row in at_length), default=1)
        if largest == 1 or not any(row.batch == 1 for row in at_length):
            return ""
        times = {(row.layer, row.batch): row.us_per_token for row in at_length}
        gains = ", ".join(f"{name} {times[name, 1] / times[name, largest]:.1f}" for name in LAYERS)
        return f"; {largest} sequences at once make a token cheaper by times {gains}"


CLAIM = LengthCost()
