"""Exported CTranslate2 folders, opened with the settings saved beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vitrail.core.errors import CheckpointError, ConfigError, VitrailError
from vitrail.data.text.subwords import PairVocabulary
from vitrail.engines.loading import CTRANSLATE2_FILE
from vitrail.models import config_from_settings
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.contract import TranslationModelConfig
from vitrail.models.decoding import USUAL_PATIENCE, Hypothesis
from vitrail.tasks.translation.ctranslate2.spec import list_vocabularies
from vitrail.tasks.translation.search import Search, longest_translations

TRANSLATOR_FILE = "translator.json"
"""Model settings, text preprocessing and decoding settings, which the engine does not know."""


class ExportedTranslator(NamedTuple):
    """The metadata of an exported translator."""

    config: TranslationModelConfig
    """Settings of the original model."""
    preprocessing: dict[str, Any]
    about: dict[str, Any]
    vocabulary: PairVocabulary


class CTranslate2Finder:
    """Decode with CTranslate2 on a CPU.

    The engine has one length limit per batch, that of the longest row; longer outputs are truncated to their
    own row's limit and keep the score of the whole.

    Args:
        folder: an export.
        num_threads: per batch.

    Raises:
        ConfigError: the engine is not installed.
        CheckpointError: it cannot open the folder.
    """

    def __init__(self, folder: Path, exported: ExportedTranslator, *, num_threads: int) -> None:
        self.config = exported.config
        self.source_pieces, pieces = list_vocabularies(exported.vocabulary, exported.config)
        self.numbers = {piece: number for number, piece in enumerate(pieces)}
        ctranslate2 = import_engine()
        try:
            self.engine = ctranslate2.Translator(
                str(folder), device="cpu", compute_type="default", intra_threads=num_threads
            )
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"CTranslate2 cannot open {folder}: {error}",
                expected=f"{CTRANSLATE2_FILE} and vocabularies as the export wrote them",
                remedy="Export the run again",
            ) from error

    def find(self, rows: Sequence[Sequence[int]], search: Search) -> list[list[Hypothesis]]:
        """Return the best hypotheses for each row."""
        limits = [longest + 1 for longest in longest_translations(rows, search)]  # one for the end
        found = self.engine.translate_batch(
            [[self.source_pieces[number] for number in row] for row in rows],
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
    """Return the metadata of an exported translator.

    Raises:
        CheckpointError: the folder was not written by ``vitrail export``, or is damaged.
    """
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


def import_engine() -> ModuleType:
    """Return CTranslate2.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError(
            "the package ctranslate2 is not installed",
            expected="it, for its format is written and read with it",
            remedy="Install it with: pip install 'vitrail[ctranslate2]'",
        ) from None
    module: ModuleType = ctranslate2
    return module
