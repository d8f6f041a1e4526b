"""Open parallel text: recognise its format, read it, carve out missing splits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from vitrail.core.errors import DataError
from vitrail.core.files import expand
from vitrail.data.formats import HUB_PREFIX, format_by_suffix, format_of, is_name_on_hub, layouts, locate
from vitrail.data.splits import divide
from vitrail.data.text.languages import Languages
from vitrail.tasks.translation import published_sets
from vitrail.tasks.translation.dataset import PairDataset, RawPairs
from vitrail.tasks.translation.formats import PAIR_FORMATS
from vitrail.tasks.translation.formats.tables import NAME, is_of_pairs, read_by_name
from vitrail.tasks.translation.formats.text_files import MEMORY, has_one_side
from vitrail.tasks.translation.settings import PairDataSettings

SURE, SURE_BY_NAME, LIKELY = 4, 5, 1  # captions may look like text with tabs and then win, except by name
MAX_TEST = 3000  # pairs held out as a test split; as large as the WMT shared tasks' sets


def open_pairs(source: str | os.PathLike[str], *, settings: PairDataSettings | None = None) -> PairDataset:
    """Open parallel text.

    A source with nothing but a test split (``test.tsv``, or the path ``corpus/test``) yields an empty
    training split.

    Args:
        source: a folder, a file, the common prefix of two files (``corpus/train`` of ``corpus/train.en`` and
            ``corpus/train.de``), a Hugging Face name (``hf:owner/name``), or a test set of sacrebleu
            (``newstest2014``, ``sacrebleu:NAME``).
        settings: languages, and fractions and seed of missing splits; ``source`` and subword settings are not
            read here.

    Raises:
        DataError: there is nothing of that name, its format is unknown, or it cannot be used.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = "en\\tde\\n" + "".join(f"{i} cats\\t{i} Katzen\\n" for i in range(20))
    ...     _ = Path(folder, "cats.tsv").write_text(rows)
    ...     dataset = open_pairs(f"{folder}/cats.tsv")
    >>> dataset.languages, len(dataset.train), len(dataset.validation), len(dataset.test)
    (('en', 'de'), 15, 1, 4)
    """
    text = os.fspath(source)
    if settings is None:
        settings = PairDataSettings(source=text)
    wanted = settings.languages
    raw, format_name = locate(
        text,
        read=lambda path: _read_path(path, wanted),
        read_by_name=lambda name: read_by_name(name, wanted),
        is_name=NAME,
        missing=(
            "parallel text",
            "an existing folder or file, what the names of two files have in common (corpus/train of "
            "corpus/train.en and corpus/train.de), a Hugging Face name (hf:owner/name), or a test set "
            "(newstest2014, sacrebleu:NAME)",
        ),
    )
    divided = divide(
        raw.splits,
        raw.findings,
        settings,
        hold_out=lambda train, fraction, seed, max_held: split_by_text(
            train.sources, fraction, seed=seed, max_held=len(train) if max_held is None else max_held
        ),
        copies_together=False,  # the texts decide
        things="pairs",
        max_test=MAX_TEST,
    )
    return PairDataset(source=text, format=format_name, languages=raw.languages, **divided)


def recognises(source: str) -> int:
    """Return how surely a source is parallel text, by a cheap look; 0 if not."""
    if source.startswith(HUB_PREFIX):
        return SURE_BY_NAME * is_of_pairs(source.removeprefix(HUB_PREFIX))
    path = expand(source)
    if source.strip() and format_of(PAIR_FORMATS, path, None) is not None:
        return SURE
    if source.strip() and has_one_side(path):
        return LIKELY
    if published_sets.NAME.fullmatch(source) and not path.exists():
        return SURE_BY_NAME
    return SURE_BY_NAME * (is_name_on_hub(source, path) and is_of_pairs(source))


def _read_path(path: Path, wanted: Languages | None) -> tuple[RawPairs, str] | None:
    found = format_of(PAIR_FORMATS, path, wanted) or format_by_suffix(PAIR_FORMATS, path, ".gz")
    if found is not None:
        return found.read(path, wanted), found.name
    if not path.exists():
        name = os.fspath(path)
        is_test_set = published_sets.NAME.fullmatch(name) is not None
        return (
            (published_sets.read_test_set(name, wanted), published_sets.FORMAT_NAME) if is_test_set else None
        )
    raise DataError(
        f"{path} holds no parallel text in a known format",
        expected=layouts(PAIR_FORMATS),
        remedy=_remedy(path),
    )


def _remedy(path: Path) -> str:
    if path.is_file() and not path.stat().st_size:
        return "The file is empty: write or download it again"
    if path.suffix.lower() == MEMORY:
        return f"Export the translation memory as two columns, {path.stem}.tsv or {path.stem}.csv"
    if path.is_file() and path.suffix:
        return f"If it is one side of two, put the other beside it: {path.stem}.en and {path.stem}.de"
    return "Name the two files of a text by their languages, such as train.en and train.de"


def split_by_text(
    texts: Sequence[str], fraction: float, *, seed: int, max_held: int
) -> tuple[Int64[np.ndarray, " kept"], Int64[np.ndarray, " held"]]:
    """Hold out a random fraction of sentences, equal ones always on the same side.

    Args:
        texts: compared without surrounding spaces.
        fraction: to hold out, 0..1; of two distinct sentences at least one is held out and one stays.
        max_held: maximum number held out.

    Returns:
        kept: ascending indices.
        held: ascending indices.
    """
    wanted = min(round(fraction * len(texts)), max_held)
    numbers: dict[str, int] = {}
    group_of = np.fromiter(
        (numbers.setdefault(text.strip(), len(numbers)) for text in texts), dtype=np.int64, count=len(texts)
    )
    if fraction <= 0 or max_held < 1 or len(numbers) < 2:
        return np.arange(len(texts)), np.arange(0)
    sizes = np.bincount(group_of)
    is_held = np.zeros(len(sizes), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(sizes))
    room = max(wanted, 1)
    for group in order.tolist():
        if sizes[group] <= room:
            is_held[group] = True
            room -= int(sizes[group])
            if room == 0:
                break
    if is_held.all():
        is_held[order[-1]] = False
    held = is_held[group_of]
    return np.flatnonzero(~held), np.flatnonzero(held)
