"""Inference with a trained translator: lines in, translations out, streamed in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from vitrail.core.errors import ConfigError, DataError
from vitrail.data.findings import number_of
from vitrail.data.text.input_lines import Line, plan_batches, read_chunks
from vitrail.data.text.subwords import PairVocabulary, Subwords
from vitrail.data.text_preprocessing import PairPreprocessing
from vitrail.engines.loading import is_ctranslate2
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.decoding import Hypothesis, PenaltyForm
from vitrail.tasks.generation import distinct_texts
from vitrail.tasks.predicting import (
    Answered,
    ResultStream,
    answer_in_order,
    check_positive,
    device_or_default,
    open_in_torch,
    ranked_rows,
    several,
    text_of,
)
from vitrail.tasks.translation.ctranslate2_folder import CTranslate2Decoder, read_exported
from vitrail.tasks.translation.search import Search, TorchDecoder, max_positions
from vitrail.tasks.translation.settings import TranslationSettings

BATCH_TOKENS = 2048  # about a hundred sentences of news
READ_AHEAD = 1024  # lines; enough to batch by similar length
MAX_SOURCE_LENGTH = 1024  # subwords; longer lines are not sentences

UNKNOWN_SHARE = 0.5  # of the letters of a line, above which it is in another script
FEW_LETTERS = 4  # a name or an abbreviation says nothing about a language
MAX_KEPT = 10_000  # characters whose result is kept


class Alternative(NamedTuple):
    """A translation other than the best."""

    text: str
    score: float
    """Log-probability / length penalty."""


class Translation(NamedTuple):
    """The translation of one line, or an error."""

    text: str
    """The best translation; empty for an empty line and on an error."""
    score: float = 0.0
    """Log-probability / length penalty; 0 for an empty text."""
    alternatives: tuple[Alternative, ...] = ()
    """The next best translations, if requested."""
    error: str | None = None
    """Why the line could not be translated."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the translation."""
    source: str = ""
    """The line; empty if it could not be read."""

    def to_json(self) -> dict[str, Any]:
        if self.error is not None:
            return {"source": self.source, "text": "", "error": self.error}
        found: dict[str, Any] = {"source": self.source, "text": self.text, "score": self.score}
        if self.alternatives:
            found["alternatives"] = [alternative._asdict() for alternative in self.alternatives]
        if self.warnings:
            found["warnings"] = list(self.warnings)
        return found

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row for each translation."""
        texts = [] if self.error else [(self.text, self.score), *self.alternatives]
        return ranked_rows({"source": self.source}, ("translation", "score"), texts, self.error)


class _Encoded(NamedTuple):
    line: Line
    text: str
    row: list[int]


class Translator:
    """Translate lines with a trained model.

    Args:
        source: a run directory, the folder of a saved model, a CTranslate2 export, or a loaded model.
        device: by default a GPU, if there is one.
        max_source_length: maximum subwords of a line; at most what the model has positions for.

    Raises:
        CheckpointError: the source holds no usable model, or none that translates.
        ConfigError: CTranslate2 is needed and not installed, or has no such device.

    Example:
        >>> translator = Translator("runs/en-de")  # doctest: +SKIP
        >>> next(translator.translate(["A dog runs."])).text  # doctest: +SKIP
        'Ein Hund rennt.'
    """

    def __init__(
        self,
        source: str | Path | LoadedModel,
        *,
        device: str | torch.device | None = None,
        max_source_length: int = MAX_SOURCE_LENGTH,
    ) -> None:
        check_positive("the maximum source length", max_source_length)
        self._decoder: TorchDecoder | CTranslate2Decoder
        if is_ctranslate2(source):
            folder = Path(cast("str | Path", source))
            self.device = _cpu_of_export(folder, device)
            self.config, preprocessing, about, self.vocabulary = exported = read_exported(folder)
            self._decoder = CTranslate2Decoder(folder, exported, num_threads=torch.get_num_threads())
        else:
            self.device = device_or_default(device)
            loaded = open_in_torch(source, "translation", self.device)
            self.vocabulary = PairVocabulary.from_files(loaded.files)
            self._decoder = TorchDecoder(loaded.model, self.device)
            self.config, preprocessing, about = self._decoder.config, loaded.preprocessing, loaded.about
        self.preprocessing = PairPreprocessing.from_tree(preprocessing)
        self.search = TranslationSettings.from_tree(about.get("task", {})).search
        self.max_source_length = min(max_source_length, max_positions(self.config) - 1)  # one for the end
        self._coverage = Coverage(self.vocabulary.source)

    @property
    def languages(self) -> tuple[str, str]:
        return self.preprocessing.languages

    def translate(
        self,
        lines: Iterable[Line],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        penalty_form: PenaltyForm | None = None,
        num_best: int = 1,
        batch_tokens: int = BATCH_TOKENS,
        max_length: int | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> ResultStream[Translation]:
        """Translate lines in batches, and yield their translations in order.

        A line that cannot be translated yields an error instead of raising. The input may be endless: at most
        ``read_ahead`` lines are buffered.

        Args:
            lines: sentences, or one alone, or read errors, as ``read_lines`` yields.
            beam_size: as in ``Search``; by default as the run was scored.
            length_penalty, penalty_form: likewise.
            batch_tokens: maximum subwords of a batch, including padding.
            read_ahead: lines to buffer for batching; 1 translates each line before reading the next.
                ``ArrivingLines`` buffers only lines that have arrived.

        Raises:
            ConfigError: a number is not positive, more translations are wanted than the beam keeps, or
                something is no text.
            DataError: what ``lines`` raises, after the lines before it were translated.
        """
        search = Search(
            self.search.beam_size if beam_size is None else beam_size,
            self.search.length_penalty if length_penalty is None else length_penalty,
            num_best,
            max_length,
            penalty_form or self.search.penalty_form,
        )
        return self.search_lines(lines, search, batch_tokens, read_ahead)

    def search_lines(
        self, lines: Iterable[Line], search: Search, batch_tokens: int, read_ahead: int
    ) -> ResultStream[Translation]:
        """Translate lines like ``translate``."""
        search.check(batch_tokens, read_ahead)
        found = answer_in_order(
            map(self._encode, read_chunks(iter(several(lines)), read_ahead)),
            read=self._check,
            run=lambda encoded, rows: self._translate_batch(encoded, rows, search),
            failed=lambda encoded, error: Translation(
                "", error=error, source=encoded.line if isinstance(encoded.line, str) else ""
            ),
            plan=lambda rows: plan_batches(dict(rows), batch_tokens),
        )
        return ResultStream(found)

    def decode(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each row of source subwords (without the end), as one batch."""
        return self._decoder.decode(rows, search)

    @property
    def torch_decoder(self) -> TorchDecoder:
        """The torch model with its inputs; ``ConfigError`` for an exported translator, which has none."""
        if isinstance(self._decoder, TorchDecoder):
            return self._decoder
        raise ConfigError(
            "a translator that was exported for CTranslate2 cannot be explained",
            expected="a run directory, or the folder of a saved model",
            remedy="Name the run that it was made from",
        )

    @property
    def model(self) -> Any:
        """The torch model; ``ConfigError`` for an exported translator, which has none."""
        return self.torch_decoder.model

    def _encode(self, chunk: Sequence[Line]) -> list[_Encoded]:
        texts = self.preprocessing.prepare([line if isinstance(line, str) else "" for line in chunk])
        return [*map(_Encoded, chunk, texts, self.vocabulary.source.encode(texts))]

    def _check(self, encoded: _Encoded) -> list[int] | Answered:
        text = text_of(encoded.line)
        if len(encoded.row) > self.max_source_length:
            raise DataError(
                f"the line has {number_of(len(encoded.row), 'subword')}",
                expected=f"at most {self.max_source_length:,}, one sentence on each line",
                remedy="Divide it into sentences",
            )
        return encoded.row or Answered(Translation("", source=text))

    def _translate_batch(
        self, encoded: Sequence[_Encoded], rows: Sequence[Sequence[int]], search: Search
    ) -> Iterator[Translation]:
        # The whole beam where several are wanted: some of its subwords may spell the same text.
        wanted = search.beam_size if search.num_best > 1 else 1
        found = self.decode(rows, search._replace(num_best=wanted))
        for each, hypotheses in zip(encoded, found, strict=True):
            texts = self.vocabulary.target.decode([hypothesis.tokens for hypothesis in hypotheses])
            best, *others = starmap(Alternative, distinct_texts(texts, hypotheses, search.num_best))
            warnings = [warning for warning in [self._coverage.warning(each.text)] if warning]
            if not hypotheses[0].is_finished:
                written = number_of(len(hypotheses[0].tokens), "subword")
                warnings.append(f"the translation was cut off at its maximum of {written}")
            yield Translation(*best, tuple(others), warnings=tuple(warnings), source=str(each.line))


