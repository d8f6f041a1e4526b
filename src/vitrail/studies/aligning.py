"""What a translator's attention aligns, word by word: error rate against gold alignments, and concentration.

Papers: Och and Ney 2003, A Systematic Comparison of Various Statistical Alignment Models, section 6
(alignment error rate); Ghader and Monz 2017, What Does Attention in Neural Machine Translation Pay Attention
to (concentration by part of speech); Chen et al. 2020, Accurate Word Alignment Induction from Neural Machine
Translation (the rows that read a word, one step after those that write it).
"""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail import __version__
from vitrail.core.errors import ConfigError, DataError
from vitrail.data.text.alignments import GoldAlignment, read_alignments
from vitrail.data.text.lines import read_lines
from vitrail.data.text.subwords import Subwords
from vitrail.data.text.word_groups import GroupedWords, words_of_text
from vitrail.engines.loading import load_any
from vitrail.interpret.viewer.maps import layer_titles, merge_words
from vitrail.tasks.evaluating import trained_experiment
from vitrail.tasks.generation import nothing_to_show
from vitrail.tasks.registry import task_of_model
from vitrail.tasks.translation.dataset import PairSplit
from vitrail.tasks.translation.explanation import attend_forced
from vitrail.tasks.translation.predictor import Translator
from vitrail.train.evaluate import Report

ROWS = ("writing", "reading")


def measure_alignments(
    run: str | Path,
    source: str | Path,
    *,
    alignments: Path | None = None,
    tags: Path | None = None,
    split: str = "test",
) -> Report:
    """Score a translator's attention as word alignment, with the references as forced translations.

    Words are what spaces separate; the attention of their subwords is merged. Each target word is linked to
    the source word with most attention. Entropy is that of a target word's attention over the source words
    and the end, in nats; 0 if all is on one of them.

    Args:
        source: sentence pairs, as for ``vitrail.train``; none is left out.
        alignments: file of gold links, see ``read_alignments``; pairs without are skipped.
        tags: file with the part of speech of every target word, one line per pair.

    Returns:
        : The scores of the best layer's mean over heads: ``aer`` with ``precision`` (of possible links) and
        ``recall`` (of sure ones) if there is gold, and ``entropy``. The table ``maps`` has all layers and
        heads (from 1), for the rows that write a word and those that read it; ``tags`` has the parts of
        speech.

    Raises:
        ConfigError: no file is given, the model does not translate by attention, or there is no such split.
        DataError: a file does not fit the pairs, or a pair does not fit the model.
    """
    if alignments is None and tags is None:
        expected = "gold alignments, or parts of speech"
        raise ConfigError("there is nothing to compare", expected=expected, remedy="Give --alignments FILE")
    loaded, trained = load_any(run), trained_experiment(run)
    translator, task = Translator(loaded), task_of_model(loaded)
    data = task.data_settings(str(source), loaded)
    if trained is not None and trained.data.source == str(source):
        data = trained.data
    dataset = task.open(data)
    if not len(dataset.splits.get(split, ())):
        known = " or ".join(name for name, pairs in dataset.splits.items() if len(pairs))
        raise ConfigError(f"{source} has no split {split!r}", expected=known, remedy="Choose it with --split")
    pairs: PairSplit = dataset.splits[split]
    gold = None if alignments is None else read_alignments(alignments, len(pairs))
    tagged = None if tags is None else _read_tags(tags, pairs)
    maps: list[dict[str, Any]] = []
    rows = range(len(pairs)) if gold is None else list(gold)
    measured = [_measure(translator, pairs, row, None if gold is None else gold[row], maps) for row in rows]
    numbers = torch.cat(measured, dim=-1)
    num_sure = sum(len(gold[row].sure) for row in rows) if gold else 0
    for each, of_map in zip(maps, numbers.unbind(dim=1), strict=True):
        each.update(_scores(of_map, num_sure, has_gold=gold is not None))
    order = [index for index, each in enumerate(maps) if each["head"] is None]
    best = min(order, key=lambda index: maps[index]["entropy" if gold is None else "aer"])
    words = [] if tagged is None else [tag for row in rows for tag in tagged[row]]
    tables = {"maps": maps, "tags": []}
    for tag, count in Counter(words).most_common():
        of_tag = numbers[:, best, torch.tensor([word == tag for word in words])]
        scores = _scores(of_tag, 0, has_gold=gold is not None)
        kept = {name: scores[name] for name in ("precision", "entropy") if name in scores}
        tables["tags"].append({"tag": tag, "words": count} | kept)
    signature = {
        **task.sign(dataset, split, translator.preprocessing),
        **{name: file.name for name, file in (("alignments", alignments), ("tags", tags)) if file},
        "attention": f"{maps[best]['layer']}, mean over heads, rows {maps[best]['rows']} a word",
        "samples": str(len(rows)),
        "vitrail": __version__,
    }
    scores = {name: value for name, value in maps[best].items() if isinstance(value, float)}
    return Report(signature=signature, scores=scores, tables=tables)


