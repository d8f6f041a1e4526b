"""Recipes for Multi30k (Elliott et al. 2016), task 1: 29,000 captions of photographs and their translations.

All choices were made on the validation split; the 2016 test split is scored once, at the end of a run.
"""

from __future__ import annotations

from typing import Any

from vitrail.tasks.request import Recipe

_DATA = {
    "data.vocabulary_size": 6000,
    "data.subword_dropout": 0.1,
    "train.batch_size": 2048,
    "train.keep": "best",
    "task.beam_size": 5,
}


def multi30k() -> dict[str, Any]:
    """Train a Transformer of 2.1 M parameters, 128 wide with 4 + 4 blocks.

    Shape and regularisation are close to Wu et al. 2021, "Good for Misconceived Reasons", whose
    Transformer-Tiny reached 41.02 BLEU; here with pre-norm, rotary positions, Muon instead of Adam, and
    subword dropout.

    Command: ``vitrail train multi30k/ --languages en,de --recipe multi30k``. Scores, times and seeds:
    ``benchmarks/README.md``.
    """
    return {
        **_DATA,
        "model.name": "transformer_tiny",
        "model.norm": "pre",
        "model.positions": "rotary",
        "model.dropout": 0.2,
        "train.steps": 14_500,
        "train.validations": 24,
    }


def multi30k_rnn() -> dict[str, Any]:
    """Train an LSTM encoder-decoder whose decoder sees the source as one vector only.

    Command: ``vitrail train multi30k/ --languages en,de --recipe multi30k-rnn``. Scores, times and seeds:
    ``benchmarks/README.md``.
    """
    return {**_DATA, "model.name": "rnn", "train.steps": 3000, "train.validations": 8}


def multi30k_rnn_attention() -> dict[str, Any]:
    """Train the same with additive attention (Bahdanau et al. 2015) and input feeding (Luong et al. 2015).

    Command: ``vitrail train multi30k/ --languages en,de --recipe multi30k-rnn-attention``. Scores, times and
    seeds: ``benchmarks/README.md``.
    """
    return {**_DATA, "model.name": "rnn_additive", "train.steps": 3000, "train.validations": 8}


RECIPES: dict[str, Recipe] = {
    "multi30k": multi30k,
    "multi30k-rnn": multi30k_rnn,
    "multi30k-rnn-attention": multi30k_rnn_attention,
}