class Coverage:
    """Find texts that a vocabulary can hardly write, as an unknown script indicates a foreign language.

    Subwords do not measure it: all characters between two spaces that a vocabulary does not know may be one
    unknown subword, or one each. Therefore characters are looked up one by one.
    """

    def __init__(self, subwords: Subwords) -> None:
        self._is_unknown = lru_cache(MAX_KEPT)(
            lambda letter: subwords.unknown_id in subwords.encode([letter])[0]
        )

    def warning(self, text: str) -> str | None:
        """Say that the vocabulary lacks most letters of a text; None otherwise, or for very few letters."""
        letters = [character for character in text if character.isalpha()]
        if len(letters) < FEW_LETTERS:
            return None
        share = sum(map(self._is_unknown, letters)) / len(letters)
        if share <= UNKNOWN_SHARE:
            return None
        return (
            f"the model knows {1 - share:.0%} of the letters of this line; "
            "it may be in a language that it was not trained on"
        )


def _cpu_of_export(folder: Path, device: str | torch.device | None) -> torch.device:
    chosen = torch.device("cpu" if device is None else device)
    if chosen.type != "cpu":
        raise ConfigError(
            f"{folder} was exported for CTranslate2, and the device {chosen} was asked for",
            expected="the device cpu",
            remedy="Leave the device out, or name the run that the folder was made from",
        )
    return chosen
