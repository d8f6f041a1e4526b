"""Small, untrained translators with vocabularies of a few sentences, as they are loaded from a folder."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.models import build, model_settings
from vitrail.models.checkpoint import LoadedModel

ENGLISH = (
    "A dog runs.",
    "Two dogs run through the snow.",
    "The man in the red hat reads a book.",
    "A woman walks with her child along the river.",
    "Children play football in the park.",
)
GERMAN = (
    "Ein Hund rennt.",
    "Zwei Hunde rennen durch den Schnee.",
    "Der Mann mit dem roten Hut liest ein Buch.",
    "Eine Frau geht mit ihrem Kind am Fluss entlang.",
    "Kinder spielen im Park Fu\u00dfball.",
)
TRANSFORMER = {"width": 12, "hidden_dim": 20, "num_heads": 2, "encoder_depth": 1, "decoder_depth": 3}
RECURRENT = {"embedding_dim": 10, "hidden_dim": 14, "encoder_depth": 1, "decoder_depth": 1}


@cache
def small_vocabulary() -> PairVocabulary:
    """Learn one vocabulary of both languages."""
    return PairVocabulary.train(ENGLISH, GERMAN, size=90)


def small_translator(name: str = "transformer_tiny", **changes: Any) -> LoadedModel:
    """Return a model with the weights that its seed gives."""
    vocabulary = small_vocabulary()
    sizes = {
        "source_vocabulary_size": vocabulary.source.size,
        "target_vocabulary_size": vocabulary.target.size,
    }
    fields = {**(TRANSFORMER if name.startswith("transformer") else RECURRENT), **sizes, **changes}
    torch.manual_seed(5)
    return LoadedModel(
        build(name, **fields).eval(),
        model_settings(name, **fields),
        PairPreprocessing(languages=("en", "de")).model_dump(mode="json"),
        [],
        {},
        vocabulary.to_files(),
    )
