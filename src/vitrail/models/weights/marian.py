"""Load Marian models of transformers (``MarianMTModel``) with their vocabularies.

They are post-norm Transformers with sines before cosines. Files may omit tied or computed tensors;
``complete`` restores them, so that the key table names every tensor of the library's models.
Paper: Junczys-Dowmunt et al. 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import CheckpointError
from vitrail.data.text.languages import SIDES
from vitrail.data.text.marian_subwords import (
    NUMBERS,
    SOURCE_PIECES,
    TARGET_NUMBERS,
    TARGET_PIECES,
    MarianSubwords,
    SpecialIds,
    read_numbers,
)
from vitrail.data.text.subwords import PairVocabulary
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.transformer import TransformerConfig
from vitrail.models.weights.conversion import convert_to
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, hub_settings, read_state
from vitrail.models.weights.layouts.hf import (
    MARIAN_LOGITS_BIAS,
    MARIAN_OUTPUT,
    MARIAN_SHARED,
    MARIAN_SOURCE,
    MARIAN_TARGET,
)
from vitrail.models.weights.preparation import assemble, config_like_ours, faults_of, faults_of_sides
from vitrail.nn.sinusoidal import sinusoidal_positions_in_halves

MODEL_TYPE = "marian"
REPOSITORIES = (
    "Helsinki-NLP/opus-mt-SOURCE-TARGET"  # Tiedemann and Thottingal 2020; more than a thousand pairs
)
VARIANT = "transformer_base"  # whose settings are all replaced
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
POSITION_TOLERANCE = 1e-2  # of sines up to one, which may be stored in half precision
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
FIXED = {  # settings of old files that transformers no longer has: the only values that work
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


def load_marian(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a Marian model and its vocabularies by ``config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    state = complete(read_state(hub_file(repository, WEIGHT_FILES)), config)
    converted = convert_to(state, source="hf", config=config)
    described = hub_settings(repository, "tokenizer_config.json")
    vocabulary = _read_vocabulary(repository, described, config)
    generation = hub_settings(repository, "generation_config.json", "config.json")
    languages = tuple(described.get(f"{side}_lang") or side for side in SIDES)
    return assemble(
        VARIANT,
        config,
        converted,
        PairPreprocessing.from_tree({"languages": languages}),
        [],
        about={"origin": f"hf:{repository}", "task": to_search(generation)},
        files=vocabulary.to_files(),
    )


def to_config(settings: Mapping[str, Any], *, origin: str) -> TransformerConfig:
    """Convert a ``config.json`` to our settings.

    Raises:
        CheckpointError: we have no such model.
    """
    faults = faults_of(settings, FIXED) + faults_of_sides(settings)
    activation = settings.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        faults.append(f"activation_function is {activation!r}, not one of {', '.join(ACTIVATIONS)}")
    is_tied = settings.get("tie_word_embeddings", True)
    is_shared = bool(settings.get("share_encoder_decoder_embeddings", True))
    size = settings.get("vocab_size")
    tree = {
        "source_vocabulary_size": size,
        "target_vocabulary_size": size if is_shared else settings.get("decoder_vocab_size") or size,
        "pad_id": settings.get("pad_token_id"),
        "begin_id": settings.get("decoder_start_token_id"),
        "end_id": settings.get("eos_token_id"),
        "width": settings.get("d_model"),
        "hidden_dim": settings.get("encoder_ffn_dim"),
        "num_heads": settings.get("encoder_attention_heads"),
        "encoder_depth": settings.get("encoder_layers"),
        "decoder_depth": settings.get("decoder_layers"),
        "norm": "post",
        "positions": "sinusoidal_halves",
        "tie": "none" if not is_tied else "all" if is_shared else "output",
        "activation": ACTIVATIONS.get(activation),
        "dropout": settings.get("dropout", 0.1),
        "attention_dropout": settings.get("attention_dropout", 0.0),
        "hidden_dropout": settings.get("activation_dropout", 0.0),
        "scale_embedding": settings.get("scale_embedding", False),
        "output_bias": True,
    }
    expected = "a post-norm Transformer with sinusoidal positions, equally wide in encoder and decoder"
    return config_like_ours(TransformerConfig, tree, faults, origin, expected)


def to_search(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return how such a model decodes, as a translation's settings; transformers divides by length^a."""
    names = {"num_beams": "beam_size", "length_penalty": "length_penalty"}
    given = {ours: generation[theirs] for theirs, ours in names.items() if generation.get(theirs) is not None}
    return {"length_penalty": 1.0, **given, "penalty_form": "power"}


def complete(state: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Add the tensors that transformers adds when it reads a file.

    Raises:
        CheckpointError: the positions are not the fixed ones.
    """
    for name in POSITIONS:
        if name in state:
            _check_positions(state[name].float(), name)
    completed = dict(state)
    if MARIAN_SHARED in state:
        shared = state[MARIAN_SHARED]
        completed = {MARIAN_SOURCE: shared, MARIAN_TARGET: shared, **completed}
    elif config.tie == "all" and MARIAN_TARGET in state:
        completed[MARIAN_SHARED] = state[MARIAN_TARGET]
    if config.tie == "none":
        completed.pop(MARIAN_SHARED, None)  # both tables hold it
    elif MARIAN_TARGET in completed:
        completed.setdefault(MARIAN_OUTPUT, completed[MARIAN_TARGET])
    completed.setdefault(MARIAN_LOGITS_BIAS, torch.zeros(1, config.target_vocabulary_size))
    return completed


def _check_positions(table: Tensor, name: str) -> None:
    expected = sinusoidal_positions_in_halves(*table.shape)
    if (table - expected).abs().max() > POSITION_TOLERANCE:
        raise CheckpointError(
            f"{name} holds other positions than sines and cosines",
            expected="the fixed positions of Marian",
            remedy="Choose a model of the type marian whose positions were not learned",
        )


def _read_vocabulary(
    repository: str, described: Mapping[str, Any], config: TransformerConfig
) -> PairVocabulary:
    """Read the vocabularies of both languages.

    Raises:
        CheckpointError: they lack a special token, or are larger than the model's tables.
    """

    def read(name: str) -> bytes:
        return hub_file(repository, (name,)).read_bytes()

    def unfit(fault: str) -> CheckpointError:
        return CheckpointError(
            f"the files of {repository} do not belong together: {fault}",
            expected=f"weights with their own {NUMBERS}",
            remedy="Download the repository again, all files of one revision",
        )

    numbers = written = read_numbers(read(NUMBERS))
    if described.get("separate_vocabs"):
        written = read_numbers(read(TARGET_NUMBERS))
    unknown = described.get("unk_token") or "<unk>"
    subwords = []
    for pieces, numbered, size in (
        (SOURCE_PIECES, numbers, config.source_vocabulary_size),
        (TARGET_PIECES, written, config.target_vocabulary_size),
    ):
        if unknown not in numbered:
            raise unfit(f"a vocabulary lacks the token {unknown!r}")
        specials = SpecialIds(config.pad_id, config.begin_id, config.end_id, numbered[unknown])
        language = MarianSubwords(read(pieces), numbered, specials)
        if language.size > size:
            raise unfit(f"a vocabulary has {language.size} pieces, and its table {size} rows")
        subwords.append(language)
    return PairVocabulary(subwords[0], subwords[1])
