"""Published Marian models, with the vocabularies that belong to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vitrail import __version__
from vitrail.core.errors import CheckpointError
from vitrail.data.pair_preprocessing import PairPreprocessing
from vitrail.data.text.languages import SIDES
from vitrail.data.text.marian_subwords import (
    NUMBERS,
    SOURCE_PIECES,
    TARGET_NUMBERS,
    TARGET_PIECES,
    MarianSubwords,
    SpecialIds,
    read_numbers,
)
from vitrail.data.text.subwords import PairVocabulary
from vitrail.models.checkpoint import LoadedModel
from vitrail.models.transformer import TransformerConfig
from vitrail.models.weights.conversion import convert_to
from vitrail.models.weights.files import read_state
from vitrail.models.weights.hf.transformer import complete, to_config
from vitrail.models.weights.hub import WEIGHT_FILES, hub_file

MODEL_TYPE = "marian"
VARIANT = "transformer_base"  # whose settings are all replaced
TOKENISER_SETTINGS = "tokenizer_config.json"


def load_marian(repository: str, settings: Mapping[str, Any]) -> LoadedModel:
    """Return a published Marian model with its vocabularies.

    Args:
        repository: as for ``hub_file``.
        settings: its ``config.json``.

    Raises:
        CheckpointError: the files cannot be had, do not belong together, or are of a model unlike ours.
    """
    config = to_config(settings, origin=repository)
    state = complete(read_state(hub_file(repository, WEIGHT_FILES)), config)
    converted = convert_to(state, source="hf", config=config)
    described = json.loads(_read(repository, TOKENISER_SETTINGS))
    vocabulary = _read_vocabulary(repository, described, config)
    model = config.build()
    model.load_state_dict(converted)
    languages = (described.get(f"{side}_lang") or side for side in SIDES)
    return LoadedModel(
        model.eval(),
        {"name": VARIANT, **config.model_dump(mode="json")},
        PairPreprocessing(languages=tuple(languages)).model_dump(mode="json"),
        [],
        {"origin": f"hf:{repository}", "vitrail": __version__},
        vocabulary.to_files(),
    )


def _read_vocabulary(
    repository: str, described: Mapping[str, Any], config: TransformerConfig
) -> PairVocabulary:
    """Read the vocabularies of both languages.

    Raises:
        CheckpointError: they lack a special token, or are larger than the model's tables.
    """
    numbers = written = read_numbers(_read(repository, NUMBERS))
    if described.get("separate_vocabs"):
        written = read_numbers(_read(repository, TARGET_NUMBERS))
    subwords = []
    for pieces, numbered, size in (
        (SOURCE_PIECES, numbers, config.source_vocabulary_size),
        (TARGET_PIECES, written, config.target_vocabulary_size),
    ):
        unknown = described.get("unk_token") or "<unk>"
        if unknown not in numbered:
            raise _unfit(repository, f"a vocabulary lacks the token {unknown!r}")
        specials = SpecialIds(config.pad_id, config.begin_id, config.end_id, numbered[unknown])
        language = MarianSubwords(_read(repository, pieces), numbered, specials)
        if language.size > size:
            raise _unfit(repository, f"a vocabulary has {language.size} pieces, and its table {size} rows")
        subwords.append(language)
    return PairVocabulary(subwords[0], subwords[1])


def _read(repository: str, name: str) -> bytes:
    return hub_file(repository, (name,)).read_bytes()


def _unfit(repository: str, fault: str) -> CheckpointError:
    return CheckpointError(
        f"the files of {repository} do not belong together: {fault}",
        expected=f"weights with their own {NUMBERS}",
        remedy="Download the repository again, all files of one revision",
    )
