"""One translator in three engines: subwords in, subwords out, all by the same rules of beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import ctranslate2
import torch

from translation_models import to_marian
from vitrail.models.decoding import beam_search
from vitrail.tasks.translation.ctranslate2_folder import list_vocabularies
from vitrail.tasks.translation.predictor import Translator

Row = list[int]
Engine = Callable[[list[Row]], list[Row]]


def make_engines(libraries: Sequence[str], folder: Path, beam: int, longest: int) -> dict[str, Engine]:
    """Return what translates a batch, by the name of its library.

    Args:
        folder: holds our model in ``ours`` and its export in ``ctranslate2``.
        beam: hypotheses that are kept; 1 decodes greedily.
        longest: most subwords of a translation.
    """
    makers = {
        "vitrail": vitrail_engine,
        "transformers": transformers_engine,
        "CTranslate2": ctranslate2_engine,
    }
    return {name: makers[name](folder, beam, longest) for name in libraries}


def vitrail_engine(folder: Path, beam: int, longest: int) -> Engine:
    translator = Translator(str(folder / "ours"), device="cpu")
    model, config = translator.model, translator.config

    def translate(rows: list[Row]) -> list[Row]:
        source, lengths = translator.torch_decoder.to_batch(rows)
        with torch.inference_mode():
            found = beam_search(
                model,
                model.start(source, lengths),
                begin_id=config.begin_id,
                end_id=config.end_id,
                pad_id=config.pad_id,
                max_lengths=torch.full_like(lengths, longest),
                beam_size=beam,
                patience=1,
            )
        return [list(best.tokens) for best, *_ in found]

    return translate


def transformers_engine(folder: Path, beam: int, longest: int) -> Engine:
    model = to_marian(folder / "ours")
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    never = sorted({pad, model.config.decoder_start_token_id})

    def translate(rows: list[Row]) -> list[Row]:
        width = max(map(len, rows)) + 1
        source = torch.tensor([[*row, end, *[pad] * (width - 1 - len(row))] for row in rows])
        mask = torch.tensor([[1] * (len(row) + 1) + [0] * (width - 1 - len(row)) for row in rows])
        with torch.inference_mode():
            found = model.generate(
                input_ids=source,
                attention_mask=mask,
                num_beams=beam,
                do_sample=False,
                max_new_tokens=longest,
                bad_words_ids=[[number] for number in never],
                **({"early_stopping": True} if beam > 1 else {}),
            )
        return [[number for number in row if number not in (pad, end)] for row in found[:, 1:].tolist()]

    return translate


def ctranslate2_engine(folder: Path, beam: int, longest: int) -> Engine:
    translator = Translator(str(folder / "ours"), device="cpu")
    sources, targets = list_vocabularies(translator.vocabulary, translator.config)
    numbers = {piece: number for number, piece in enumerate(targets)}
    engine = ctranslate2.Translator(
        str(folder / "ctranslate2"),
        device="cpu",
        compute_type="float32",
        inter_threads=1,
        intra_threads=torch.get_num_threads(),
    )

    def translate(rows: list[Row]) -> list[Row]:
        found = engine.translate_batch(
            [[sources[number] for number in row] for row in rows],
            beam_size=beam,
            max_decoding_length=longest,
            min_decoding_length=0,
        )
        return [[numbers[piece] for piece in each.hypotheses[0]] for each in found]

    return translate
