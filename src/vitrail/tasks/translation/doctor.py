"""Checks of parallel text before training: errors, pitfalls, and facts worth knowing.

Nothing on disk is changed. Every check is a function of the examined data set that yields findings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vitrail.data.findings import Finding, Severity, Verdict, number_of, sort_findings
from vitrail.data.text.scripts import Characters
from vitrail.tasks.translation.dataset import PairDataset
from vitrail.tasks.translation.inspection import MAX_CHARACTERS, MAX_WORDS, ExaminedPairs
from vitrail.tasks.translation.text_checks import find_encoding_damage, find_markup, find_other_scripts

FEW_PAIRS = 10_000  # a Transformer from random weights learns little grammar from fewer
MAX_UNDECODABLE = 0.5  # a greater fraction means that the whole file has another encoding
MIN_JUDGED = 20  # pairs needed for a typical length ratio
SHORT_TEXT = 10  # characters added to both lengths, to damp the ratio of short sentences
RATIO_DEVIATIONS = 8.0  # robust standard deviations from the typical ratio
MIN_RATIO = 2.5  # times the typical ratio, however narrow it is
UNRELATED = 0.2  # length correlation below which the sides are hardly translations
MIN_CORRELATED = 200  # pairs, so that unrelated lengths rarely correlate by chance
MANY_COPIES = 0.01  # of all pairs; copies hurt more than other noise (Khayrallah and Koehn 2018)


def check_pairs(dataset: PairDataset) -> Verdict:
    """Examine every pair of every split.

    Returns:
        : Findings, errors first, and the pairs to leave out.

    >>> from vitrail.tasks.translation.dataset import PairSplit
    >>> train = PairSplit(["a cat", "a dog"], ["eine Katze", ""], ["train.en:1", "train.en:2"])
    >>> parts = {"train": train, "validation": train.take([]), "test": train.take([])}
    >>> pets = PairDataset(source="pets", format="two text files", languages=("en", "de"), **parts)
    >>> verdict = check_pairs(pets)
    >>> verdict.usable, verdict.exclude
    (True, frozenset({'train.en:2'}))
    """
    examined = ExaminedPairs.of(dataset)
    found = [finding for judge in CHECKS for finding in judge(examined)]
    return Verdict(
        source=dataset.source,
        findings=sort_findings([*found, *dataset.findings]),
        counts=examined.counts,
        exclude=examined.unusable,
    )


def find_too_few(examined: ExaminedPairs) -> Iterator[Finding]:
    """No pairs for training or test, or too few to learn from."""
    given, usable = len(examined.dataset.train), int(examined.is_usable["train"].sum())
    if usable == 0 and (given or not examined.is_usable["test"].any()):
        yield Finding(
            "error", "no-pairs", "there is no usable training pair", "Give sentences with their translations"
        )
    elif usable == 0:
        yield Finding(
            "warning",
            "no-train",
            "there is no training pair: these pairs can be evaluated on, not learned from",
            "To train, give a source with a training split",
        )
    elif usable < FEW_PAIRS:
        yield Finding(
            "warning",
            "few-pairs",
            f"{number_of(usable, 'training pair')}, few to learn a language from",
            "Collect more, or start from a trained model",
            count=usable,
        )
    if given and not examined.is_usable["test"].any():
        yield Finding("warning", "no-test", "there is no usable test pair", "Give more pairs")


def find_empty_sides(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs with an empty side."""
    both = "both sides"
    first, second = examined.dataset.languages
    items = []
    for name, split in examined.dataset.splits.items():
        source, target = examined.faults[name].empty
        for index in np.flatnonzero(source | target):
            side = both if source[index] and target[index] else first if source[index] else second
            items.append(f"{split.names[index]} ({side})")
    if items:
        yield Finding(
            "error" if len(items) == examined.num_pairs else "warning",
            "empty-side",
            f"{number_of(len(items), 'pair')} of {examined.num_pairs} with an empty side",
            "They are left out; write the missing sentences, or remove the lines on both sides",
            tuple(items),
        )


