"""Exported CTranslate2 folders, opened with the settings saved beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vitrail.core.errors import CheckpointError, ConfigError, VitrailError, import_optional, reading
from vitrail.data.text.subwords import PairVocabulary, Subwords
from vitrail.engines.loading import CTRANSLATE2_FILE
from vitrail.models import config_from_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import TranslationModelConfig
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis
from vitrail.models.transformer import Transformer, TransformerConfig
from vitrail.nn.rotary import SEQUENCE_BASE
from vitrail.nn.sinusoidal import sinusoidal_positions, sinusoidal_positions_in_halves
from vitrail.tasks.translation.search import Search

TRANSLATOR_FILE = "translator.json"
"""Model settings, text preprocessing and decoding settings, which the engine does not know."""


class ExportedTranslator(NamedTuple):
    """The metadata of an exported translator."""

    config: TranslationModelConfig
    """Settings of the original model."""
    preprocessing: dict[str, Any]
    about: dict[str, Any]
    vocabulary: PairVocabulary


class CTranslate2Decoder:
    """Decode with CTranslate2 on a CPU.

    The engine has one length limit per batch, that of the longest row; longer outputs are truncated to their
    own row's limit and keep the score of the whole.

    Raises:
        ConfigError: the engine is not installed.
        CheckpointError: it cannot open the folder.
    """

    def __init__(self, folder: Path, exported: ExportedTranslator, *, num_threads: int) -> None:
        self.config = exported.config
        self.source_pieces, self.target_pieces = list_vocabularies(exported.vocabulary, exported.config)
        self.numbers = {piece: number for number, piece in enumerate(self.target_pieces)}
        ctranslate2 = import_engine()
        expected = f"{CTRANSLATE2_FILE} and vocabularies as the export wrote them"
        with reading(folder, done="opened by CTranslate2", expected=expected, remedy="Export the run again"):
            self.engine = ctranslate2.Translator(
                str(folder), device="cpu", compute_type="default", intra_threads=num_threads
            )

    def decode(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """As ``TorchDecoder.decode``; ``ConfigError`` for GNMT's length penalty."""
        if search.penalty_form != "power":
            raise ConfigError(
                f"CTranslate2 has no length penalty of the form {search.penalty_form}",
                expected="the form power",
                remedy="Add --penalty-form power, or translate with the run that was exported",
            )
        limits = search.limits([len(row) + 1 for row in rows])
        found = self.engine.translate_batch(
            self.to_pieces(rows),
            beam_size=search.beam_size,
            patience=USUAL_PATIENCE,
            num_hypotheses=search.num_best,
            length_penalty=search.length_penalty,
            max_decoding_length=max(limits),
            min_decoding_length=0,
            max_input_length=0,
            return_end_token=True,
            return_scores=True,
        )
        return [
            [
                self._read(pieces, score, search.length_penalty, limit)
                for pieces, score in zip(each.hypotheses, each.scores, strict=True)
            ]
            for each, limit in zip(found, limits, strict=True)
        ]

    def to_pieces(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[self.source_pieces[number] for number in row] for row in rows]

    def _read(self, pieces: list[str], score: float, length_penalty: float, limit: int) -> Hypothesis:
        tokens = tuple(self.numbers[piece] for piece in pieces)
        has_end = tokens[-1:] == (self.config.end_id,)
        written = tokens[:-1] if has_end else tokens
        return Hypothesis(
            written[:limit],
            score * max(len(tokens), 1) ** length_penalty,
            score,
            is_finished=has_end and len(written) < limit,
        )


def describe(loaded: LoadedModel) -> bytes:
    """Return the content of ``TRANSLATOR_FILE``."""
    described = {
        "model": loaded.model_settings,
        "preprocessing": loaded.preprocessing,
        "about": loaded.about,
        "files": sorted(loaded.files),
    }
    return f"{json.dumps(described, indent=2)}\n".encode()


