"""Export of translators to CTranslate2, verified by translating the same sentences with both engines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.core.durable import atomic_folder, check_replaceable
from vitrail.core.errors import CheckpointError, ConfigError
from vitrail.engines.loading import CTRANSLATE2_FILE
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import DecoderState, SequenceModel
from vitrail.models.decoding import Hypothesis, beam_search
from vitrail.tasks.translation.ctranslate2_folder import (
    TRANSLATOR_FILE,
    CTranslate2Decoder,
    build_spec,
    check_expressible,
    describe,
    import_engine,
    never_written,
    read_exported,
)
from vitrail.tasks.translation.predictor import Translator
from vitrail.tasks.translation.search import Search

README = """\
# {source} to {target}, for CTranslate2

`vitrail translate FOLDER letter.txt` translates with it. Without vitrail, after `pip install
ctranslate2 sentencepiece`:

    import ctranslate2, sentencepiece

    source = sentencepiece.SentencePieceProcessor(model_file={read!r})
    target = sentencepiece.SentencePieceProcessor(model_file={written!r})
    engine = ctranslate2.Translator('.')
    found = engine.translate_batch([source.encode('...', out_type=str)], beam_size=5)
    print(target.decode(found[0].hypotheses[0]))
"""
TOLERANCES = {  # of a token's log-probability: the largest in float32, the mean for rounded weights
    "float32": 1e-3,
    "bfloat16": 0.1,
    "float16": 0.02,
    "int16": 0.1,  # computed as int8 by CPUs without int16
    "int8": 0.1,
    "int8_float32": 0.1,
    "int8_float16": 0.1,
    "int8_bfloat16": 0.2,
}
EXACT = "float32"
BEAM_SIZE = 5
PROOF_LENGTH = 40  # maximum subwords of a compared translation
NUM_DRAWN, MAX_DRAWN_LENGTH = 24, 20  # random subword sentences, if no others are given
MAX_PARTED_SHARE = 0.05  # of translations; rounding rarely decides between tied tokens


def export_ctranslate2(
    loaded: LoadedModel, folder: Path, *, quantization: str | None = None, sentences: Sequence[str] = ()
) -> Proof:
    """Write a translator as a folder for ``ctranslate2.Translator``, and verify it.

    Both translate the same sentences, greedily and with a beam of 5. In float32, token log-probabilities and
    scores may differ by at most 1e-3, and at most one translation in twenty may differ, as where two tokens
    tie up to rounding. With quantized weights, the mean difference is bounded (``TOLERANCES``). A folder that
    fails is not kept.

    Args:
        folder: created; a former export of ours is replaced as a whole.
        quantization: of the weights, one of ``TOLERANCES``; None keeps float32.
        sentences: raw text to compare with; by default random subwords.

    Returns:
        : The result of the comparison.

    Raises:
        ConfigError: the engine is not installed, cannot run the model, or has no such quantization.
        CheckpointError: the exported model computes something else, the folder holds something else, or it
            cannot be written.
    """
    kind = EXACT if quantization is None else quantization
    if kind not in TOLERANCES:
        raise ConfigError(
            f"CTranslate2 has no quantization {kind!r}",
            expected=f"one of {', '.join(TOLERANCES)}",
            remedy="Leave it out to keep the weights as they are",
        )
    import_engine()
    check_replaceable(
        folder,
        "a model of CTranslate2",
        markers=(CTRANSLATE2_FILE, "*_vocabulary.json"),
        example="models/NAME-ctranslate2",
    )
    check_expressible(loaded.model)
    translator = Translator(loaded, device="cpu")
    rows = rows_to_compare(translator, sentences)
    with atomic_folder(folder) as staged:
        spec = build_spec(loaded.model, translator.vocabulary)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(staged))
        for name, content in _further_files(loaded, translator).items():
            (staged / name).write_bytes(content)
        engine = CTranslate2Decoder(staged, read_exported(staged), num_threads=0)
        proof = compare(translator, engine, rows, quantization=kind)
        check(proof)
    return proof


def _further_files(loaded: LoadedModel, translator: Translator) -> dict[str, bytes]:
    source, target = translator.languages
    # the source's is before the target's; there is one if the vocabulary is shared
    read, *_, written = 2 * sorted(name for name in loaded.files if not name.endswith(".json"))
    readme = README.format(source=source, target=target, read=read, written=written)
    if translator.preprocessing.lower_case:
        readme += "\nMake the text lower-case first.\n"
    return {**loaded.files, TRANSLATOR_FILE: describe(loaded), "README.md": readme.encode()}


class Proof(NamedTuple):
    """The result of comparing both engines."""

    num_sentences: int
    num_tokens: int
    """Number of compared token log-probabilities."""
    largest_difference: float
    """Of these, between both models; so is the mean."""
    mean_difference: float
    largest_score_difference: float
    """Among identical translations."""
    num_same: dict[str, int]
    """Number of identical translations, ``greedy`` and ``beam``."""
    num_parted: dict[str, int]
    """Number of different ones, except where only one engine reached the maximum length: CTranslate2 then
    prefers the better score, we finished hypotheses.
    """
    quantization: str
    """Of the exported weights."""

    def to_lines(self) -> Iterator[str]:
        yield (
            f"log-probabilities of {self.num_tokens:,} tokens differ by at most "
            f"{self.largest_difference:.1e}, on average by {self.mean_difference:.1e} ({self.quantization})"
        )
        for search, num_same in self.num_same.items():
            cut = self.num_sentences - num_same - self.num_parted[search]
            note = f", {cut} reached the maximum length in one engine alone" * bool(cut)
            yield f"{search}: {num_same} of {self.num_sentences} translations are the same{note}"


def compare(
    translator: Translator, engine: CTranslate2Decoder, rows: Sequence[Sequence[int]], *, quantization: str
) -> Proof:
    """Translate rows of source subwords (without the end) with both engines; compare outputs and scores.

    Our side excludes padding and begin before the softmax, as the exported bias does.
    """
    longest = min(PROOF_LENGTH, translator.max_source_length)
    num_same, num_parted, score_differences = {}, {}, [0.0]
    greedy: list[tuple[int, ...]] = []
    for name, beam_size in (("greedy", 1), ("beam", BEAM_SIZE)):
        ours = _decode(translator, rows, beam_size, longest)
        theirs = engine.decode(rows, Search(beam_size, max_length=longest))
        pairs = [(own, other) for own, (other,) in zip(ours, theirs, strict=True)]
        comparable = [(own, other) for own, other in pairs if own.is_finished == other.is_finished]
        same = [(own, other) for own, other in comparable if own.tokens == other.tokens]
        num_same[name], num_parted[name] = len(same), len(comparable) - len(same)
        score_differences += [abs(own.score - other.score) for own, other in same]
        greedy = greedy or [own.tokens for own in ours]
    differences = _log_probability_differences(translator, engine, rows, greedy)
    return Proof(
        num_sentences=len(rows),
        num_tokens=len(differences),
        largest_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        largest_score_difference=max(score_differences),
        num_same=num_same,
        num_parted=num_parted,
        quantization=quantization,
    )


def _decode(
    translator: Translator, rows: Sequence[Sequence[int]], beam_size: int, longest: int
) -> list[Hypothesis]:
    """Return our best translation of each row, with CTranslate2's stopping rule."""
    config, model = translator.config, translator.model
    source, lengths = translator.torch_decoder.to_batch(rows)
    with torch.inference_mode():
        found = beam_search(
            _Excluding(model, never_written(config)),
            model.start(source, lengths),
            begin_id=config.begin_id,
            end_id=config.end_id,
            max_lengths=torch.full_like(lengths, longest),
            beam_size=beam_size,
            patience=1,
            pad_id=config.pad_id,
        )
    return [best for best, *_ in found]


