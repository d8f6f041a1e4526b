"""Two layouts of transformers: the names in the hub's files, and those of the library's models since 5.0.

The key tables of this folder know the latter. Files keep the former, so that older releases read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

# In the hub's files; in the models. Longer patterns stand before those they contain.
_RENAMED = (
    (r"\b(vit|deit)\.encoder\.layer\.", r"\1.layers."),
    (r"\.attention\.(?:attention|self)\.query\.", ".attention.q_proj."),
    (r"\.attention\.(?:attention|self)\.key\.", ".attention.k_proj."),
    (r"\.attention\.(?:attention|self)\.value\.", ".attention.v_proj."),
    (
        r"\.attention\.self\.relative_position_(bias_table|index)$",
        r".attention.relative_position_bias.relative_position_\1",
    ),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(?<!attention)\.output\.dense\.", ".mlp.fc2."),
)
_RENAMED_OF_DETR = (
    (r"\.backbone\.conv_encoder\.model\.(?:_backbone\.)?", ".backbone.model."),
    (r"\.out_proj\.", ".o_proj."),
    (r"(coder\.layers\.\d+)\.(fc[12])\.", r"\1.mlp.\2."),
)
RENAMED = {  # of the types whose names differ; the others' files and models agree
    "vit": _RENAMED,
    "deit": _RENAMED,
    "swin": _RENAMED,
    "detr": _RENAMED_OF_DETR,
}


def from_files(state: Mapping[str, Tensor], model_type: str) -> dict[str, Tensor]:
    """Return the tensors of a hub file under the names of the library's models.

    Args:
        state: names that are the models' already stay as they are.
        model_type: what the hub's ``config.json`` says.
    """
    renamed = RENAMED.get(model_type, ())
    return {_rename(name, renamed): tensor for name, tensor in state.items()}


def _rename(name: str, renamed: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in renamed:
        name = re.sub(pattern, replacement, name)
    return name
