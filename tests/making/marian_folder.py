"""A small random Marian model in a folder as transformers saves it, with subword models of made-up text."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel

from making.random_weights import randomise

SOURCE_SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "si", "to")
TARGET_SYLLABLES = ("\u00e4r", "bo", "chi", "\u00df", "dr\u00fc", "el", "fo", "gu")


def write_marian_folder(folder: Path, **changes: Any) -> MarianMTModel:
    """Save a model whose every tensor is random, and return it.

    Args:
        folder: is created.
        changes: fields of the ``MarianConfig`` that differ; without ``share_encoder_decoder_embeddings``
            there are two vocabularies.
    """
    is_shared = changes.get("share_encoder_decoder_embeddings", True)
    numbers = write_marian_vocabulary(folder, is_shared=is_shared)
    pad = numbers[0]["<pad>"]
    settings = {"decoder_vocab_size": len(numbers[-1]), "pad_token_id": pad, "decoder_start_token_id": pad}
    model = build_marian(len(numbers[0]), **(settings | changes))
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(folder)
    return model


def write_marian_vocabulary(
    folder: Path, *, is_shared: bool, codes: Sequence[str] = ()
) -> list[dict[str, int]]:
    """Train subword models, save them with their numbers, and return these: one list, or one of each side.

    Args:
        folder: is created.
        is_shared: whether both languages share the numbers.
        codes: language codes, further pieces of the source.
    """
    folder.mkdir(parents=True)
    models = [
        train_subwords(SOURCE_SYLLABLES, size=60, kind="bpe"),
        train_subwords(TARGET_SYLLABLES, size=70, kind="unigram"),
    ]
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    source, target = [*pieces_of(models[0]), *codes], pieces_of(models[1])
    vocabularies = [source, target]
    if is_shared:
        vocabularies = [source + [piece for piece in target if piece not in source]]
    numbers = [number_pieces(vocabulary, is_padding_last=is_shared) for vocabulary in vocabularies]
    for name, numbered in zip(("vocab.json", "target_vocab.json"), numbers, strict=False):
        (folder / name).write_text(json.dumps(numbered), encoding="utf-8")
    described = {"source_lang": "en", "target_lang": "de", "separate_vocabs": not is_shared}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return numbers


def build_marian(vocabulary_size: int, **changes: Any) -> MarianMTModel:
    """Return a random model of odd sizes, by default with the last number as padding and as begin."""
    settings: dict[str, Any] = {
        "vocab_size": vocabulary_size,
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "activation_function": "swish",
        "scale_embedding": True,
        "max_position_embeddings": 64,
        "pad_token_id": vocabulary_size - 1,
        "decoder_start_token_id": vocabulary_size - 1,
        "eos_token_id": 0,
        "forced_eos_token_id": None,
    }
    torch.manual_seed(11)
    model = randomise(MarianMTModel(MarianConfig(**(settings | changes))))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("embed_positions.weight"):  # no weights, but a table that randomise drew, too
                module = model.get_submodule(name.removesuffix(".weight"))
                parameter.copy_(module.create_weight())
        # Otherwise all translations repeat one token: what is read must differ from place to place, and
        # random signs keep the token before, whose embedding is the output's, from being the likeliest.
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.mul_(2.0)
        model.model.decoder.layers[-1].final_layer_norm.weight.normal_(std=2.0)
        model.final_logits_bias.normal_(std=0.5)
        model.final_logits_bias[0, 0] += 2.8  # most sentences end before the longest allowed length
    return model


def made_up_sentences(count: int, *, seed: int, syllables: tuple[str, ...] = SOURCE_SYLLABLES) -> list[str]:
    """Return sentences of one to nine words of one to three syllables."""
    generator = random.Random(seed)

    def word() -> str:
        return "".join(generator.choices(syllables, k=generator.randint(1, 3)))

    return [" ".join(word() for _ in range(generator.randint(1, 9))) + "." for _ in range(count)]


def train_subwords(syllables: tuple[str, ...], *, size: int, kind: str) -> bytes:
    """Return a SentencePiece model as Marian uses them, without numbers for begin and padding."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_up_sentences(300, seed=3, syllables=syllables)),
        model_writer=written,
        vocab_size=size,
        model_type=kind,
        hard_vocab_limit=False,
        bos_id=-1,
        minloglevel=2,
        num_threads=1,
    )
    return written.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """Return the pieces that text is made of."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    numbers = range(processor.get_piece_size())
    written = [i for i in numbers if not (processor.is_control(i) or processor.is_unknown(i))]
    return [processor.id_to_piece(i) for i in written]


def number_pieces(pieces: list[str], *, is_padding_last: bool = True) -> dict[str, int]:
    """Number pieces as Marian's vocabularies do: end and unknown first, padding last.

    Two vocabularies need the same number for padding, so that it may stand third.
    """
    listed = ["</s>", "<unk>", *pieces, "<pad>"] if is_padding_last else ["</s>", "<unk>", "<pad>", *pieces]
    return {piece: number for number, piece in enumerate(listed)}
