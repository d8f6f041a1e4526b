"""What parity tests need beside the other tests: timm and torchvision, which `make parity` installs.

The wheels of torchvision are linked against CUDA libraries, so beside a CPU build of torch its operators
do not load, and its import fails where it registers their shapes. Declared first, they are not missed.
"""

from __future__ import annotations

import importlib.util

import torch

HAS_REFERENCES = importlib.util.find_spec("timm") is not None
collect_ignore_glob = [] if HAS_REFERENCES else ["test_*.py"]

if HAS_REFERENCES and not torch.cuda.is_available():
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
