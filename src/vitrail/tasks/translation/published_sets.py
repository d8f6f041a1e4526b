"""Published test sets by name, as sacrebleu downloads and keeps them: newstest2014, sacrebleu:iwslt17."""

from __future__ import annotations

import re
from http.client import HTTPException
from pathlib import Path
from tarfile import TarError
from typing import Any

from vitrail.core.errors import DataError, did_you_mean, one_line
from vitrail.data.text.languages import Languages, short_code
from vitrail.tasks.generation import import_sacrebleu
from vitrail.tasks.translation.dataset import RawPairs
from vitrail.tasks.translation.formats.text_files import read_two
from vitrail.tasks.translation.scores import EXTRA

NAME = re.compile(r"newstest20(?P<year>\d\d)|sacrebleu:(?P<name>.+)")
FULL = {"14": "wmt14/full"}  # 3,003 sentences, as in the tables of papers; wmt14 leaves some out
FORMAT_NAME = "test set of sacrebleu"


def read_test_set(name: str, wanted: Languages | None) -> RawPairs:
    """Read a test set in two languages, downloaded once; of several references the first.

    Args:
        name: ``newstest2014`` and the like, or ``sacrebleu:NAME`` with any of sacrebleu's names.

    Raises:
        ConfigError: sacrebleu is not installed.
        DataError: there is no such set, not in these languages, or it cannot be downloaded.
    """
    import_sacrebleu(EXTRA)
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR

    match = NAME.fullmatch(name)
    assert match is not None
    own = match["name"] or FULL.get(match["year"], f"wmt{match['year']}")
    if own not in DATASETS:
        known = sorted(DATASETS)
        raise DataError(
            f"sacrebleu has no test set {own!r}", expected="one of its names", remedy=did_you_mean(own, known)
        )
    dataset: Any = DATASETS[own]
    pairs = dataset.langpairs
    pair = "-".join(map(short_code, wanted or ()))
    if pair not in pairs:
        raise DataError(
            f"{name} was asked for in {pair or 'no languages'}",
            expected=f"two languages among {', '.join(sorted(pairs))}",
            remedy="Give them as in --languages en,de, or choose a model of these languages",
        )
    try:
        files = [dataset.get_source_file(pair), *dataset.get_reference_files(pair)]
    except (OSError, HTTPException, TarError, SystemExit) as error:  # it exits where a checksum is wrong
        raise DataError(
            f"{name} is not on this machine and cannot be downloaded: {one_line(error)}",
            expected=f"a connection to the network, or the set in {SACREBLEU_DIR}",
            remedy=f"Elsewhere, run: sacrebleu -t {own} -l {pair} --echo src; and copy that folder",
        ) from None
    assert wanted is not None
    return RawPairs(wanted, {"test": read_two(Path(files[0]), Path(files[1]))})