def _log_probability_differences(
    translator: Translator,
    engine: CTranslate2Decoder,
    rows: Sequence[Sequence[int]],
    targets: Sequence[tuple[int, ...]],
) -> Float[Tensor, " tokens"]:
    """Return how far the log-probability of every token and end of given translations differs."""
    config, never = translator.config, never_written(translator.config)
    scored = engine.engine.score_batch(
        engine.to_pieces(rows),
        [[engine.target_pieces[number] for number in target] for target in targets],
        max_input_length=0,
    )
    differences = []
    for row, target, result in zip(rows, targets, scored, strict=True):
        source, lengths = translator.torch_decoder.to_batch([row])
        begun = torch.tensor([[config.begin_id, *target]])
        wanted = torch.tensor([*target, config.end_id])
        with torch.inference_mode():
            logits = translator.model(source, lengths, begun)[0].index_fill(1, never, -math.inf)
        ours = logits.log_softmax(dim=1).gather(1, wanted[:, None])[:, 0]
        differences.append((ours - torch.tensor(result.log_probs)).abs())
    return torch.cat(differences)


class _Excluding:
    """Our model without the tokens that are never generated."""

    def __init__(self, model: SequenceModel, never: Int[Tensor, " excluded"]) -> None:
        self.model, self.never = model, never

    def step(
        self, tokens: Int[Tensor, " rows"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], DecoderState]:
        logits, state = self.model.step(tokens, state)
        return logits.index_fill(1, self.never, -math.inf), state


def check(proof: Proof) -> None:
    """Refuse an export that computes something else, with ``CheckpointError``."""
    tolerance = TOLERANCES[proof.quantization]
    is_exact = proof.quantization == EXACT
    difference = proof.largest_difference if is_exact else proof.mean_difference
    # NaN is out of tolerance, too.
    faults = [] if difference <= tolerance else [f"log-probabilities differ by {difference:.1e}"]
    if is_exact and not proof.largest_score_difference <= tolerance:
        faults.append(f"scores differ by {proof.largest_score_difference:.1e}")
    faults += [
        f"{num_parted} of {proof.num_sentences} translations are others ({search})"
        for search, num_parted in proof.num_parted.items()
        if is_exact and num_parted > MAX_PARTED_SHARE * proof.num_sentences
    ]
    if faults:
        raise CheckpointError(
            f"the exported model does not compute what ours does: {'; '.join(faults)}",
            expected=f"log-probabilities within {tolerance}",
            remedy="Leave quantization out" if not is_exact else "Report this as a defect of vitrail",
        )


def rows_to_compare(translator: Translator, sentences: Sequence[str]) -> list[list[int]]:
    """Return source subwords of the sentences that are not too long, or random ones without any."""
    encoded = translator.vocabulary.source.encode(translator.preprocessing.prepare(sentences))
    rows = [row for row in encoded if 0 < len(row) <= translator.max_source_length]
    if rows:
        return rows
    source, generator = translator.vocabulary.source, torch.Generator().manual_seed(0)
    specials = {source.pad_id, source.begin_id, source.end_id, source.unknown_id}
    known = torch.tensor([number for number in range(source.size) if number not in specials])
    longest = min(MAX_DRAWN_LENGTH, translator.max_source_length)
    lengths = torch.randint(1, longest + 1, (NUM_DRAWN,), generator=generator).tolist()
    return [known[torch.randint(len(known), (length,), generator=generator)].tolist() for length in lengths]
