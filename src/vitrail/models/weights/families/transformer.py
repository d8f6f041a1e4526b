"""Marian models of transformers, ``MarianMTModel``: key table, settings, loading with vocabularies.

They are post-norm Transformers with sines before cosines. Files may omit tied or computed tensors;
``complete`` restores them, so that the key table names every tensor of the library's models.
Paper: Junczys-Dowmunt et al. 2018.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.core.errors import CheckpointError, ConfigError
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
from vitrail.models.weights.files import WEIGHT_FILES, hub_file, read_state
from vitrail.models.weights.table import Entry, joined_layers, layer, reshaped, same
from vitrail.nn.positions import sinusoidal_positions_in_halves

SHARED, LOGITS_BIAS, OUTPUT = "model.shared.weight", "final_logits_bias", "lm_head.weight"
SOURCE_TABLE, TARGET_TABLE = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
POSITION_TOLERANCE = 1e-2  # of sines up to one, which may be stored in half precision
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
FIXED = {  # settings of old files that transformers no longer has: the only values that work
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}


def _hf_transformer(config: TransformerConfig) -> Iterator[Entry]:
    """Map every tensor of a model.

    Raises:
        ConfigError: Marian has no such Transformer.
    """
    _check_expressible(config)
    yield from _tables(config)
    for index in range(config.encoder_depth):
        ours, theirs = f"encoder.{index}", f"model.encoder.layers.{index}"
        yield from _self_attention(f"{ours}.mixer", f"{theirs}.self_attn")
        yield from layer(f"{ours}.mixer_norm", f"{theirs}.self_attn_layer_norm")
        yield from _mlp(ours, theirs)
    for index in range(config.decoder_depth):
        ours, theirs = f"decoder.{index}", f"model.decoder.layers.{index}"
        yield from _self_attention(f"{ours}.self_attention", f"{theirs}.self_attn")
        yield from layer(f"{ours}.self_norm", f"{theirs}.self_attn_layer_norm")
        cross, attention = f"{ours}.cross_attention", f"{theirs}.encoder_attn"
        yield from layer(f"{cross}.query", f"{attention}.q_proj")
        yield from joined_layers(f"{cross}.key_value", [f"{attention}.{part}_proj" for part in "kv"])
        yield from layer(f"{cross}.projection", f"{attention}.out_proj")
        yield from layer(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm")
        yield from _mlp(ours, theirs)


def _hf_ignored(config: TransformerConfig) -> tuple[str, ...]:
    """Yield the tables of sines and cosines, which are computed."""
    return POSITIONS


def to_config(settings: Mapping[str, Any], *, origin: str) -> TransformerConfig:
    """Convert a ``config.json`` to our settings.

    Raises:
        CheckpointError: we have no such model.
    """
    faults = [
        f"{name} is {settings[name]!r}, not {value!r}"
        for name, value in FIXED.items()
        if settings.get(name, value) != value
    ]
    for ours in ("attention_heads", "ffn_dim"):
        sides = [settings.get(f"{side}_{ours}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            faults.append(f"encoder and decoder have {sides[0]} and {sides[1]} as {ours}")
    activation = settings.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        faults.append(f"activation_function is {activation!r}, not one of {', '.join(ACTIVATIONS)}")
    if faults:
        raise _unlike_ours(origin, "; ".join(faults))
    is_tied, is_shared = settings.get("tie_word_embeddings", True), _is_shared(settings)
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
        "activation": ACTIVATIONS[activation],
        "dropout": settings.get("dropout", 0.1),
        "attention_dropout": settings.get("attention_dropout", 0.0),
        "hidden_dropout": settings.get("activation_dropout", 0.0),
        "scale_embedding": settings.get("scale_embedding", False),
        "output_bias": True,
    }
    try:
        return TransformerConfig.from_tree(tree)
    except ConfigError as error:
        raise _unlike_ours(origin, error.given) from None


def complete(state: Mapping[str, Tensor], config: TransformerConfig) -> dict[str, Tensor]:
    """Add the tensors that transformers adds when it reads a file.

    Raises:
        CheckpointError: the positions are not the fixed ones.
    """
    for name in POSITIONS:
        if name in state:
            _check_positions(state[name].float(), name)
    completed = dict(state)
    if SHARED in state:
        completed = {SOURCE_TABLE: state[SHARED], TARGET_TABLE: state[SHARED], **completed}
    elif config.tie == "all" and TARGET_TABLE in state:
        completed[SHARED] = state[TARGET_TABLE]
    if config.tie == "none":
        completed.pop(SHARED, None)  # both tables hold it
    elif TARGET_TABLE in completed:
        completed.setdefault(OUTPUT, completed[TARGET_TABLE])
    completed.setdefault(LOGITS_BIAS, torch.zeros(1, config.target_vocabulary_size))
    return completed


def _tables(config: TransformerConfig) -> Iterator[Entry]:
    bias = "output.bias" if config.tie == "none" else "output_bias"
    yield reshaped(bias, LOGITS_BIAS, to_ours=(-1,), to_theirs=(1, -1))
    if config.tie == "all":
        yield _tied("target_embedding.weight", (SHARED, SOURCE_TABLE, TARGET_TABLE, OUTPUT))
        return
    yield same("source_embedding.weight", SOURCE_TABLE)
    if config.tie == "output":
        yield _tied("target_embedding.weight", (TARGET_TABLE, OUTPUT))
        return
    yield same("target_embedding.weight", TARGET_TABLE)
    yield same("output.weight", OUTPUT)


def _tied(ours: str, theirs: tuple[str, ...]) -> Entry:
    """Map one tensor to tied names, under all of which it must be equal."""

    def join(tensors: list[Tensor]) -> list[Tensor]:
        for name, tensor in zip(theirs, tensors, strict=True):
            if not torch.equal(tensor, tensors[0]):
                raise RuntimeError(f"{name} differs from {theirs[0]}")  # the table says what was converted
        return tensors[:1]

    def spread(tensors: list[Tensor]) -> list[Tensor]:
        return tensors * len(theirs)

    return Entry((ours,), theirs, join, spread)


def _self_attention(ours: str, theirs: str) -> Iterator[Entry]:
    yield from joined_layers(f"{ours}.qkv", [f"{theirs}.{part}_proj" for part in "qkv"])
    yield from layer(f"{ours}.projection", f"{theirs}.out_proj")


def _mlp(ours: str, theirs: str) -> Iterator[Entry]:
    yield from layer(f"{ours}.mlp.expand", f"{theirs}.fc1")
    yield from layer(f"{ours}.mlp.contract", f"{theirs}.fc2")
    yield from layer(f"{ours}.mlp_norm", f"{theirs}.final_layer_norm")


def _is_shared(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("share_encoder_decoder_embeddings", True))


def _check_expressible(config: TransformerConfig) -> None:
    wanted = {"norm": "post", "positions": "sinusoidal_halves", "mixer": "attention", "output_bias": True}
    faults = [
        f"{name} {getattr(config, name)!r}"
        for name, value in wanted.items()
        if getattr(config, name) != value
    ]
    if faults:
        raise ConfigError(
            f"transformers has no translation model of this kind with {', '.join(faults)}",
            expected=", ".join(f"{name} {value!r}" for name, value in wanted.items()),
            remedy="Use the weights as they are, or export them to another format",
        )


def _check_positions(table: Tensor, name: str) -> None:
    expected = sinusoidal_positions_in_halves(*table.shape)
    if (table - expected).abs().max() > POSITION_TOLERANCE:
        raise CheckpointError(
            f"{name} holds other positions than sines and cosines",
            expected="the fixed positions of Marian",
            remedy="Choose a model of the type marian whose positions were not learned",
        )


def _unlike_ours(origin: str, fault: str) -> CheckpointError:
    return CheckpointError(
        f"{origin} is a Marian model unlike ours: {fault}",
        expected="a post-norm Transformer with sinusoidal positions, equally wide in encoder and decoder",
        remedy="Choose another model; vitrail models lists what we have",
    )


MODEL_TYPE = "marian"
VARIANT = "transformer_base"  # whose settings are all replaced
TOKENISER_SETTINGS = "tokenizer_config.json"


def load_marian(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Load a Marian model and its vocabularies by ``config.json`` and repository (as for ``hub_file``).

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    state = complete(read_state(hub_file(repository, WEIGHT_FILES)), config)
    converted = convert_to(state, source="hf", config=config)
    described = json.loads(_read(repository, TOKENISER_SETTINGS))
    vocabulary = _read_vocabulary(repository, described, config)
    model = config.build()
    model.load_state_dict(converted)
    languages = (described.get(f"{side}_lang") or side for side in SIDES)
    return LoadedModel(
        model.eval(),
        {"name": VARIANT, **config.model_dump(mode="json")},
        PairPreprocessing(languages=tuple(languages)).model_dump(mode="json"),
        [],
        {"origin": f"hf:{repository}", "vitrail": __version__},
        vocabulary.to_files(),
    )


def _read_vocabulary(
    repository: str, described: Mapping[str, Any], config: TransformerConfig
) -> PairVocabulary:
    """Read the vocabularies of both languages.

    Raises:
        CheckpointError: they lack a special token, or are larger than the model's tables.
    """
    numbers = written = read_numbers(_read(repository, NUMBERS))
    if described.get("separate_vocabs"):
        written = read_numbers(_read(repository, TARGET_NUMBERS))
    subwords = []
    for pieces, numbered, size in (
        (SOURCE_PIECES, numbers, config.source_vocabulary_size),
        (TARGET_PIECES, written, config.target_vocabulary_size),
    ):
        unknown = described.get("unk_token") or "<unk>"
        if unknown not in numbered:
            raise _unfit(repository, f"a vocabulary lacks the token {unknown!r}")
        specials = SpecialIds(config.pad_id, config.begin_id, config.end_id, numbered[unknown])
        language = MarianSubwords(_read(repository, pieces), numbered, specials)
        if language.size > size:
            raise _unfit(repository, f"a vocabulary has {language.size} pieces, and its table {size} rows")
        subwords.append(language)
    return PairVocabulary(subwords[0], subwords[1])


def _read(repository: str, name: str) -> bytes:
    return hub_file(repository, (name,)).read_bytes()


def _unfit(repository: str, fault: str) -> CheckpointError:
    return CheckpointError(
        f"the files of {repository} do not belong together: {fault}",
        expected=f"weights with their own {NUMBERS}",
        remedy="Download the repository again, all files of one revision",
    )


TABLES = {
    "hf": {"transformer": _hf_transformer},
}
IGNORED = {
    "hf": {"transformer": _hf_ignored},
}
