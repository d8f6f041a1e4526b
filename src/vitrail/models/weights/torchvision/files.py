"""Which file of PyTorch's server holds which weights, and how their images were prepared for testing.

Taken from torchvision 0.28's own list of weights.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT = "IMAGENET1K_V1"


class PublishedFile(NamedTuple):
    """One file of weights for ImageNet's 1,000 classes."""

    name: str
    """File name on the server; its end is the start of the file's SHA-256 digest."""
    resize_px: int
    """Length that the shorter side was brought to before the central crop."""
    crop_px: int
    """Side of the crop."""
    interpolation: str
    """Filter of the resizing."""


FILES = {
    "efficientnet_b0": PublishedFile("efficientnet_b0_rwightman-7f5810bc.pth", 256, 224, "bicubic"),
    "efficientnet_b1": PublishedFile("efficientnet_b1_rwightman-bac287d4.pth", 256, 240, "bicubic"),
    "efficientnet_b1.IMAGENET1K_V2": PublishedFile("efficientnet_b1-c27df63c.pth", 255, 240, "bilinear"),
    "efficientnet_b2": PublishedFile("efficientnet_b2_rwightman-c35c1473.pth", 288, 288, "bicubic"),
    "efficientnet_b3": PublishedFile("efficientnet_b3_rwightman-b3899882.pth", 320, 300, "bicubic"),
    "efficientnet_b4": PublishedFile("efficientnet_b4_rwightman-23ab8bcd.pth", 384, 380, "bicubic"),
    "efficientnet_b5": PublishedFile("efficientnet_b5_lukemelas-1a07897c.pth", 456, 456, "bicubic"),
    "efficientnet_b6": PublishedFile("efficientnet_b6_lukemelas-24a108a5.pth", 528, 528, "bicubic"),
    "efficientnet_b7": PublishedFile("efficientnet_b7_lukemelas-c5b4e57e.pth", 600, 600, "bicubic"),
    "resnet18": PublishedFile("resnet18-f37072fd.pth", 256, 224, "bilinear"),
    "resnet34": PublishedFile("resnet34-b627a593.pth", 256, 224, "bilinear"),
    "resnet50": PublishedFile("resnet50-0676ba61.pth", 256, 224, "bilinear"),
    "resnet50.IMAGENET1K_V2": PublishedFile("resnet50-11ad3fa6.pth", 232, 224, "bilinear"),
    "resnet101": PublishedFile("resnet101-63fe2227.pth", 256, 224, "bilinear"),
    "resnet101.IMAGENET1K_V2": PublishedFile("resnet101-cd907fc2.pth", 232, 224, "bilinear"),
    "resnet152": PublishedFile("resnet152-394f9c45.pth", 256, 224, "bilinear"),
    "resnet152.IMAGENET1K_V2": PublishedFile("resnet152-f82ba261.pth", 232, 224, "bilinear"),
    "swin_t": PublishedFile("swin_t-704ceda3.pth", 232, 224, "bicubic"),
    "swin_s": PublishedFile("swin_s-5e29d889.pth", 246, 224, "bicubic"),
    "swin_b": PublishedFile("swin_b-68c6b09e.pth", 238, 224, "bicubic"),
    "swin_v2_t": PublishedFile("swin_v2_t-b137f0e2.pth", 260, 256, "bicubic"),
    "swin_v2_s": PublishedFile("swin_v2_s-637d8ceb.pth", 260, 256, "bicubic"),
    "swin_v2_b": PublishedFile("swin_v2_b-781e5279.pth", 272, 256, "bicubic"),
    "vit_b_16": PublishedFile("vit_b_16-c867db91.pth", 256, 224, "bilinear"),
    "vit_b_16.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_b_16_swag-9ac1b537.pth", 384, 384, "bicubic"),
    "vit_b_16.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_b_16_lc_swag-4e70ced5.pth", 224, 224, "bicubic"),
    "vit_b_32": PublishedFile("vit_b_32-d86f8d99.pth", 256, 224, "bilinear"),
    "vit_l_16": PublishedFile("vit_l_16-852ce7e3.pth", 242, 224, "bilinear"),
    "vit_l_16.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_l_16_swag-4f3808c9.pth", 512, 512, "bicubic"),
    "vit_l_16.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_l_16_lc_swag-4d563306.pth", 224, 224, "bicubic"),
    "vit_l_32": PublishedFile("vit_l_32-c7638314.pth", 256, 224, "bilinear"),
    "vit_h_14.IMAGENET1K_SWAG_E2E_V1": PublishedFile("vit_h_14_swag-80465313.pth", 518, 518, "bicubic"),
    "vit_h_14.IMAGENET1K_SWAG_LINEAR_V1": PublishedFile("vit_h_14_lc_swag-c1eb923e.pth", 224, 224, "bicubic"),
}
