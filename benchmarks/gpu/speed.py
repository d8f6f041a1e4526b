"""Forward passes and training steps beside timm, DETR beside transformers, decoding beside Marian."""

from __future__ import annotations

import copy
import functools
import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from forward import PAIRS, TOLERANCE, build_sides
from kit import Job, Setting, autocast, fastest, needs_package, precision_of, ratio, take_turns

MODES = {"eager": None, "compiled": "default", "graphs": "reduce-overhead"}
LABELS = 1000


def ceiling(setting: Setting) -> dict[str, Any]:
    """Measure the fastest matrix product in each precision."""
    rates = {name: product_rate(setting, name) for name in ("float32", "tf32", "bfloat16")}
    shown = ", ".join(f"{name} {rate / 1e12:.1f}" for name, rate in rates.items())
    return {"shows": f"TFLOP/s of matrix products: {shown}", "flops": rates}


def product_rate(setting: Setting, name: str) -> float:
    """Return the best FLOP/s over some sizes."""
    kind = torch.bfloat16 if name == "bfloat16" else torch.float32
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    rates = []
    for size in setting.pick((4096, 8192), (256,)):
        left, right = (torch.randn(size, size, device=setting.device, dtype=kind) for _ in range(2))
        seconds = take_turns({"product": lambda x=left, y=right: x @ y}, setting, rounds=5, bursts=5)
        rates.append(2 * size**3 / min(seconds["product"]))
    torch.set_float32_matmul_precision(former)
    return max(rates)


def sides_of(name: str, setting: Setting) -> dict[str, nn.Module]:
    """Return timm's model and ours; in the rehearsal small ones, timm's only where it is installed."""
    if setting.quick:
        return {"vitrail": small_vit(), **({"timm": timm_vit()} if importlib.util.find_spec("timm") else {})}
    needs_package("timm")
    return build_sides(name)


def small_vit() -> nn.Module:
    from vitrail.models import build

    return build("vit_ti16", width=24, depth=2, num_heads=2, image_size=(32, 32)).eval()


def timm_vit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=16, embed_dim=24, depth=2, num_heads=2).eval()


def modes_of(setting: Setting) -> dict[str, str | None]:
    return {"eager": None} if setting.quick else MODES


def compiled_by(model: Any, mode: str | None) -> Any:
    return model if mode is None else torch.compile(model, mode=mode)


def forward(name: str) -> Callable[[Setting], dict[str, Any]]:
    def run(setting: Setting) -> dict[str, Any]:
        precision, batch = precision_of(setting), setting.pick(128, 2)
        sides = sides_of(name, setting)
        size = setting.pick(224, 32)
        images = torch.randn(batch, 3, size, size, device=setting.device)

        def passing(model: Any) -> Callable[[], Any]:
            def call() -> Any:
                with torch.inference_mode(), autocast(setting, precision):
                    return model(images)

            return call

        calls, memory = {}, {}
        for side, model in sides.items():
            model.to(setting.device)
            for mode, how in modes_of(setting).items():
                calls[f"{side} {mode}"] = passing(compiled_by(model, how))
        results = {each: call().float().clone() for each, call in calls.items()}  # graphs reuse it
        expected = results["vitrail eager"]
        for each, logits in results.items():
            apart = float((logits - expected).abs().max() / expected.abs().max())
            assert setting.quick or apart <= TOLERANCE["bfloat16"], f"{each} differs by {apart:.1e}"
        if setting.is_gpu:
            memory = {each: peak_mib(call) for each, call in calls.items()}
        calls["ceiling"] = product_of(setting)
        seconds = take_turns(calls, setting, rounds=setting.pick(9, 1), bursts=setting.pick(5, 1))
        return compared(seconds, batch, memory)

    return run


def step(name: str) -> Callable[[Setting], dict[str, Any]]:
    def run(setting: Setting) -> dict[str, Any]:
        precision, batch = precision_of(setting), setting.pick(64, 2)
        sides = sides_of(name, setting)
        size = setting.pick(224, 32)
        images = torch.randn(batch, 3, size, size, device=setting.device)
        labels = torch.randint(0, LABELS, (batch,), device=setting.device)
        calls = {}
        for mode, how in modes_of(setting).items():
            if how == "reduce-overhead":  # its graphs hold the gradients of the step before
                continue
            ours = copy.deepcopy(sides["vitrail"])
            calls[f"vitrail {mode}"] = vitrail_step(ours, how, images, labels, precision, setting)
            if "timm" in sides:
                theirs = copy.deepcopy(sides["timm"])
                calls[f"timm {mode}"] = timm_step(theirs, how, images, labels, precision)
        memory = {each: peak_mib(call) for each, call in calls.items()} if setting.is_gpu else {}
        calls["ceiling"] = product_of(setting)
        seconds = take_turns(calls, setting, rounds=setting.pick(9, 1), bursts=setting.pick(3, 1))
        return compared(seconds, batch, memory)

    return run


