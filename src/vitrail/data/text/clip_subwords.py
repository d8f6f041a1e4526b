"""Subwords of published CLIP models: byte pairs, merged in the order of a list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from vitrail.core.errors import reading
from vitrail.data.text.subwords import PublishedSubwords, import_tokenizers, unusable

TOKENIZER_FILE, NUMBERS_FILE, MERGES_FILE = "tokenizer.json", "vocab.json", "merges.txt"
BEGIN, END = "<|startoftext|>", "<|endoftext|>"
PUBLISHED = f"{TOKENIZER_FILE}, or {NUMBERS_FILE} and {MERGES_FILE}, as they were published"
WORD_END = "</w>"  # ends the last piece of a word
# Radford et al. 2021, published code: words of letters, English endings, single digits, runs of other signs.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class CLIPSubwords(PublishedSubwords):
    """Subwords of a CLIP, cut by the library tokenizers; text is lower-cased.

    Text never becomes a special token. Departs from the published code in this alone, where the text
    ``<|endoftext|>`` ends a text; and, like transformers', it repairs no broken Unicode.

    Args:
        numbers: ids of the pieces, with ``<|startoftext|>`` and ``<|endoftext|>``.
        merges: pairs of pieces, the first to be merged first.

    Raises:
        CheckpointError: these are not pieces with their merges.
        ConfigError: the library is not installed.

    Paper: Radford et al. 2021, section 2.4; Radford et al. 2019 (GPT-2), section 2.2, pairs of bytes.
    """

    file = "clip-subwords.json"
    whose = "a published CLIP"

    def __init__(self, numbers: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> None:
        for token in (BEGIN, END):
            if token not in numbers:
                raise unusable(f"its pieces lack {token}", PUBLISHED)
        self.numbers, self.merges = dict(numbers), list(merges)
        self.size = max(numbers.values()) + 1
        self.begin_id, self.end_id = numbers[BEGIN], numbers[END]
        self.pad_id, self.unknown_id = 0, self.end_id
        self.unwritten = self.begin_id, self.end_id
        self._tokenizer = _build(self.numbers, self.merges)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        stored = json.loads(content)
        return cls(stored["numbers"], [_pair(merge) for merge in stored["merges"]])

    def to_bytes(self) -> bytes:
        merges = [" ".join(pair) for pair in self.merges]
        return json.dumps({"numbers": self.numbers, "merges": merges}).encode()


def from_published(files: Mapping[str, bytes]) -> CLIPSubwords:
    """Read the files of the Hugging Face layout: ``tokenizer.json``, or ``vocab.json`` and ``merges.txt``.

    Raises:
        CheckpointError: none of them is there, or they are not those of a CLIP.
    """
    with reading("the vocabulary", expected=PUBLISHED, remedy="Download its files again"):
        if TOKENIZER_FILE in files:
            model = json.loads(files[TOKENIZER_FILE])["model"]
            numbers, merges = dict(model["vocab"]), list(model["merges"])
        elif NUMBERS_FILE in files and MERGES_FILE in files:
            numbers = dict(json.loads(files[NUMBERS_FILE]))
            lines = files[MERGES_FILE].decode("utf-8").splitlines()
            merges = [line for line in lines if line.strip() and not line.startswith("#version")]
        else:
            raise unusable(
                f"there is neither {TOKENIZER_FILE} nor {NUMBERS_FILE} with {MERGES_FILE}", PUBLISHED
            )
        return CLIPSubwords(numbers, [_pair(merge) for merge in merges])


def _pair(merge: Any) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first, second


def _build(numbers: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    library = import_tokenizers(CLIPSubwords.whose)
    normalizers, pre_tokenizers = library.normalizers, library.pre_tokenizers
    try:
        pairs = library.models.BPE(vocab=numbers, merges=merges, end_of_word_suffix=WORD_END, unk_token=END)
    except Exception as error:  # the library raises nothing narrower
        raise unusable(f"its merges do not fit its pieces: {error}", PUBLISHED) from None
    tokenizer = library.Tokenizer(pairs)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(library.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(library.Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    decoders = library.decoders
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(WORD_END, " ")])
    return tokenizer