def _measure(
    translator: Translator, pairs: PairSplit, row: int, gold: GoldAlignment | None, maps: list[dict[str, Any]]
) -> Float[Tensor, "3 maps words"]:
    """Return entropy of each target word, and whether its link is possible and sure; name new maps."""
    texts = translator.preprocessing.prepare([pairs.sources[row], pairs.targets[row]])
    read, asked = (
        _words(subwords, text, pairs.names[row], translator.max_source_length)
        for subwords, text in zip(translator.vocabulary, texts, strict=True)
    )
    recorded = attend_forced(translator, read.tokens, asked.tokens)
    layers = [each for each in recorded if each.kind == "cross"]
    if not layers:
        raise nothing_to_show(translator.config, "sentence", "translate")
    words = asked.steps[:-1]  # without the end
    later = [[step + 1 for step in steps] for steps in words]
    weights = []
    for steps in (words, later):
        for each in layers:
            heads = merge_words(each, steps, read.steps).weights[0].float().cpu()
            weights += [heads.mean(dim=0), *(heads if len(heads) > 1 else ())]
    if not maps:
        for rows in ROWS:
            for title, each in zip(layer_titles(layers), layers, strict=True):
                count = each.weights.shape[1]
                numbers = [None, *range(1, count + 1)] if count > 1 else [None]
                maps += [{"layer": title, "head": head, "rows": rows} for head in numbers]
    stacked = torch.stack(weights)
    found = torch.zeros(2, *stacked.shape[:2])
    if gold is not None:
        gold.check(len(read.words) - 1, len(words), pairs.names[row])
        is_link = torch.zeros(2, len(words), len(read.words) - 1)
        for kind, links in enumerate((gold.possible, gold.sure)):
            for source, target in links:
                is_link[kind, target, source] = 1
        found = is_link[:, torch.arange(len(words)), stacked[..., :-1].argmax(dim=-1)]
    return torch.cat([torch.special.entr(stacked).sum(dim=-1)[None], found])


def _scores(numbers: Float[Tensor, "3 words"], num_sure: int, *, has_gold: bool) -> dict[str, float]:
    """Return the mean entropy, and the scores of one link per word."""
    entropy, possible, sure = numbers[0].mean().item(), *numbers[1:].sum(dim=-1).tolist()
    if not has_gold:
        return {"entropy": entropy}
    count = numbers.shape[-1]
    return {
        "aer": 1 - (sure + possible) / (count + num_sure),
        "precision": possible / count,
        "recall": sure / num_sure if num_sure else 0.0,
        "entropy": entropy,
    }


def _words(subwords: Subwords, text: str, name: str, limit: int) -> GroupedWords:
    """Return the words of one side, each with its subwords."""
    found = words_of_text(subwords, text)
    if len(found.words) - 1 != len(text.split()) or not 0 < len(found.tokens) <= limit:
        raise DataError(
            f"{text[:60]!r} of pair {name} has {len(text.split())} words and {len(found.tokens)} subwords",
            expected=f"words that the vocabulary can write, with 1 to {limit} subwords together",
            remedy="Leave the pair out, here and in the other files",
        )
    return found


def _read_tags(path: Path, pairs: PairSplit) -> list[list[str]]:
    tags = [line.split() for line in read_lines(path)]
    for row, (given, target) in enumerate(zip_longest(tags, pairs.targets)):
        if given is None or target is None or len(given) != len(target.split()):
            words = "no sentence" if target is None else f"a sentence of {len(target.split())} words"
            raise DataError(
                f"line {row + 1} of {path} has {len(given or ())} tags for {words}",
                expected="a line for each pair, with one tag for each word of the target sentence",
                remedy="Tag the sentences of this split as they are, with their spaces",
            )
    return tags
