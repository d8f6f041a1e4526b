"""timm reads the JAX files too, by code of its own."""

from __future__ import annotations

import numpy as np
import timm
import torch

from vitrail.models import build
from vitrail.models.weights.conversion import export


def test_a_jax_file_of_ours_is_read_by_timm_as_the_same_model(tmp_path):
    model = build("vit_ti16", num_classes=1000).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    arrays = export(model.state_dict(), source="jax", config=model.config)
    np.savez(tmp_path / "weights.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    reference = timm.create_model("vit_tiny_patch16_224").eval()
    reference.load_pretrained(str(tmp_path / "weights.npz"))
    images = torch.randn(2, 3, 224, 224)

    with torch.no_grad():
        expected = reference(images)
        torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
