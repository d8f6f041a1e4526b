"""Tiny BERTs with random weights, as transformers writes them into a folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification, BertModel

BERT_PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "dog",
    "run",
    "##s",
    "##ning",
    "caf",
    "##e",
    ".",
    "'",
]
BERT_HEADS = {
    "sentence": BertForSequenceClassification,
    "words": BertForTokenClassification,
    "none": BertModel,
}


def write_bert_folder(
    folder: Path, kind: str, *, lower_case: bool = True, **changes: object
) -> torch.nn.Module:
    torch.manual_seed(6)
    settings = {
        "vocab_size": len(BERT_PIECES),
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 16,
        "num_labels": 5,
        "initializer_range": 0.5,
    }
    folder.mkdir(parents=True, exist_ok=True)
    reference = BERT_HEADS[kind](BertConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms begin at zeros and ones
    reference.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(BERT_PIECES) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower_case}))
    return reference
