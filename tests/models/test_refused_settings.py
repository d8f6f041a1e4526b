"""Settings of models that do not fit together: each is refused in words that say what to change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitrail.core.errors import ConfigError
from vitrail.models import MODELS
from vitrail.models.contract import building
from vitrail.models.describe import describe

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vit_ti16", {"num_heads": 5}, "num_heads 5 does not divide width 192"),
    ("vit_ti16", {"class_token": False}, "pool 'class' needs class_token"),
    ("vit_ti16", {"distilled": True, "pool": "mean"}, "distilled true needs pool 'class'"),
    ("vit_ti16", {"distilled": True, "head_hidden_dim": 7}, "distilled true needs"),
    ("vit_ti16", {"width": 6, "positions": "sinusoidal"}, "divisible by 4"),
    ("vit_ti16", {"positions": "rotary", "num_heads": 32}, "heads of a width divisible by 4, not 6"),
    ("vit_ti16", {"image_size": (0, 8)}, "holds no pixel"),
    ("vit_ti16", {"stem": {"channels": [3], "strides": [3]}}, "divides patch_size 16"),
    ("vit_ti16", {"stem": {"channels": [3], "strides": [2, 2]}}, "as many channels as strides"),
    ("vit_ti16", {"drop_path": 1.0}, "less than 1"),
    ("vit_ti16", {"mixer": "furier"}, r"mixer: there is no mixer named 'furier'.*'fourier'"),
    ("vit_ti16", {"mixer": "pooling", "qkv_bias": False}, "qkv_bias False needs mixer 'attention'"),
    ("vit_ti16", {"mixer": "pooling", "score": "dot"}, "score 'dot' needs mixer 'attention'"),
    (
        "vit_ti16",
        {"mixer": "pooling", "positions": "pairwise"},
        "positions 'pairwise' needs mixer",
    ),
    ("vit_ti16", {"mixer": "pooling", "head_dim": 7}, "head_dim 7 needs mixer 'attention'"),
    (
        "vit_ti16",
        {"mixer": "pooling", "positions": "learned+rotary"},
        r"positions 'learned\+rotary' needs mixer",
    ),
    ("vit_ti16", {"positions": "rotary", "head_dim": 6}, "heads of a width divisible by 4, not 6"),
    ("vit_ti16", {"positions": "rotary+learned"}, r"'learned\+rotary'"),
    ("vit_ti16", {"num_heads": 5, "head_dim": 7}, "num_heads 5 does not divide width 192"),
    ("vit_ti16", {"kernel_sizes": [3, 4], "mixer": "light_convolution"}, "odd and greater than zero"),
    ("vit_ti16", {"kernel_sizes": [3]}, "kernel_sizes and kernel_dropout need mixer 'light_convolution'"),
    ("vit_ti16", {"norm_layer": "group"}, "'layer' or 'batch'"),
    ("pvt_t", {"depths": (1, 1)}, "one value for each stage"),
    ("pvt_t", {"num_heads": (1, 2, 5, 3)}, "num_heads 3 does not divide width 512"),
    ("pvt_t", {"reductions": (8, 4, 2, 2)}, "the last of the reductions is 1, not 2"),
    ("pvt_t", {"depths": (1, 0, 1, 1)}, "greater than zero"),
    *(
        ("mvit_b16", changes, words)
        for changes, words in (
            ({"num_heads": 5}, "num_heads 5 does not divide width 96"),
            ({"depths": (1, 0)}, "one block in each"),
            ({"image_size": (2, 24)}, "holds no patch of 4 pixels"),
        )
    ),
    ("vit_r50_b16", {"stem": {"depths": (3, 0)}}, "at least one block in each stage"),
    (
        "vit_r50_b16",
        {"stem": {"depths": (3, 4), "width": 40}},
        "32 groups of stem's norms do not divide width 40",
    ),
    ("vit_r50_b16", {"patch_size": 24}, "stem has a stride of 16, which does not divide patch_size 24"),
    ("mvitv2_t", {"num_heads": 5}, "num_heads 5 does not divide width 96"),
    ("mvitv2_t", {"depths": ()}, "at least one stage"),
    ("mvitv2_t", {"depths": (1, 0)}, "one block in each"),
    ("mvitv2_t", {"image_size": (2, 24)}, "holds no patch of 4 pixels"),
    ("swinv2_t", {"depths": (2, 2, 2)}, "one value for each stage"),
    ("swinv2_t", {"depths": (), "num_heads": ()}, "one value for each stage"),
    ("swinv2_t", {"num_heads": (3, 5, 12, 24)}, "num_heads 5 does not divide width 192"),
    ("swinv2_t", {"depths": (2, 0, 6, 2)}, "greater than zero"),
    ("swinv2_t", {"trained_windows": (3,)}, "trained_windows needs one value for each stage"),
    ("swinv2_t", {"trained_windows": (3, 0, 3, 3)}, "are greater than zero"),
    ("swinv2_t", {"window_size": 0}, "window_size"),
    ("sequencer2d_s", {"depths": (1, 2)}, "one value for each stage"),
    ("sequencer2d_s", {"hidden_dims": (2, 0, 3, 3)}, "at least 1"),
    ("bit_r50x1", {"depths": ()}, "at least one block in each stage"),
    ("bit_r50x1", {"depths": (1, 0)}, "at least one block in each stage"),
    ("bit_r50x1", {"width": 48}, "groups do not divide width 48"),
    ("resnet50", {"depths": ()}, "at least one block in each stage"),
    ("resnet50", {"depths": (2, 0)}, "at least one block in each stage"),
    ("resnet50", {"dilated": True, "depths": (3,)}, "a second stage"),
    ("resnet50", {"dilated": True, "block": "basic"}, "needs block 'bottleneck'"),
    ("resnet50", {"zero_branches": True, "norm": "frozen"}, "use norm 'batch'"),
    ("detr_r50", {"num_heads": 5}, "num_heads 5 does not divide width 256"),
    ("detr_r50", {"width": 250, "num_heads": 5}, "width divisible by 4"),
    ("detr_r50", {"num_frozen": 6}, "num_frozen 6"),
    ("detr_r50", {"backbone_depths": (3, 0)}, "at least one block"),
    ("detr_r50", {"dilated": True, "backbone_depths": (2,)}, "second stage"),
    ("sdetr_nano", {"strides": (8, 32)}, "do not double"),
    ("sdetr_nano", {"strides": (2, 4)}, "do not double"),
    ("sdetr_nano", {"strides": (12, 24)}, "not powers of two"),
    ("sdetr_nano", {"strides": (8, 16, 32, 64)}, "needs 5 stages"),
    ("sdetr_nano", {"num_heads": 5}, "does not divide width"),
    ("sdetr_nano", {"backbone_depths": (1, 0, 1, 1)}, "greater than zero"),
    ("sdetr_nano", {"backbone": "vit_nano"}, r"model.backbone is vit_nano.*swin_t"),
    ("transformer_tiny", {"num_heads": 5}, "num_heads 5 does not divide width 128"),
    ("transformer_tiny", {"width": 15, "num_heads": 3}, "sinusoidal positions need an even width"),
    (
        "transformer_tiny",
        {"width": 15, "num_heads": 3, "positions": "rotary"},
        "rotary positions need heads of an even width",
    ),
    (
        "transformer_tiny",
        {"target_vocabulary_size": 19},
        "'all' needs vocabularies of equal size, not 10000 and 19",
    ),
    ("transformer_tiny", {"pad_id": 10_000}, "pad_id 10000 is not an id of both vocabularies"),
    ("transformer_tiny", {"mixer": "fourrier"}, "Did you mean 'fourier'"),
    (
        "transformer_tiny",
        {"mixer": "fourier", "positions": "rotary"},
        "'rotary' need mixer 'attention'",
    ),
    ("transformer_tiny", {"decoder_mixer": "fourier"}, "'dynamic_convolution'"),
    (
        "transformer_tiny",
        {"decoder_mixer": "light_convolution", "positions": "sinusoidal+relative"},
        "need mixer 'attention', not 'light_convolution'",
    ),
    ("transformer_tiny", {"kernel_dropout": 0.1}, "need mixer 'light_convolution' or 'dynamic_convolution'"),
    ("transformer_tiny", {"positions": "rotary", "head_dim": 7}, "an even width, not 7"),
    ("rnn_general", {"attention": "none"}, "set input_feeding to false"),
    ("rnn_general", {"hidden_dim": 7}, "hidden_dim"),
    (
        "rnn_general",
        {"tie": "all", "target_vocabulary_size": 13},
        "of equal size, not 8000 and 13",
    ),
    ("rnn_general", {"end_id": 8000}, "end_id 8000 is not an id of both vocabularies"),
    ("rnn_general", {"attention": "cosine"}, "attention"),
    ("rnn_general", {"cell": "rnn"}, "cell"),
    (
        "show_attend_tell",
        {"encoder": "transformer_tiny"},
        r"encoder is transformer_tiny.*a model of images",
    ),
    (
        "show_attend_tell",
        {"encoder": "vit_nano", "encoder_stage": -2},
        "encoder_stage is -2, and the encoder vit_nano has one stage",
    ),
    ("show_attend_tell", {"encoder_changes": {"image_size": 32}}, "encoder_changes sets image_size"),
    ("clip_b32", {"image_num_heads": 5}, "image_num_heads 5 does not divide"),
    ("clip_b32", {"text_num_heads": 3}, "text_num_heads 3 does not divide"),
    ("clip_b32", {"end_id": 49_408}, "end_id 49408 is not an id of the 49408 subwords"),
    ("vit_ti16", {"depth": 10**6}, "depth 1000000 is more than 512 blocks"),
    ("resnet50", {"depths": (3, 504, 6, 3)}, "is more than 512 blocks"),
    ("vit_r50_b16", {"stem": {"depths": (3, 4, 600)}}, "is more than 512 blocks"),
    ("clip_tiny", {"image_model_settings": {"depth": 10**12}}, "is more than 512 blocks"),
    ("efficientnet_b0", {"depth_factor": 1e6}, "less than or equal to 64"),
    ("vit_ti16", {"image_size": 5000}, "5000x5000 is more than 16,777,216 pixels"),
    ("clip_b32", {"image_model": "vit_nanno"}, "no model named 'vit_nanno'"),
    ("clip_b32", {"image_model": "transformer_tiny"}, "not a model of images alone"),
    ("clip_b32", {"image_model": "vit_nano", "image_model_settings": {"dept": 1}}, "no setting 'dept'"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_settings_that_do_not_fit_are_refused(name, changes, words):
    with pytest.raises(ConfigError, match=words), torch.device("meta"):
        MODELS[name].with_changes(changes).build()


@pytest.mark.parametrize("width", [3 * 10**9, 3 * 10**30])
def test_models_too_large_to_be_built_are_refused(width):
    words = r"the vit model of these settings cannot be built: .*(verflow|allocate).*Choose smaller sizes"
    changes = {"width": width}
    with pytest.raises(ConfigError, match=words):
        describe("vit_ti16", changes=changes)

    config = MODELS["vit_ti16"].with_changes(changes)
    with pytest.raises(ConfigError, match=words), building(config):
        config.build()
