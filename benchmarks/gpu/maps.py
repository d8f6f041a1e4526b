"""What attention maps cost under the fast kernels, and windows by block masks beside batches of windows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kit import Job, Setting, autocast, precision_of, ratio, take_turns


def cost(setting: Setting) -> dict[str, Any]:
    """Time a ViT plain and recording, with scaled_dot_product_attention and with FlexAttention."""
    from vitrail.interpret import record_attention
    from vitrail.models import build

    torch.manual_seed(0)
    changes = {} if not setting.quick else {"width": 24, "depth": 2, "num_heads": 2, "image_size": (32, 32)}
    model = build(setting.pick("vit_b16", "vit_ti16"), **changes).to(setting.device).eval()
    size = setting.pick(224, 32)
    images = torch.randn(setting.pick(64, 2), 3, size, size, device=setting.device)
    precision = precision_of(setting)

    def plain() -> Tensor:
        with torch.inference_mode(), autocast(setting, precision):
            return model(images)

    def recording(**options: Any) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with record_attention(model, **options):
                return plain()

        return call

    calls = {
        "plain": plain,
        "last layer": recording(layers=-1),
        "class token, all layers": recording(queries=[0]),
        "all": recording(),
    }
    layers = [layer for layer in model.modules() if hasattr(layer, "tap")]

    def with_flex() -> Tensor:
        for layer in layers:
            layer.attend = flex_attend(setting)
        try:
            return plain()
        finally:
            for layer in layers:
                del layer.attend

    expected, found = plain().float(), with_flex().float()
    apart = float((found - expected).abs().max() / expected.abs().max())
    assert apart < 5e-2, f"FlexAttention differs by {apart:.1e}"
    calls["flex"] = with_flex
    seconds = take_turns(calls, setting, rounds=setting.pick(9, 1), bursts=setting.pick(3, 1))
    times = {name: statistics.median(values) for name, values in seconds.items()}
    shown = ", ".join(
        f"{name} {time / times['plain']:.2f}" for name, time in times.items() if name != "plain"
    )
    return {"shows": f"times of a plain pass ({1000 * times['plain']:.1f} ms): {shown}", "seconds": seconds}


def flex_attend(setting: Setting) -> Callable[..., Tensor]:
    """Return FlexAttention in the place of ``attend``, where there is neither bias nor mask."""
    flex = flex_attention(setting)

    def attend(
        query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None, **others: Any
    ) -> Tensor:
        assert others.get("bias") is None
        assert others.get("may_attend") is None
        return flex(query, key, value, scale=scale)

    return attend


_COMPILED: dict[bool, Any] = {}


def flex_attention(setting: Setting) -> Any:
    """Return FlexAttention, compiled but in the rehearsal."""
    from torch.nn.attention.flex_attention import flex_attention as plain

    if setting.quick:
        return plain
    if not _COMPILED:
        _COMPILED[True] = torch.compile(plain)
    return _COMPILED[True]


def windows(setting: Setting) -> dict[str, Any]:
    """Time shifted windows with a bias: as a batch of windows, and by a block mask over the whole grid."""
    from torch.nn.attention.flex_attention import create_block_mask

    from vitrail.nn.attention import attend
    from vitrail.nn.windows import Windows, window_mask, window_positions

    torch.manual_seed(0)
    batch, heads, dim, side, length = setting.pick((32, 3, 32, 56, 7), (1, 2, 16, 14, 7))
    cut = Windows((side, side), (length, length), (length // 2, length // 2))
    tokens, num_windows = length**2, cut.num_windows
    precision = precision_of(setting)
    kind = torch.bfloat16 if precision == "bfloat16" and setting.is_gpu else torch.float32
    shape = (batch, heads, side**2, dim)
    query, key, value = (torch.randn(shape, device=setting.device, dtype=kind) for _ in range(3))
    bias = torch.randn(heads, tokens, tokens, device=setting.device, dtype=kind)
    places = window_positions(cut, device=torch.device(setting.device))  # windows tokens
    order, back = places.flatten(), places.flatten().argsort()
    may_attend = window_mask(cut, device=torch.device(setting.device))
    assert may_attend is not None
    mask = bias.expand(batch, num_windows, *bias.shape).flatten(0, 1)
    mask = mask.masked_fill(~may_attend.repeat(batch, 1, 1, 1), float("-inf"))

    def apart() -> Tensor:
        parts = [
            each[:, :, order].reshape(batch, heads, num_windows, tokens, dim).transpose(1, 2).flatten(0, 1)
            for each in (query, key, value)
        ]
        out = attend(*parts, bias=mask)
        return out.reshape(batch, num_windows, heads, tokens, dim).transpose(1, 2).flatten(2, 3)[:, :, back]

    # In window order the blocks of the mask lie on the diagonal.
    slot = torch.arange(len(order), device=setting.device)
    window_of, place_of = slot // tokens, slot % tokens
    allowed = may_attend[:, 0]
    ordered = [each[:, :, order].contiguous() for each in (query, key, value)]

    def is_seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        same = window_of[q] == window_of[k]
        return same & allowed[window_of[q], place_of[q], place_of[k]]

    def with_bias(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + bias[h, place_of[q], place_of[k]]

    block = create_block_mask(is_seen, None, None, len(order), len(order), device=setting.device)
    flex = flex_attention(setting)

    def by_blocks() -> Tensor:
        return flex(*ordered, score_mod=with_bias, block_mask=block)

    with torch.inference_mode():
        difference = float((by_blocks()[:, :, back] - apart()).abs().max())
        assert difference < (5e-2 if kind == torch.bfloat16 else 1e-4), f"they differ by {difference:.1e}"
        calls = {"a batch of windows": apart, "block mask": by_blocks}
        seconds = take_turns(calls, setting, rounds=setting.pick(9, 1), bursts=setting.pick(10, 1))
    shown = f"a block mask is {ratio(seconds, 'block mask', 'a batch of windows')} times as fast"
    return {"shows": f"{shown} as a batch of windows, which reorders its tokens", "seconds": seconds}


JOBS = {"cost": Job(cost, 90), "windows": Job(windows, 90)}
