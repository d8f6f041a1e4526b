"""One of two processes that train a small CLIP together; run by test_contrastive.py."""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.data.text_preprocessing import ImageTextPreprocessing
from vitrail.models import build
from vitrail.tasks.contrastive.objective import ContrastiveObjective
from vitrail.tasks.contrastive.samples import ImageTextSample

SHARES = ((0, 1, 2), (3, 4))  # of the samples, one for each process


def make_model() -> nn.Module:
    """Return the same model in every process."""
    torch.manual_seed(0)
    sizes = {"image_width": 12, "image_depth": 1, "image_num_heads": 3, "patch_size": 8, "embedding_dim": 7}
    texts = {"text_width": 10, "text_depth": 1, "text_num_heads": 2, "vocabulary_size": 11, "max_length": 6}
    return build("clip_b32", image_size=(16, 16), begin_id=1, end_id=2, **sizes, **texts)


def make_sample(place: int) -> ImageTextSample:
    """Return one of five samples; a training sample has one text."""
    generator = torch.Generator().manual_seed(place)
    image = torch.randint(256, (3, 16, 16), generator=generator, dtype=torch.uint8)
    words = torch.randint(3, 11, (2 + place % 3,), generator=generator).tolist()
    return ImageTextSample(image, ([1, *words[:4], 2],), place)


def gradients_of(places: tuple[int, ...], world_size: int) -> dict[str, Tensor]:
    """Return what ``TrainStep`` makes of a share: the gradients of the mean over all processes."""
    model = make_model()
    called = DistributedDataParallel(model) if world_size > 1 else model
    task = ContrastiveObjective(ImageTextPreprocessing(image_size=(16, 16)))
    loss = task.loss(called, task.collate([make_sample(place) for place in places], None))
    count = loss.count.clone()
    total = loss.total.detach().clone()
    if world_size > 1:
        dist.all_reduce(count)
        dist.all_reduce(total)
    torch.autograd.backward(loss.total * (world_size / count))
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {**found, "loss": total / count}


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    tensors = gradients_of(SHARES[rank], world_size=2)
    dist.destroy_process_group()
    safetensors.torch.save_file(tensors, folder / f"{rank}.safetensors")