def timm_step(model: Any, how: str | None, images: Any, labels: Any, precision: str) -> Callable[[], Any]:
    """Return a step as a training script of timm takes it, with torch's fastest AdamW."""
    model = model.to(images.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    called = compiled_by(model, how)
    on = precision == "bfloat16"

    def call() -> None:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=on):
            logits = called(images)
        torch.nn.functional.cross_entropy(logits.float(), labels).backward()
        optimiser.step()
        optimiser.zero_grad()

    return call


def vitrail_step(
    model: Any, how: str | None, images: Any, labels: Any, precision: str, setting: Setting
) -> Callable[[], Any]:
    """Return the library's own training step."""
    train_step, batch = our_step(model, images, labels, precision, setting, compiled=how is not None)
    return lambda: train_step([batch], 0, train_step.settings)


def our_step(
    model: Any, images: Any, labels: Any, precision: str, setting: Setting, *, compiled: bool = False
) -> tuple[Any, Any]:
    from vitrail.data.preprocessing import Preprocessing
    from vitrail.tasks.classification.objective import ClassificationObjective, ImageBatch
    from vitrail.tasks.classification.settings import ClassificationExperiment, ImageDataSettings
    from vitrail.train.processes import single_process
    from vitrail.train.settings import OptimSettings, TrainSettings
    from vitrail.train.step import TrainStep

    size = tuple(images.shape[-2:])
    experiment = ClassificationExperiment(
        data=ImageDataSettings(source="random", image_size=size),
        model=model.config,
        optim=OptimSettings(name="adamw", learning_rate=1e-4, clip_norm=0, ema_fraction=0),
        train=TrainSettings(steps=1000, batch_size=len(images), precision=precision, compile=compiled),
    )
    objective = ClassificationObjective(LABELS, Preprocessing(image_size=size))
    device = torch.device("cuda", 0) if setting.is_gpu else torch.device("cpu")
    train_step = TrainStep(objective, model, experiment, single_process(device))
    batch = ImageBatch(
        images=images,
        targets=torch.nn.functional.one_hot(labels, LABELS).float(),
        labels=labels,
        indices=torch.arange(len(images)),
    )
    return train_step, batch


def product_of(setting: Setting) -> Callable[[], Any]:
    """Return one matrix product, so that the ceiling is of the same minutes."""
    size = setting.pick(8192, 256)
    kind = torch.bfloat16 if precision_of(setting) == "bfloat16" else torch.float32
    left, right = (torch.randn(size, size, device=setting.device, dtype=kind) for _ in range(2))
    return lambda: left @ right


def peak_mib(call: Callable[[], Any]) -> float:
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def compared(seconds: dict[str, list[float]], batch: int, memory: dict[str, float]) -> dict[str, Any]:
    """Return the rates of all modes, and the ratio of the best of each side."""
    rates = {each: batch / statistics.median(values) for each, values in seconds.items() if each != "ceiling"}
    ours, shown = fastest(seconds, "vitrail"), "timm is not installed"
    if "timm eager" in seconds:
        theirs, eager = fastest(seconds, "timm"), ratio(seconds, "vitrail eager", "timm eager")
        shown = f"{ours} / {theirs}: {ratio(seconds, ours, theirs)}; eager {eager}"
    return {
        "shows": f"{shown}; {rates[ours]:.0f} images/s",
        "images_per_s": rates,
        "memory_mib": memory,
        "seconds": seconds,
    }