def read_exported(folder: Path) -> ExportedTranslator:
    """Return the metadata of an exported translator; ``CheckpointError`` if it is damaged, or not one."""
    try:
        described = json.loads((folder / TRANSLATOR_FILE).read_bytes())
        files = {name: (folder / name).read_bytes() for name in described["files"]}
        config = config_from_settings(described["model"])
        assert isinstance(config, TranslationModelConfig), f"the model {config.family} does not translate"
        vocabulary = PairVocabulary.from_files(files)
        return ExportedTranslator(config, described["preprocessing"], described["about"], vocabulary)
    except (OSError, ValueError, KeyError, TypeError, AssertionError, VitrailError) as error:
        raise CheckpointError(
            f"{folder} holds {CTRANSLATE2_FILE}, but not what else a translator needs: {error}",
            expected=f"{TRANSLATOR_FILE} and the subwords beside it, as vitrail export writes them",
            remedy="Run: vitrail export RUN --format ctranslate2 -o FOLDER",
        ) from error


def import_engine() -> Any:
    """Return CTranslate2; ``ConfigError`` if it is not installed."""
    return import_optional("ctranslate2", "this format needs", "ctranslate2", "ctranslate2")


NUM_POSITIONS = 2048  # of sinusoidal positions; the engine truncates sources to 1,024 tokens
NEVER = -1e4  # bias of excluded tokens; representable in half precision
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", "rotary", "none")
FIXED = ("mixer", "decoder_mixer", "head_dim", "value_dim", "norm_layer")


def build_spec(model: nn.Module, vocabulary: PairVocabulary) -> Any:
    """Return the model as a ``ctranslate2.specs.TransformerSpec``.

    Padding and begin, which are never generated, get a bias that excludes them. All tensors are copies, as
    the engine quantizes in place.
    """
    model = check_expressible(model)
    config = model.config
    spec = _blank_spec(config)
    source_embedding = model.target_embedding if model.source_embedding is None else model.source_embedding
    spec.encoder.embeddings[0].weight = _copied(source_embedding.weight)
    spec.decoder.embeddings.weight = _copied(model.target_embedding.weight)
    for side, positions in ((spec.encoder, model.source_positions), (spec.decoder, model.target_positions)):
        side.scale_embeddings = config.width**0.5 if config.scale_embedding else 1.0
        if hasattr(side, "position_encodings"):
            side.position_encodings.encodings = _position_table(config, positions)
    if config.norm == "pre":
        _set_norm(spec.encoder.layer_norm, model.encoder_norm)
        _set_norm(spec.decoder.layer_norm, model.decoder_norm)
    encoder: list[Any] = list(model.encoder)
    decoder: list[Any] = list(model.decoder)
    for layer, block in zip(spec.encoder.layer, encoder, strict=True):
        own = block.mixer
        _set_linears(layer.self_attention.linear, own.qkv, own.projection)
        _set_norm(layer.self_attention.layer_norm, block.mixer_norm)
    for layer, block in zip(spec.decoder.layer, decoder, strict=True):
        own, cross = block.self_attention, block.cross_attention
        _set_linears(layer.self_attention.linear, own.qkv, own.projection)
        _set_norm(layer.self_attention.layer_norm, block.self_norm)
        _set_linears(layer.attention.linear, cross.query, cross.key_value, cross.projection)
        _set_norm(layer.attention.layer_norm, block.cross_norm)
    for layer, block in zip((*spec.encoder.layer, *spec.decoder.layer), (*encoder, *decoder), strict=True):
        _set_linears((layer.ffn.linear_0, layer.ffn.linear_1), block.mlp.expand, block.mlp.contract)
        _set_norm(layer.ffn.layer_norm, block.mlp_norm)
    _set_output(spec.decoder.projection, model)
    _set_vocabulary(spec, vocabulary, config)
    spec.config.layer_norm_epsilon = float(decoder[0].mlp_norm.eps)
    return spec


