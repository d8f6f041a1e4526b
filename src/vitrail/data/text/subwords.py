"""Subword vocabularies, which write any text of their alphabet."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from vitrail.core.errors import CheckpointError, ConfigError, DataError, import_optional, reading
from vitrail.data.text.subword_sampling import SubwordKind, SubwordSampler, to_utf8

PAD_ID, BEGIN_ID, END_ID, UNKNOWN_ID = range(4)
JOINT_FILE, SOURCE_FILE, TARGET_FILE = "subwords.model", "source-subwords.model", "target-subwords.model"
ALPHABET_SHARE = 0.5  # of a vocabulary that single characters may take, so that there is room for merges
TRAINING_THREADS = 4  # a constant, for the number is part of what the library writes
MODEL = "a sentencepiece model with subwords for padding, begin, end and unknown"
LONGEST_TEXT_BYTES = 2**30  # the library skips longer ones, by default all above 4,192 bytes


@runtime_checkable
class Subwords(Protocol):
    """The interface of a subword vocabulary."""

    @property
    def size(self) -> int:
        """Number of subwords, including special tokens."""

    @property
    def pad_id(self) -> int: ...

    @property
    def begin_id(self) -> int:
        """Id of the decoder's first input."""

    @property
    def end_id(self) -> int: ...

    @property
    def unknown_id(self) -> int:
        """Id of every character that is in no subword."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Cut each text into its most likely subwords, without begin and end."""

    def encode_sampled(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Cut each text into subwords at random, as a function of the arguments alone."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Join the subwords of each row to text, without special tokens."""

    def pieces(self, row: Sequence[int]) -> list[str]: ...


class PublishedSubwords(Protocol):
    """Subwords of a published model, which the library tokenizers cuts."""

    whose: str
    """The kind of model, for errors."""
    unwritten: tuple[int, ...]
    """Ids that are no part of a text."""
    _tokenizer: Any

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def encode_sampled(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Cut each text as ``encode`` does; ``ConfigError`` if subwords are to be sampled."""
        if dropout:
            raise ConfigError(
                f"subwords of {self.whose} were to be drawn at random, with dropout {dropout:g}",
                expected="no dropout of subwords",
                remedy="Leave it at 0, or train from random weights",
            )
        return self.encode(texts)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        written = [[number for number in row if number not in self.unwritten] for row in rows]
        return [text.strip() for text in self._tokenizer.decode_batch(written, skip_special_tokens=False)]

    def pieces(self, row: Sequence[int]) -> list[str]:
        """Return each subword of a row as in the vocabulary."""
        return [self._tokenizer.id_to_token(number) or f"<{number}>" for number in row]


class SentencePieceSubwords:
    """Subwords of the library sentencepiece (Kudo and Richardson 2018), byte pairs or unigrams.

    Text is not normalised (Unicode), since outputs are compared with unnormalised texts; on Multi30k (en, de,
    fr, cs; 93,042 sentences with training) the library's usual rules would change one sentence. There is no
    byte fallback: it would add 256 untrained subwords, as the validation and test splits have no character
    that training lacks. An unknown character becomes ``unknown_id``, written as a double question mark.

    Args:
        model: a trained model in the library's format.

    Raises:
        CheckpointError: these bytes are no such model, or one without some special token.
    """

    file = JOINT_FILE

    def __init__(self, model: bytes) -> None:
        processor = import_sentencepiece().SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model)
            specials = processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id()
        except (RuntimeError, ValueError) as error:
            raise unusable(f"it cannot be read: {error}", MODEL) from None
        if min(specials) < 0:
            raise unusable(f"padding, begin, end and unknown have the numbers {specials}", MODEL)
        self._model, self._processor = model, processor
        self.pad_id, self.begin_id, self.end_id, self.unknown_id = specials
        self.size: int = processor.vocab_size()
        self._sampler = SubwordSampler(processor, self.unknown_id)
        self.kind: SubwordKind = self._sampler.kind

    @classmethod
    def train(cls, texts: Iterable[str], *, size: int, kind: SubwordKind = "bpe") -> Self:
        """Learn a vocabulary; the same texts always give the same bytes.

        Every character of the texts is a subword, unless these would exceed half of the vocabulary; then only
        the most frequent are.

        Args:
            texts: sentences, prepared as for encoding.
            size: number of subwords, including special tokens; fewer if the texts do not have as many.
            kind: byte pairs merged by frequency (Sennrich et al. 2016), or a unigram language model (Kudo
                2018).

        Raises:
            DataError: there is no text to learn from.
        """
        sentencepiece = import_sentencepiece()
        written = [text for text in texts if text and not text.isspace()]
        if not written:
            raise DataError(
                "there is no text to learn subwords from",
                expected="at least one sentence that is not empty",
                remedy="Look at the files of the training split",
            )
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(to_utf8, _with_small_alphabet(written, int(size * ALPHABET_SHARE))),
            model_writer=model,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=LONGEST_TEXT_BYTES,
            num_threads=TRAINING_THREADS,
            minloglevel=2,  # errors only
            pad_id=PAD_ID,
            bos_id=BEGIN_ID,
            eos_id=END_ID,
            unk_id=UNKNOWN_ID,
        )
        return cls(model.getvalue())

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        return cls(content)

    def to_bytes(self) -> bytes:
        return self._model

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([to_utf8(text) for text in texts], num_threads=1)

    def encode_sampled(self, texts: Sequence[str], *, dropout: float, seed: int) -> list[list[int]]:
        """Cut each text into subwords at random, as a function of the arguments alone.

        Paper: Provilkov et al. 2020, BPE-Dropout, for byte pairs; Kudo 2018, section 3.2, for unigrams.

        Args:
            dropout: probability that a merge is skipped; with unigrams the smoothing exponent, where
                above zero: small ones draw from all segmentations alike. At 0 the result is ``encode``'s.
        """
        if not dropout:
            return self.encode(texts)
        return self._sampler.encode(texts, dropout=dropout, seed=seed)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._processor.decode(list(row)) if len(row) else "" for row in rows]

    def pieces(self, row: Sequence[int]) -> list[str]:
        """Return each subword of a row, with spaces as a low line (U+2581)."""
        return [self._processor.id_to_piece(token) for token in row]


class PairVocabulary(NamedTuple):
    """The source and target vocabularies of a translation model."""

    source: Subwords
    target: Subwords
    """The same object as ``source`` for a joint vocabulary."""

    @property
    def is_joint(self) -> bool:
        """Whether both languages share one vocabulary, so that embeddings can be tied."""
        return self.source is self.target

    @classmethod
    def train(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        size: int,
        kind: SubwordKind = "bpe",
        is_joint: bool = True,
    ) -> Self:
        """Learn one vocabulary of both languages together, or one of each, from prepared sentences."""
        if is_joint:
            joint = SentencePieceSubwords.train([*sources, *targets], size=size, kind=kind)
            return cls(joint, joint)
        return cls(*(SentencePieceSubwords.train(side, size=size, kind=kind) for side in (sources, targets)))

    def to_files(self) -> dict[str, bytes]:
        from vitrail.data.text import marian_subwords  # made of parts of this file

        if isinstance(self.source, marian_subwords.MarianSubwords):
            return marian_subwords.to_files(*self)
        assert isinstance(self.source, SentencePieceSubwords)
        assert isinstance(self.target, SentencePieceSubwords)
        if self.is_joint:
            return {JOINT_FILE: self.source.to_bytes()}
        return {SOURCE_FILE: self.source.to_bytes(), TARGET_FILE: self.target.to_bytes()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Read what ``to_files`` returned; ``CheckpointError`` if a file is missing or damaged."""
        from vitrail.data.text import marian_subwords

        if marian_subwords.SPECIALS in files:
            with _reading(marian_subwords.SPECIALS):
                return cls(*marian_subwords.from_files(files))
        if JOINT_FILE in files:
            joint = SentencePieceSubwords(files[JOINT_FILE])
            return cls(joint, joint)
        if missing := [name for name in (SOURCE_FILE, TARGET_FILE) if name not in files]:
            raise CheckpointError(
                f"the model has no vocabulary: {' and '.join(missing)} missing beside its weights",
                expected=f"{JOINT_FILE}, or {SOURCE_FILE} and {TARGET_FILE}",
                remedy="Give the folder of a translation model as it was saved",
            )
        return cls(SentencePieceSubwords(files[SOURCE_FILE]), SentencePieceSubwords(files[TARGET_FILE]))


def vocabulary_to_files(vocabulary: Any) -> dict[str, bytes]:
    """Return the file stored beside a model with one vocabulary, by name."""
    return {vocabulary.file: vocabulary.to_bytes()}


def vocabulary_from_files(files: Mapping[str, bytes]) -> Subwords:
    """Read what ``vocabulary_to_files`` returned: words, subwords learned here, or published ones.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    from vitrail.data.text.clip_subwords import CLIPSubwords  # made of parts of this file
    from vitrail.data.text.word_pieces import WordPieces
    from vitrail.data.text.words import WordVocabulary

    kinds = {kind.file: kind for kind in (WordVocabulary, SentencePieceSubwords, CLIPSubwords, WordPieces)}
    for name, kind in kinds.items():
        if name in files:
            with _reading(name):
                return kind.from_bytes(files[name])
    raise CheckpointError(
        "the model has no vocabulary beside its weights",
        expected=f"one of the files {', '.join(kinds)}",
        remedy="Give the folder of a model as it was saved",
    )


def _with_small_alphabet(texts: Sequence[str], size: int) -> list[str]:
    """Replace all but the ``size`` most frequent characters by spaces."""
    counts = Counter(chain.from_iterable(texts))
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    rare = str.maketrans(dict.fromkeys(by_frequency[size:], " "))
    return [text.translate(rare) for text in texts] if rare else list(texts)


def _reading(name: str) -> AbstractContextManager[None]:
    expected, remedy = "a vocabulary as it was saved", "Restore the folder of the model, or train it again"
    return reading(name, expected=expected, remedy=remedy)


def unusable(fault: str, expected: str) -> CheckpointError:
    """Return the error for a damaged vocabulary."""
    return CheckpointError(
        f"this is not a usable vocabulary: {fault}",
        expected=expected,
        remedy="Restore its files or download them again, or train the model again",
    )


def import_sentencepiece() -> Any:
    """Return the library sentencepiece; ``ConfigError`` if it is not installed."""
    return import_optional("sentencepiece", "subwords need", "sentencepiece", "translation")


def import_tokenizers(whose: str) -> Any:
    """Return the library tokenizers; ``ConfigError`` if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(
            f"the subwords of {whose} need the library tokenizers",
            expected="tokenizers, which transformers brings along",
            remedy="Install it with: pip install tokenizers",
        ) from None
    return tokenizers