def find_undecodable(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sentences with bytes that are not UTF-8, or with the replacement character."""
    items: list[str] = []
    number = 0
    for name, faults in examined.faults.items():
        number += int(faults.undecodable.any(axis=0).sum())
        sides = (side for side in examined.sides if side.split == name)
        for side, is_faulty in zip(sides, faults.undecodable, strict=True):
            items += side.items(is_faulty)
    if items:
        yield Finding(
            "error" if number > MAX_UNDECODABLE * examined.num_pairs else "warning",
            "undecodable",
            f"{number_of(number, 'pair')} of {examined.num_pairs} with bytes that are not UTF-8",
            "They are left out; convert the file (iconv -f LATIN1 -t UTF-8), or mend these lines",
            tuple(items),
        )


def find_too_long(examined: ExaminedPairs) -> Iterator[Finding]:
    """Sides too long for a sentence."""
    items: list[str] = []
    for name, faults in examined.faults.items():
        sides = (side for side in examined.sides if side.split == name)
        for side, is_faulty in zip(sides, faults.too_long, strict=True):
            words = side.characters.words
            items += [
                f"{side.names[index]} ({side.language}, {words[index]} words)"
                for index in np.flatnonzero(is_faulty).tolist()
            ]
    if items:
        yield Finding(
            "warning",
            "too-long",
            f"{number_of(len(items), 'text')} of more than {MAX_WORDS} words or {MAX_CHARACTERS} characters",
            "Their pairs are left out; write one sentence on each line",
            tuple(items),
        )


def find_odd_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs with an unusual length ratio."""
    logs = {name: _log_lengths(sides) for name, sides in examined.characters.items()}
    ratios = {name: target - source for name, (source, target) in logs.items()}
    usable = np.concatenate([ratios[name][mask] for name, mask in examined.is_usable.items()])
    if len(usable) < MIN_JUDGED:
        return
    usual = float(np.median(usable))
    deviation = 1.4826 * float(np.median(np.abs(usable - usual)))  # of a normal distribution
    bound = max(RATIO_DEVIATIONS * deviation, float(np.log(MIN_RATIO)))
    items = []
    for name, split in examined.dataset.splits.items():
        source, target = (side.lengths for side in examined.characters[name])
        is_odd = (np.abs(ratios[name] - usual) > bound) & examined.is_usable[name]
        items += [
            f"{split.names[index]} ({source[index]} : {target[index]} characters)"
            for index in np.flatnonzero(is_odd)
        ]
    if items:
        yield Finding(
            "warning",
            "length-ratio",
            f"{number_of(len(items), 'pair')} of lengths over {np.exp(bound):.1f} times off the usual ratio",
            "See whether these are translations of each other; remove those that are not",
            tuple(items),
        )


def find_unrelated_lengths(examined: ExaminedPairs) -> Iterator[Finding]:
    """Lengths of both sides are uncorrelated: they do not belong together."""
    mask = examined.is_usable["train"]
    source, target = (side[mask] for side in _log_lengths(examined.characters["train"]))
    if len(source) < MIN_CORRELATED or not source.std() or not target.std():
        return
    correlation = float(np.corrcoef(source, target)[0, 1])
    if correlation < UNRELATED:
        yield Finding(
            "warning",
            "unrelated-lengths",
            f"the lengths of both sides have nothing to do with each other (correlation {correlation:.2f})",
            "See whether line by line they are translations, or one side is moved or shuffled",
            count=len(source),
        )


def find_copies(examined: ExaminedPairs) -> Iterator[Finding]:
    """Pairs whose target repeats the source."""
    items = []
    for name, split, indices in examined.rows():
        has_letters = examined.characters[name][0].letters.sum(axis=1) > 0
        items += [
            split.names[index]
            for index in indices
            if has_letters[index] and split.sources[index].strip() == split.targets[index].strip()
        ]
    if items:
        severity: Severity = "warning" if len(items) >= MANY_COPIES * examined.num_pairs else "info"
        yield Finding(
            severity,
            "copies",
            f"{number_of(len(items), 'pair')} of {examined.num_pairs} with a target that repeats the source",
            "Translate them or remove them, unless they are names; a model learns to copy from few",
            tuple(items),
        )


def find_duplicates(examined: ExaminedPairs) -> Iterator[Finding]:
    """Test pairs that are in train, and pairs repeated in train."""
    first_by_pair: dict[tuple[str, str], str] = {}
    first_by_source: dict[str, str] = {}
    repeated: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, split, indices in examined.rows():
        leaked, known = [], []
        for index in indices:
            source, target, pair_name = (
                split.sources[index].strip(),
                split.targets[index].strip(),
                split.names[index],
            )
            if name == "train":
                first = first_by_pair.setdefault((source, target), pair_name)
                first_by_source.setdefault(source, pair_name)
                if first is not pair_name:
                    repeated[source, target].append(pair_name)
            elif (source, target) in first_by_pair:
                leaked.append(f"{pair_name} = {first_by_pair[source, target]}")
            elif source in first_by_source:
                known.append(f"{pair_name} = {first_by_source[source]}")
        yield from _report_leaks(name, leaked, known)
    if repeated:
        yield Finding(
            "info",
            "repeated-in-train",
            f"{number_of(len(repeated), 'pair')} more than once among the training pairs",
            "Remove the copies, unless the repetition is meant",
            tuple(" = ".join((first_by_pair[pair], *names)) for pair, names in repeated.items()),
        )


def _report_leaks(split: str, leaked: Sequence[str], known: Sequence[str]) -> Iterator[Finding]:
    if leaked:
        yield Finding(
            "warning",
            f"{split}-in-train",
            f"{number_of(len(leaked), f'{split} pair')} with the same source and target as a training pair",
            "Remove the copies from one of the two; the score is too good otherwise",
            tuple(leaked),
        )
    if known:
        yield Finding(
            "info",
            f"{split}-source-in-train",
            f"{number_of(len(known), f'{split} sentence')} that train has too, with another translation",
            "Nothing, if they are common phrases",
            tuple(known),
        )


CHECKS: tuple[Callable[[ExaminedPairs], Iterator[Finding]], ...] = (
    find_too_few,
    find_empty_sides,
    find_undecodable,
    find_too_long,
    find_encoding_damage,
    find_other_scripts,
    find_odd_lengths,
    find_unrelated_lengths,
    find_copies,
    find_markup,
    find_duplicates,
)
"""In the order of a verdict."""


def _log_lengths(sides: tuple[Characters, Characters]) -> tuple[np.ndarray, np.ndarray]:
    source, target = (np.log(side.lengths + SHORT_TEXT) for side in sides)
    return source, target
