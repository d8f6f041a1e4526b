"""Subwords of published BERTs: WordPiece, the longest known beginning of each word first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Self

from vitrail.data.text.subwords import PublishedSubwords, import_tokenizers, unusable

PAD, BEGIN, END, UNKNOWN = "[PAD]", "[CLS]", "[SEP]", "[UNK]"
PUBLISHED = "the vocab.txt of a BERT, with a piece on each line"


class WordPieces(PublishedSubwords):
    """Subwords of a BERT, cut by the library tokenizers.

    Words are cut at spaces and punctuation; accents are removed where letters are lower-cased. Text never
    becomes a special token.

    Args:
        pieces: in the order of their ids, with [PAD], [CLS], [SEP] and [UNK].
        lower_case: whether letters are made lower-case.

    Raises:
        CheckpointError: a special piece is missing.
        ConfigError: the library is not installed.

    Paper: Wu et al. 2016, section 4.1; Devlin et al. 2019, published code.
    """

    file = "word-pieces.json"
    whose = "a BERT"

    def __init__(self, pieces: Sequence[str], *, lower_case: bool) -> None:
        missing = [token for token in (PAD, BEGIN, END, UNKNOWN) if token not in pieces]
        if missing:
            raise unusable(f"its pieces lack {' and '.join(missing)}", PUBLISHED)
        self._pieces, self.lower_case = list(pieces), lower_case
        numbers = {piece: number for number, piece in enumerate(pieces)}
        self.size = len(pieces)
        self.pad_id, self.begin_id, self.end_id, self.unknown_id = (
            numbers[token] for token in (PAD, BEGIN, END, UNKNOWN)
        )
        self.unwritten = self.pad_id, self.begin_id, self.end_id
        library = import_tokenizers(self.whose)
        model = library.models.WordPiece(vocab=numbers, unk_token=UNKNOWN, max_input_chars_per_word=100)
        self._tokenizer = library.Tokenizer(model)
        self._tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lower_case)
        self._tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        self._tokenizer.decoder = library.decoders.WordPiece(cleanup=False)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        stored = json.loads(content)
        return cls(stored["pieces"], lower_case=stored["lower_case"])

    def to_bytes(self) -> bytes:
        return json.dumps({"lower_case": self.lower_case, "pieces": self._pieces}).encode()