def detr(setting: Setting) -> dict[str, Any]:
    """Time DETR beside transformers' own."""
    needs_package("transformers")
    from detection_inference import build_sides as build_detectors

    theirs, ours = (model.to(setting.device) for model in build_detectors("detr_r50"))
    shape = setting.pick((8, 3, 800, 1066), (1, 3, 64, 64))
    images = torch.randn(shape, device=setting.device)
    precision = precision_of(setting)

    def passing(model: Any) -> Callable[[], Any]:
        def call() -> Any:
            with torch.inference_mode(), autocast(setting, precision):
                return model(images)

        return call

    calls = {"transformers eager": passing(theirs), "vitrail eager": passing(ours)}
    if not setting.quick:
        calls["transformers compiled"] = passing(torch.compile(theirs))
        calls["vitrail compiled"] = passing(torch.compile(ours))
    seconds = take_turns(calls, setting, rounds=setting.pick(9, 1), bursts=setting.pick(3, 1))
    mine, other = fastest(seconds, "vitrail"), fastest(seconds, "transformers")
    eager = ratio(seconds, "vitrail eager", "transformers eager")
    return {"shows": f"{mine} / {other}: {ratio(seconds, mine, other)}; eager {eager}", "seconds": seconds}


def decoding(setting: Setting) -> dict[str, Any]:
    """Time greedy and beam search beside transformers' Marian, with the same random weights."""
    needs_package("transformers")
    from transformers import MarianConfig, MarianMTModel

    from vitrail.models import build
    from vitrail.models.decoding import beam_search

    shape = {"width": 512, "num_heads": 8, "hidden_dim": 2048, "encoder_depth": 6, "decoder_depth": 6}
    shape = setting.pick(
        shape, {"width": 16, "num_heads": 2, "hidden_dim": 16, "encoder_depth": 1, "decoder_depth": 1}
    )
    words, longest, batch = setting.pick((32000, 32, 64), (50, 5, 2))
    settings = {"source_vocabulary_size": words, "target_vocabulary_size": words, "output_bias": True}
    ours = build("transformer_base", **shape, **settings, max_length=128).to(setting.device).eval()
    with torch.no_grad():
        ours.output_bias[ours.config.end_id] = -30.0  # never ends, so that all write equally much
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=words,
            d_model=shape["width"],
            encoder_layers=shape["encoder_depth"],
            decoder_layers=shape["decoder_depth"],
            encoder_attention_heads=shape["num_heads"],
            decoder_attention_heads=shape["num_heads"],
            encoder_ffn_dim=shape["hidden_dim"],
            decoder_ffn_dim=shape["hidden_dim"],
            max_position_embeddings=256,
            pad_token_id=0,
            bos_token_id=1,
            decoder_start_token_id=1,
            eos_token_id=2,
            forced_eos_token_id=None,
        )
    )
    theirs = theirs.to(setting.device).eval()
    with torch.no_grad():
        theirs.final_logits_bias[0, 2] = -30.0
    rows = torch.randint(3, words, (batch, 24), device=setting.device)
    lengths = torch.full((batch,), 24, device=setting.device)

    def write(beam: int, *, is_ours: bool) -> Any:
        with torch.inference_mode():
            if is_ours:
                return beam_search(
                    ours,
                    ours.start(rows, lengths),
                    begin_id=1,
                    end_id=2,
                    pad_id=0,
                    max_lengths=torch.full_like(lengths, longest),
                    beam_size=beam,
                    patience=1,
                )
            return theirs.generate(
                input_ids=rows,
                attention_mask=torch.ones_like(rows),
                num_beams=beam,
                do_sample=False,
                max_new_tokens=longest,
                min_new_tokens=longest,
            )

    shown, found = [], {}
    for beam in (1, 5):
        calls = {
            "vitrail": functools.partial(write, beam, is_ours=True),
            "transformers": functools.partial(write, beam, is_ours=False),
        }
        seconds = take_turns(calls, setting, rounds=setting.pick(7, 1))
        found[f"beam {beam}"] = seconds
        rate = batch / statistics.median(seconds["vitrail"])
        shown.append(f"beam {beam}: {ratio(seconds, 'vitrail', 'transformers')}, {rate:.0f} sentences/s")
    return {"shows": "; ".join(shown), "seconds": found}


JOBS = {
    "ceiling": Job(ceiling, 40),
    **{f"forward_{name}": Job(forward(name), 110, rehearsed=name == "vit_s16") for name in PAIRS},
    **{f"step_{name}": Job(step(name), 130, rehearsed=name == "vit_s16") for name in PAIRS},
    "detr": Job(detr, 120),
    "decoding": Job(decoding, 60),
}
