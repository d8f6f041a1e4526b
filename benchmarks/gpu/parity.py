"""The same numbers on the GPU as on the CPU: every family, outputs and gradients, maps, decoding, tests."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from kit import REPOSITORY, Job, Setting, SkipError, autocast, needs_package, precision_of

TOLERANCE = 1e-4  # in float32, of the largest value of each tensor
NARROWER = 1.5, 0.05  # in fewer bits: how much farther than bfloat16 on the CPU, and of the norm of all


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Multiply float32 in TF32 or not."""
    former = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former[0])
        torch.backends.cudnn.allow_tf32 = former[1]


def one_of_each_family() -> dict[str, Any]:
    from making.small_models import small_configs

    firsts: dict[str, tuple[str, Any]] = {}
    for name, config in small_configs().items():
        firsts.setdefault(config.family, (name, config))
    return dict(firsts.values())


def inputs_of(config: Any) -> tuple[Any, ...]:
    """Return a batch; sentences are short, as small models have few positions."""
    from vitrail.models.contract import TranslationModelConfig

    size = (8, 8) if isinstance(config, TranslationModelConfig) else None
    return tuple(config.example_inputs(2, size))


def results_of(
    model: nn.Module, inputs: tuple[Any, ...], setting: Setting, *, bfloat16: bool = False
) -> list[Tensor]:
    """Return all outputs and gradients, as float32 on the CPU; what is infinite as zero."""
    model.zero_grad()
    with autocast(setting, "bfloat16" if bfloat16 else "float32"):
        outputs = [each for each in tree_leaves(model(*inputs)) if isinstance(each, Tensor)]
    floats = [each.float() for each in outputs if each.is_floating_point()]
    torch.autograd.backward(sum(each.masked_fill(each.isinf(), 0).square().mean() for each in floats))
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    found = [each.detach().float().cpu() for each in (*floats, *gradients)]
    return [each.masked_fill(each.isinf(), 0) for each in found]


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference, as a fraction of the largest value of its tensor."""
    floor = max(float(theirs.abs().max()) for theirs in expected) * 1e-3  # a gradient of zero is noise alone
    pairs = zip(found, expected, strict=True)
    return max(
        float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=floor)) for ours, theirs in pairs
    )


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the norm of the difference of all tensors together, as a fraction of their norm."""
    ours, theirs = (torch.cat([each.flatten() for each in side]) for side in (found, expected))
    return float((ours - theirs).norm() / theirs.norm())


def families(name: str) -> Job:
    """Compare outputs and gradients of every small model with the CPU's in float32.

    In fewer bits they may be as far from them as those of bfloat16 on the CPU.
    """

    def run(setting: Setting) -> dict[str, Any]:
        from making.small_models import build_shaken, small_configs

        if name == "bfloat16" and setting.is_gpu and precision_of(setting) != name:
            raise SkipError("this GPU has no bfloat16")
        torch.manual_seed(0)
        cpu = dataclasses.replace(setting, device="cpu")
        found, bad = {}, {}
        for title, config in (one_of_each_family() if setting.quick else small_configs()).items():
            on_cpu, inputs = build_shaken(config), inputs_of(config)
            expected = results_of(on_cpu, inputs, cpu)
            model = copy.deepcopy(on_cpu).to(setting.device)
            there = tree_map(lambda each: each.to(setting.device), inputs)
            with precision(name):
                ours = results_of(model, there, setting, bfloat16=name == "bfloat16")
            if name == "float32":
                found[title], limit = difference(ours, expected), TOLERANCE
            else:
                usual = distance(results_of(on_cpu, inputs, cpu, bfloat16=True), expected)
                found[title], limit = distance(ours, expected), NARROWER[0] * usual + NARROWER[1]
            print(f"{title:40}{found[title]:.1e}", flush=True)
            if not found[title] <= limit:
                bad[title] = f"{found[title]:.0e}"
        assert not bad, f"{len(bad)} of {len(found)} models differ: {bad}"
        worst = max(found, key=found.__getitem__)
        return {"shows": f"{len(found)} models, at most {found[worst]:.0e} ({worst})", "differences": found}

    return Job(run, 150, rehearsed=name != "tf32")


def compiled(setting: Setting) -> dict[str, Any]:
    """Compare a model of each family, compiled, with itself."""
    from making.small_models import build_shaken

    torch.manual_seed(0)
    configs = one_of_each_family()
    if setting.quick:
        configs = {title: config for title, config in configs.items() if config.family == "vit"}
    found, bad = {}, {}
    for title, config in configs.items():
        model = build_shaken(config).to(setting.device)
        inputs = tree_map(lambda each: each.to(setting.device), inputs_of(config))
        backend = "eager" if setting.quick else "inductor"
        fast = torch.compile(copy.deepcopy(model), backend=backend)
        try:
            expected = results_of(model, inputs, setting)
            found[title] = difference(results_of(fast, inputs, setting), expected)
        except Exception as error:
            bad[title] = str(error).strip().splitlines()[0][:100]
            continue
        print(f"{title:40}{found[title]:.1e}", flush=True)
        if found[title] > TOLERANCE:
            bad[title] = f"{found[title]:.0e}"
        torch.compiler.reset()
    assert not bad, f"{len(bad)} of {len(configs)}: {bad}"
    return {"shows": f"{len(found)} families, at most {max(found.values()):.0e}", "differences": found}