def _blank_spec(config: TransformerConfig) -> Any:
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    settings: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": Activation[ACTIVATIONS[config.activation]],
    }
    if config.positions == "rotary":  # it pairs adjacent channels, as we do
        rotary = {"rotary_dim": config.width // config.num_heads, "rotary_base": SEQUENCE_BASE}
        settings |= {**rotary, "rotary_interleave": True}
    return TransformerSpec(
        TransformerEncoderSpec(config.encoder_depth, config.num_heads, **settings),
        TransformerDecoderSpec(config.decoder_depth, config.num_heads, **settings),
    )


def check_expressible(model: nn.Module) -> Transformer:
    """Return a model if the engine can run it, else raise ``ConfigError``."""
    config = getattr(model, "config", None)
    if not isinstance(model, Transformer):
        name = config.family if isinstance(config, TranslationModelConfig) else type(model).__name__
        raise ConfigError(
            f"CTranslate2 cannot run a model of the family {name!r}",
            expected="a Transformer that translates",
            remedy="Translate with vitrail translate, or train a Transformer",
        )
    known = {name: (TransformerConfig.model_fields[name].default,) for name in FIXED}
    given = {name: getattr(model.config, name) for name in ("positions", *FIXED)}
    faults = [f"{name} {value!r}" for name, value in given.items() if value not in known.get(name, POSITIONS)]
    if faults:
        raise ConfigError(
            f"CTranslate2 cannot run a Transformer with {' and '.join(faults)}",
            expected=f"positions {', '.join(POSITIONS)}, and no other {', '.join(FIXED)} than by default",
            remedy="Translate with vitrail translate, or train a model with these settings",
        )
    return model


def list_vocabularies(
    vocabulary: PairVocabulary, config: TranslationModelConfig
) -> tuple[list[str], list[str]]:
    """Return the text of every token of both vocabularies, without duplicates."""
    return (
        _list_pieces(vocabulary.source, config.source_vocabulary_size),
        _list_pieces(vocabulary.target, config.target_vocabulary_size),
    )


def never_written(config: TranslationModelConfig) -> Int[Tensor, " excluded"]:
    """Return the tokens that decoding excludes, as ``vitrail.models.decoding`` does."""
    return torch.tensor(sorted({config.pad_id, config.begin_id} - {config.end_id}), dtype=torch.long)


def _list_pieces(subwords: Subwords, size: int) -> list[str]:
    """Return the text of every token, including embedding rows without a subword."""
    known = subwords.pieces(range(subwords.size))
    listed: dict[str, int] = {}
    for number in range(size):
        piece = known[number] if number < len(known) else f"<{number}>"
        listed[f"<{number}:{piece}>" if piece in listed else piece] = number
    return list(listed)


def _position_table(config: TransformerConfig, positions: nn.Module | None) -> Tensor:
    if config.positions == "learned":
        assert positions is not None
        return _copied(positions.get_parameter("table"))
    if config.positions in ("none", "rotary"):  # the engine would add its own
        return torch.zeros(NUM_POSITIONS, config.width)
    make = sinusoidal_positions if config.positions == "sinusoidal" else sinusoidal_positions_in_halves
    return make(NUM_POSITIONS, config.width)


def _set_output(spec: Any, model: Transformer) -> None:
    config = model.config
    spec.weight = _copied((model.target_embedding if model.output is None else model.output).weight)
    own = model.output_bias if model.output is None else model.output.bias
    bias = torch.zeros(config.target_vocabulary_size) if own is None else _copied(own)
    bias[never_written(config)] = NEVER
    spec.bias = bias


def _set_vocabulary(spec: Any, vocabulary: PairVocabulary, config: TransformerConfig) -> None:
    source, target = list_vocabularies(vocabulary, config)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token = spec.config.decoder_start_token = target[config.begin_id]
    spec.config.eos_token = target[config.end_id]
    spec.config.unk_token = target[vocabulary.target.unknown_id]
    spec.config.add_source_eos = True


def _set_linears(specs: Sequence[Any], *linears: Any) -> None:
    for spec, linear in zip(specs, linears, strict=True):
        spec.weight, spec.bias = _copied(linear.weight), _copied(linear.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _copied(norm.weight), _copied(norm.bias)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)
