"""Inference with a trained translator: lines in, translations out, streamed in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.core.errors import CheckpointError, ConfigError, DataError
from vitrail.data.pair_preprocessing import PairPreprocessing
from vitrail.data.text.coverage import Coverage
from vitrail.data.text.input_lines import Line
from vitrail.data.text.line_batches import plan_batches, read_chunks
from vitrail.data.text.subwords import PairVocabulary
from vitrail.engines.loading import is_ctranslate2, load_any
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import TranslationModelConfig
from vitrail.models.decoding import Hypothesis
from vitrail.tasks.other_use import other_use
from vitrail.tasks.predicting import Answered, answer_in_order, device_or_default
from vitrail.tasks.translation.ctranslate2.folder import CTranslate2Finder, read_exported
from vitrail.tasks.translation.search import (
    Finder,
    ModelFinder,
    Search,
    check_search,
    most_places,
    usual_search,
)

BATCH_TOKENS = 2048  # about a hundred sentences of news
READ_AHEAD = 1024  # lines; enough to batch by similar length
MAX_SOURCE_LENGTH = 1024  # subwords; longer lines are not sentences


class Alternative(NamedTuple):
    """A translation other than the best."""

    text: str
    score: float
    """Log-probability / length ** length_penalty."""


class Translation(NamedTuple):
    """The translation of one line, or an error."""

    text: str
    """The best translation; empty for an empty line and on an error."""
    score: float = 0.0
    """Log-probability / length ** length_penalty; 0 for an empty text."""
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
        >>> translator = Translator("runs/en-de")
        >>> next(translator.translate(["A dog runs."])).text
        'Ein Hund rennt.'
    """

    def __init__(
        self,
        source: str | Path | LoadedModel,
        *,
        device: str | torch.device | None = None,
        max_source_length: int = MAX_SOURCE_LENGTH,
    ) -> None:
        if is_ctranslate2(source):
            self._open_export(Path(cast("str | Path", source)), device)
        else:
            self._open_model(source, device)
        self.max_source_length = min(max_source_length, most_places(self.config) - 1)  # one for the end
        self._coverage = Coverage(self.vocabulary.source)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language codes."""
        return self.preprocessing.languages

    def translate(
        self,
        lines: Iterable[Line],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        num_best: int = 1,
        batch_tokens: int = BATCH_TOKENS,
        max_length: int | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> Iterator[Translation]:
        """Translate lines in batches, and yield their translations in order.

        A line that cannot be translated yields an error instead of raising. The input may be endless: at most
        ``read_ahead`` lines are buffered.

        Args:
            lines: sentences, or read errors, as ``read_lines`` yields.
            beam_size: as in ``Search``; by default as the run was scored.
            length_penalty: likewise.
            batch_tokens: maximum subwords of a batch, including padding.
            read_ahead: lines to buffer for batching; 1 translates each line before reading the next.
                ``ArrivingLines`` buffers only lines that have arrived.

        Raises:
            ConfigError: a number is not positive, or more translations are wanted than the beam keeps.
            DataError: what ``lines`` raises, after the lines before it were translated.
        """
        search = Search(
            self.search.beam_size if beam_size is None else beam_size,
            self.search.length_penalty if length_penalty is None else length_penalty,
            num_best,
            max_length,
        )
        check_search(search, batch_tokens, read_ahead)
        return self._translate_all(iter(lines), search, batch_tokens, read_ahead)

    @property
    def model(self) -> Any:
        """The torch model.

        Raises:
            ConfigError: an exported translator has none.
        """
        return self._own_finder().model

    def find(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each row of source subwords, as one batch.

        Args:
            rows: non-empty, without the end.
        """
        return self._finder.find(rows, search)

    def to_batch(
        self, rows: Sequence[Sequence[int]]
    ) -> tuple[Int[Tensor, "batch tokens"], Int[Tensor, " batch"]]:
        """Append the end and pad, on the model's device.

        Returns:
            lengths: including the end.

        Raises:
            ConfigError: as ``model``.
        """
        return self._own_finder().to_batch(rows)

    def _open_model(self, source: str | Path | LoadedModel, device: str | torch.device | None) -> None:
        loaded = source if isinstance(source, LoadedModel) else load_any(source)
        config = getattr(loaded.model, "config", None)
        if (
            not isinstance(config, TranslationModelConfig)
            or loaded.preprocessing.get("task") != "translation"
        ):
            raise _no_translator(source, loaded)
        self.device = device_or_default(device)
        self.config = config
        self.preprocessing = PairPreprocessing.from_tree(loaded.preprocessing)
        self.vocabulary = PairVocabulary.from_files(loaded.files)
        self.search = usual_search(loaded.about)
        self._finder: Finder = ModelFinder(loaded.model.eval().to(self.device), config, self.device)

    def _open_export(self, folder: Path, device: str | torch.device | None) -> None:
        self.device = torch.device("cpu" if device is None else device)
        if self.device.type != "cpu":
            raise ConfigError(
                f"{folder} was exported for CTranslate2, and the device {self.device} was asked for",
                expected="the device cpu",
                remedy="Leave the device out, or name the run that the folder was made from",
            )
        exported = read_exported(folder)
        self.config, self.vocabulary = exported.config, exported.vocabulary
        self.preprocessing = PairPreprocessing.from_tree(exported.preprocessing)
        self.search = usual_search(exported.about)
        self._finder = CTranslate2Finder(folder, exported, num_threads=torch.get_num_threads())

    def _own_finder(self) -> ModelFinder:
        if isinstance(self._finder, ModelFinder):
            return self._finder
        raise ConfigError(
            "a translator that was exported for CTranslate2 shows nothing of what it computes",
            expected="a run directory, or the folder of a saved model",
            remedy="Name the run that it was made from",
        )

    def _translate_all(
        self, lines: Iterator[Line], search: Search, batch_tokens: int, read_ahead: int
    ) -> Iterator[Translation]:
        return answer_in_order(
            map(self._encode, read_chunks(lines, read_ahead)),
            read=self._check,
            run=lambda encoded, rows: [
                translation._replace(source=str(each.line))
                for each, translation in zip(
                    encoded,
                    self._translate_batch([each.text for each in encoded], rows, search),
                    strict=True,
                )
            ],
            failed=lambda encoded, error: Translation(
                "", error=error, source=encoded.line if isinstance(encoded.line, str) else ""
            ),
            plan=lambda rows: plan_batches(dict(rows), batch_tokens),
        )

    def _encode(self, chunk: Sequence[Line]) -> list[_Encoded]:
        texts = self.preprocessing.prepare([line if isinstance(line, str) else "" for line in chunk])
        return [*map(_Encoded, chunk, texts, self.vocabulary.source.encode(texts))]

    def _check(self, encoded: _Encoded) -> list[int] | Answered:
        """Return the subwords of a line.

        Raises:
            DataError: it could not be read, or is too long.
        """
        if isinstance(encoded.line, DataError):
            raise encoded.line
        if len(encoded.row) > self.max_source_length:
            raise self._too_long(encoded.row)
        return encoded.row or Answered(Translation("", source=encoded.line))

    def _translate_batch(
        self, texts: Sequence[str], rows: Sequence[Sequence[int]], search: Search
    ) -> list[Translation]:
        translations = []
        for text, hypotheses in zip(texts, self.find(rows, search), strict=True):
            written = self.vocabulary.target.decode([hypothesis.tokens for hypothesis in hypotheses])
            best, *others = [
                Alternative(each, hypothesis.score)
                for each, hypothesis in zip(written, hypotheses, strict=True)
            ]
            warnings = [warning for warning in [self._coverage.warning(text)] if warning]
            if not hypotheses[0].is_finished:
                count = len(hypotheses[0].tokens)
                warnings.append(
                    f"the translation was cut off after {count} subwords, before it came to an end"
                )
            translations.append(Translation(best.text, best.score, tuple(others), warnings=tuple(warnings)))
        return translations

    def _too_long(self, row: Sequence[int]) -> DataError:
        return DataError(
            f"the line has {len(row):,} subwords",
            expected=f"at most {self.max_source_length:,}, one sentence on each line",
            remedy="Divide it into sentences",
        )


def _no_translator(source: str | Path | LoadedModel, loaded: LoadedModel) -> CheckpointError:
    name = loaded.model_settings.get("name", type(loaded.model).__name__)
    where = "the model" if isinstance(source, LoadedModel) else f"{source}"
    return CheckpointError(
        f"{where} does not translate, it holds the model {name} for other inputs",
        expected="a run that was trained on pairs of sentences",
        remedy=other_use(loaded.preprocessing),
    )
