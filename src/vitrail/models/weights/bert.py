"""Load published BERTs of transformers, with their vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.text.subwords import vocabulary_to_files
from vitrail.data.text.word_pieces import WordPieces
from vitrail.data.text_preprocessing import TextPreprocessing
from vitrail.models.bert import BertConfig
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.weights.conversion import convert_to
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, hub_settings, read_settings, read_state
from vitrail.models.weights.preparation import (
    assemble,
    class_names,
    config_like_ours,
    faults_of,
    nearest_variant,
)

MODEL_TYPE = "bert"
ANY_VARIANT = "bert_base"  # of another size, whose settings are all replaced
SIZES = {"width", "depth", "num_heads", "hidden_dim"}
NAMES = {
    "vocabulary_size": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "max_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
}
"""Our settings, whose defaults are theirs, and the names in a ``config.json``."""
FIXED = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
PIECES, TOKENIZER = "vocab.txt", "tokenizer.json"
POOLING = "1_Pooling/config.json"  # of sentence-transformers
TASKS = {"BertForTokenClassification": "words"}


def load_bert(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a BERT by its ``config.json`` and repository (as for ``hub_file``).

    Weights without a classifier, such as those of pre-training, get a head of zeros.

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    state = _named_as_in_models(read_state(hub_file(repository, WEIGHT_FILES)))
    has_head = "classifier.weight" in state
    num_classes = len(state["classifier.weight"]) if has_head else 1
    labels = TASKS.get(next(iter(settings.get("architectures") or ()), ""), "sentence")
    # Weights without a pooler, as of masked words alone, label by the mean.
    pools = labels == "sentence" and "bert.pooler.dense.weight" in state and not _takes_means(repository)
    described = hub_settings(repository, "tokenizer_config.json")
    pieces = _read_pieces(hub_file(repository, (PIECES, TOKENIZER)))
    vocabulary = WordPieces(pieces, lower_case=described.get("do_lower_case", True))
    tree = {
        **{ours: settings[theirs] for ours, theirs in NAMES.items() if theirs in settings},
        **{name: getattr(vocabulary, name) for name in ("pad_id", "begin_id", "end_id")},
        "num_classes": num_classes,
        "labels": labels,
        "pool": "begin" if pools else "mean",
    }
    expected = "a BERT encoder with learned positions and GELU"
    config = config_like_ours(BertConfig, tree, faults_of(settings, FIXED), repository, expected)
    kept = {name: tensor for name, tensor in state.items() if pools or not name.startswith("bert.pooler.")}
    if not has_head:
        zeros = torch.zeros(num_classes, config.width)
        kept |= {"classifier.weight": zeros, "classifier.bias": zeros[:, 0].clone()}
    return assemble(
        nearest_variant(config, SIZES, ANY_VARIANT),
        config,
        convert_to(kept, source="hf", config=config),
        TextPreprocessing(labels=labels, lower_case=False, max_length=config.max_length),
        class_names(settings, num_classes) if has_head else ["(no classes)"],
        about={"origin": f"hf:{repository}"},
        files=vocabulary_to_files(vocabulary),
    )


def _named_as_in_models(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name tensors as ``BertForSequenceClassification`` does; without the heads of pre-training."""
    renamed = {}
    for name, tensor in state.items():
        if not name.startswith("cls.") and not name.endswith("position_ids"):
            full = name if name.startswith(("bert.", "classifier.")) else f"bert.{name}"
            # names of the first TensorFlow checkpoints
            renamed[full.replace(".gamma", ".weight").replace(".beta", ".bias")] = tensor
    return renamed


def _takes_means(repository: str) -> bool:
    """Tell whether sentence-transformers takes means of tokens, which only its folders say."""
    path = Path(repository) / POOLING
    if not path.is_file():
        return "sentence-transformers/" in repository
    return bool(read_settings(path).get("pooling_mode_mean_tokens"))


def _read_pieces(path: Path) -> list[str]:
    if path.name == PIECES:
        return path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    numbers = read_settings(path)["model"]["vocab"]
    return sorted(numbers, key=numbers.__getitem__)