def recording(setting: Setting) -> dict[str, Any]:
    """Compare recorded maps with the CPU's, under each kernel of fused attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from making.small_models import build_shaken, small_configs
    from vitrail.interpret import record_attention
    from vitrail.interpret.record import has_attention
    from vitrail.models.contract import ImageModelConfig

    torch.manual_seed(0)
    kernels = ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION")
    kernels = kernels if setting.is_gpu else ("MATH", "FLASH_ATTENTION")
    kinds = one_of_each_family() if setting.quick else small_configs(ImageModelConfig)
    worst, counts = 0.0, dict.fromkeys(kernels, 0)
    for config in (each for each in kinds.values() if isinstance(each, ImageModelConfig)):
        model = build_shaken(config)
        if not has_attention(model):
            continue
        (images,) = inputs_of(config)
        with torch.no_grad(), record_attention(model) as expected:
            model(images)
        model, images = model.to(setting.device), images.to(setting.device)
        for kernel in kernels:
            # A kernel that does not take a layer's widths or mask leaves it to the plain one.
            allowed = [getattr(SDPBackend, kernel), SDPBackend.MATH]
            with torch.no_grad(), sdpa_kernel(allowed, set_priority=True):
                plain = model(images)
                with record_attention(model) as maps:
                    watched = model(images)
            assert torch.equal(plain, watched), f"{config.name}: recording changes the logits under {kernel}"
            assert len(maps) == len(expected), f"{config.name}: {len(maps)} maps under {kernel}"
            pairs = zip(maps, expected, strict=True)
            worst = max(worst, *(float((a.weights.cpu() - b.weights).abs().max()) for a, b in pairs))
            counts[kernel] += len(maps)
    assert worst < 1e-4, f"maps differ by {worst:.1e}"
    return {"shows": f"{sum(counts.values())} maps, at most {worst:.0e} from the CPU's", "maps": counts}


def decoding(setting: Setting) -> dict[str, Any]:
    """Compare what a small captioner and translator write with what they write on the CPU."""
    from making.small_models import small_captioner
    from making.small_translators import ENGLISH, small_translator
    from vitrail import Captioner, Translator

    generator = torch.Generator().manual_seed(1)
    image = torch.randint(0, 256, (40, 30, 3), dtype=torch.uint8, generator=generator).numpy()
    sides = []
    for device in ("cpu", setting.device):
        captioner = Captioner(small_captioner(), device=device)
        translator = Translator(small_translator(), device=device)
        written = []
        for width in (1, 3):
            written += [each.text for each in captioner.predict([image], beam_size=width)]
            written += [each.text for each in translator.translate(ENGLISH, beam_size=width)]
        sides.append(written)
    assert sides[0] == sides[1], f"{sides[1]} instead of {sides[0]}"
    return {"shows": f"{len(sides[0])} captions and translations, beams of 1 and 3, as on the CPU"}


def suite(setting: Setting) -> dict[str, Any]:
    """Run the tests; trainings, scores and predictors of theirs use the GPU, if there is one.

    The rehearsal runs those of a device that computes on the CPU and otherwise behaves as a GPU.
    """
    needs_package("pytest", "xdist")
    log = setting.output / "logs" / "suite.txt"
    quick = ["tests/train/test_far_device.py", "--all-variants"]
    files = quick if setting.quick else ["tests", "--ignore=tests/faults"]
    workers = str(min(12, len(os.sched_getaffinity(0))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", workers, *files]
    with log.open("wb") as file:
        ended = subprocess.run(
            command, cwd=REPOSITORY, env=environment, stdout=file, stderr=file, check=False
        )
    lines = log.read_text(errors="replace").splitlines()
    summary = next(
        (line for line in reversed(lines) if re.search(r"\d+ (passed|failed|error)", line)), "no summary"
    )
    failed = [line.removeprefix("FAILED ").split(" - ")[0] for line in lines if line.startswith("FAILED ")]
    assert ended.returncode == 0, f"{summary.strip('= ')}: {', '.join(failed[:12])}"
    return {"shows": summary.strip("= ")}


JOBS = {
    "float32": families("float32"),
    "tf32": families("tf32"),
    "bfloat16": families("bfloat16"),
    "recording": Job(recording, 60),
    "decoding": Job(decoding, 60),
    "compiled": Job(compiled, 300),
    "suite": Job(suite, 420),
}
