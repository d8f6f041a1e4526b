"""Import timm beside a build of torch that torchvision's own operators do not fit.

timm imports torchvision, and torchvision registers its compiled operators at import. Beside a CPU build of
torch those do not load; declaring the two operators that the import looks for is enough for models.
"""

from __future__ import annotations

import torch

_declared: list[torch.library.Library] = []


def import_timm() -> None:
    """Make ``import timm`` work in this process."""
    if not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
