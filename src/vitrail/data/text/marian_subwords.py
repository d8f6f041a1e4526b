"""Subwords of published Marian models: sentencepiece pieces with ids from a separate vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vitrail.data.text.subword_sampling import SPACE, SubwordSampler, to_utf8
from vitrail.data.text.subwords import Subwords, import_sentencepiece, unusable

SOURCE_PIECES, TARGET_PIECES = "source.spm", "target.spm"
NUMBERS, TARGET_NUMBERS = "vocab.json", "target_vocab.json"
SPECIALS = "special_ids.json"
PUBLISHED = f"{SOURCE_PIECES}, {TARGET_PIECES} and {NUMBERS} as they were published"

LANGUAGE_CODE = re.compile(r">>[^<>\s]+<<")  # Tiedemann and Thottingal 2020: says what is to be written


class SpecialIds(NamedTuple):
    """The ids of special tokens, as in ``Subwords``."""

    pad_id: int
    begin_id: int
    end_id: int
    unknown_id: int


class MarianSubwords:
    """Subwords of one language of a Marian model.

    Both languages mostly share the ids, yet each has its own sentencepiece model. A text may begin with a
    language code such as ``>>fra<<`` if the vocabulary has such codes.

    Text never becomes a special token. Departs from transformers' MarianTokenizer in this alone: there,
    ``</s>`` in a text ends it.

    Args:
        model: the language's sentencepiece model.
        numbers: ids of the pieces; published lists lack some, which can be neither read nor written.
        specials: the ids of special tokens among them.

    Raises:
        CheckpointError: these bytes are not a sentencepiece model, or two pieces share an id.

    Paper: Junczys-Dowmunt et al. 2018 (Marian); Tiedemann and Thottingal 2020 (OPUS-MT), its models.
    """

    def __init__(self, model: bytes, numbers: Mapping[str, int], specials: SpecialIds) -> None:
        self._pieces = {number: piece for piece, number in numbers.items()}
        if len(self._pieces) < len(numbers) or min(self._pieces, default=-1) < 0:
            raise unusable("two of its pieces share a number, or one has none", PUBLISHED)
        self.size = max(self._pieces) + 1
        if max(specials) >= self.size:
            raise unusable(
                f"the special numbers {tuple(specials)} exceed the {self.size} of its pieces", PUBLISHED
            )
        self._processor = import_sentencepiece().SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError) as error:
            raise unusable(f"its sentencepiece model cannot be read: {error}", PUBLISHED) from None
        self.model, self.numbers, self.specials = model, dict(numbers), specials
        self.pad_id, self.begin_id, self.end_id, self.unknown_id = specials
        self._of_text = {piece: number for piece, number in numbers.items() if number not in specials}
        self._codes = {piece for piece in numbers if LANGUAGE_CODE.fullmatch(piece)}
        self._sampler = SubwordSampler(self._processor, self.unknown_id, self._of_text)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encode_sampled(texts, dropout=0.0, seed=0)

    def encode_sampled(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Cut each text at random; arguments as in ``SentencePieceSubwords``."""
        codes, bodies = self._split_codes(texts)
        rows = self._sampler.encode(bodies, dropout=dropout, seed=seed) if dropout else self._cut(bodies)
        return [[*code, *row] for code, row in zip(codes, rows, strict=True)]

    def _cut(self, bodies: Sequence[str]) -> list[list[int]]:
        cut = self._processor.encode([to_utf8(text) for text in bodies], out_type=str, num_threads=1)
        return [[self._of_text.get(piece, self.unknown_id) for piece in pieces] for pieces in cut]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        texts = []
        for row in rows:
            written = (number for number in row if number not in self.specials)
            pieces = [self._pieces[number] for number in written if number in self._pieces]
            text: str = self._processor.decode_pieces(pieces) if pieces else ""
            # Pieces of the other language's model keep the sign for a space.
            texts.append(text.replace(SPACE, " ").strip())
        return texts

    def pieces(self, row: Sequence[int]) -> list[str]:
        """Return each subword of a row, with spaces as a low line (U+2581)."""
        return [self._pieces.get(number, f"<{number}>") for number in row]

    def _split_codes(self, texts: Sequence[str]) -> tuple[list[list[int]], list[str]]:
        """Split leading language codes, as ids, from the rest of the texts."""
        codes: list[list[int]] = []
        bodies = []
        for text in texts:
            found = LANGUAGE_CODE.match(text) if self._codes else None
            codes.append([] if found is None else [self._of_text.get(found.group(), self.unknown_id)])
            bodies.append(text if found is None else text[found.end() :])
        return codes, bodies


def to_files(source: Subwords, target: Subwords) -> dict[str, bytes]:
    """Return the files stored beside a model: the published ones and the special ids."""
    assert isinstance(source, MarianSubwords)
    assert isinstance(target, MarianSubwords)
    specials = {"source": source.specials._asdict(), "target": target.specials._asdict()}
    files = {SOURCE_PIECES: source.model, TARGET_PIECES: target.model}
    files |= {NUMBERS: json.dumps(source.numbers).encode(), SPECIALS: json.dumps(specials).encode()}
    if target.numbers != source.numbers:
        files[TARGET_NUMBERS] = json.dumps(target.numbers).encode()
    return files


def from_files(files: Mapping[str, bytes]) -> tuple[MarianSubwords, MarianSubwords]:
    """Read what ``to_files`` returned: the subwords of the source and of the target language.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    missing = [name for name in (SOURCE_PIECES, TARGET_PIECES, NUMBERS, SPECIALS) if name not in files]
    if missing:
        raise unusable(f"{' and '.join(missing)} missing", PUBLISHED)
    numbers = read_numbers(files[NUMBERS])
    specials = json.loads(files[SPECIALS])
    written = read_numbers(files[TARGET_NUMBERS]) if TARGET_NUMBERS in files else numbers
    return (
        MarianSubwords(files[SOURCE_PIECES], numbers, SpecialIds(**specials["source"])),
        MarianSubwords(files[TARGET_PIECES], written, SpecialIds(**specials["target"])),
    )


def read_numbers(content: bytes) -> dict[str, int]:
    """Read a ``vocab.json``: every piece and its id; ``CheckpointError`` if it is something else."""
    try:
        numbers = json.loads(content.decode())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise unusable(f"its list of pieces is not JSON: {error}", PUBLISHED) from None
    if not isinstance(numbers, dict) or not all(type(number) is int for number in numbers.values()):
        raise unusable("its list of pieces gives them no numbers", PUBLISHED)
    return numbers
