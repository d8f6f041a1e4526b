"""A small random CLIP in a folder as transformers saves it, with a vocabulary of merged bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

from making.random_weights import randomise

MERGES = (
    ("c", "a"),
    ("ca", "t</w>"),
    ("d", "o"),
    ("do", "g</w>"),
    ("p", "h"),
    ("o", "t"),
    ("ph", "ot"),
    ("phot", "o</w>"),
    ("o", "f</w>"),
)


def byte_characters() -> list[str]:
    """Return the characters that byte-level vocabularies write the 256 bytes as."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    by_byte = {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [by_byte[byte] for byte in range(256)]


def clip_numbers() -> dict[str, int]:
    """Return the number of every piece, in the order of the published vocabulary."""
    characters = byte_characters()
    pieces = [*characters, *(f"{each}</w>" for each in characters), *("".join(pair) for pair in MERGES)]
    return {piece: number for number, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}


def clip_tokenizer() -> CLIPTokenizer:
    """Return the tokenizer of transformers with this vocabulary."""
    return CLIPTokenizer(vocab=clip_numbers(), merges=list(MERGES))


def build_hf_clip(**changes: Any) -> CLIPModel:
    """Return a small model whose every tensor is random.

    Args:
        changes: fields of the image tower that differ.
    """
    numbers = clip_numbers()
    vision = {
        "hidden_size": 24,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "patch_size": 8,
        "image_size": 40,
    }
    text = {
        "hidden_size": 20,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 13,
        "vocab_size": len(numbers),
        "bos_token_id": len(numbers) - 2,
        "eos_token_id": len(numbers) - 1,
        "pad_token_id": len(numbers) - 1,
    }
    config = CLIPConfig(vision_config=vision | changes, text_config=text, projection_dim=14)
    model = randomise(CLIPModel(config))
    model.logit_scale.data.fill_(1.3)
    return model


def write_clip_folder(folder: Path, **changes: Any) -> CLIPModel:
    """Save a model with ``vocab.json``, ``merges.txt`` and its preparation of images, and return it."""
    model = build_hf_clip(**changes)
    model.save_pretrained(folder)
    size = model.config.vision_config.image_size
    prepared = {
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "size": {"shortest_edge": size},
        "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared), encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps(clip_numbers()), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return model
