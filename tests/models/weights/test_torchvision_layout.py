from __future__ import annotations

import torch

from vitrail.models import MODELS
from vitrail.models.weights.conversion import convert_to, export, rename
from vitrail.models.weights.layouts import torchvision

TINY = {"width": 12, "depth": 2, "num_heads": 3, "num_classes": 5, "patch_size": 8, "image_size": (16, 24)}


def test_files_with_the_older_names_give_the_same_model():
    config = MODELS["vit_b16"].with_changes(TINY)
    state = config.build().state_dict()
    published = export(state, source="torchvision", config=config)
    older = {
        name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): tensor
        for name, tensor in published.items()
    }

    assert older.keys() != published.keys()
    again = convert_to(rename(older, torchvision.RENAMED), source="torchvision", config=config)
    assert all(torch.equal(again[name], state[name]) for name in state)
