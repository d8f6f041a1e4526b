"""What tasks that write text share: texts with their log loss, sacreBLEU, signatures, report tiles."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.core.config import Config
from vitrail.core.errors import ConfigError, import_optional
from vitrail.models.decoding import Hypothesis, PenaltyForm

NUM_RESAMPLES = 1000  # Koehn 2004, Statistical Significance Tests for Machine Translation, section 3
MAX_RESAMPLED = 10_000  # texts; sacrebleu holds all resamples in memory, 0.7 GB for so many
LEAST_BLEU = 1.0  # of 100, below which hardly four words in a row are right
MOST_ALIKE = 0.2  # share of texts that may be the same, or cut off
LARGEST_EXPONENT = 700.0  # the largest exponent of a finite float64
NEEDED = "these scores need"
RESAMPLING = ("bs:", "seed:")  # of the intervals alone
NUMBERS = {"num_tokens": torch.int64, "nll": torch.float64, "is_finished": torch.bool}


class WrittenTexts:
    """The texts written for samples, with the log loss of their references, as evaluators collect them.

    Samples are kept in source order and without duplicates, so that scores are independent of batch size and
    number of processes.
    """

    def __init__(self, *names: str) -> None:
        self.names = (*names, *NUMBERS)
        self._rows: dict[int, tuple[Any, ...]] = {}

    def add(
        self,
        indices: Tensor,
        *texts: Sequence[str],
        num_tokens: Tensor,
        nll: Tensor,
        hypotheses: Sequence[Hypothesis],
    ) -> None:
        """Add a batch.

        Args:
            num_tokens: of the references, including their ends.
            nll: log loss of the references, in nats, summed over their tokens.
            hypotheses: what was written; those cut off at the maximum length are counted.
        """
        is_finished = [hypothesis.is_finished for hypothesis in hypotheses]
        self._add(indices.tolist(), *texts, num_tokens.tolist(), nll.tolist(), is_finished)

    @property
    def indices(self) -> list[int]:
        return sorted(self._rows)

    def __getitem__(self, name: str) -> list[Any]:
        column = self.names.index(name)
        return [self._rows[index][column] for index in self.indices]

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors, for other processes."""
        texts = json.dumps([self[name] for name in self.names if name not in NUMBERS]).encode()
        return {
            "indices": torch.tensor(self.indices, dtype=torch.int64),
            "texts": torch.frombuffer(bytearray(texts), dtype=torch.uint8),
            **{name: torch.tensor(self[name], dtype=dtype) for name, dtype in NUMBERS.items()},
        }

    def absorb(self, state: Mapping[str, Tensor]) -> None:
        texts = json.loads(state["texts"].numpy().tobytes())
        self._add(state["indices"].tolist(), *texts, *(state[name].tolist() for name in NUMBERS))

    def likelihood(self) -> dict[str, float]:
        """Return the mean log loss per token of the references, and the perplexity."""
        nll = math.fsum(self["nll"]) / sum(self["num_tokens"])
        return {"nll": nll, "perplexity": math.exp(min(nll, LARGEST_EXPONENT))}

    def cut_off(self) -> dict[str, float]:
        """Return the share of texts that reached the maximum length."""
        return {"cut_off": self["is_finished"].count(False) / len(self._rows)}

    def _add(self, indices: Sequence[int], *columns: Sequence[Any]) -> None:
        for index, *row in zip(indices, *columns, strict=True):
            self._rows.setdefault(index, tuple(row))


def distinct_texts(
    texts: Sequence[str], hypotheses: Sequence[Hypothesis], num_best: int
) -> list[tuple[str, float]]:
    """Return the best texts with their scores; of equal ones, cut into other subwords, only the best."""
    found: dict[str, float] = {}
    for text, hypothesis in zip(texts, hypotheses, strict=True):
        found.setdefault(text, hypothesis.score)
    return list(found.items())[:num_best]


def nothing_to_show(config: Any, read: str, command: str) -> ConfigError:
    """Return the error for a model without attention to what it reads."""
    return ConfigError(
        f"this model, of the family {config.family}, does not attend to the {read}: all of it becomes "
        "one vector",
        expected="a model with attention",
        remedy=f"Train one with attention; vitrail {command} shows what this one writes",
    )


def sign_search(beam_size: int, length_penalty: float, penalty_form: PenaltyForm, longest: str) -> str:
    """Describe the search for a score's signature.

    >>> sign_search(5, 0.7, "power", "at most 30 tokens")
    'beam 5, length penalty 0.7, at most 30 tokens'
    >>> sign_search(4, 0.6, "gnmt", "at most 30 tokens")
    'beam 4, GNMT length penalty 0.6, at most 30 tokens'
    """
    penalty = "length penalty" if penalty_form == "power" else "GNMT length penalty"
    searched = "greedy" if beam_size == 1 else f"beam {beam_size}, {penalty} {length_penalty:g}"
    return f"{searched}, {longest}"


def sign_scoring(signature: str) -> str:
    """Write sacrebleu's signature of a text score as one entry of an evaluation's signature.

    >>> sign_scoring("nrefs:1|bs:1000|seed:12345|case:mixed|tok:13a|version:2.6.0")
    'nrefs 1; case mixed; tok 13a; sacrebleu 2.6.0'
    """
    parts = [part for part in signature.split("|") if not part.startswith(RESAMPLING)]
    return "; ".join(part.replace("version:", "sacrebleu:", 1).replace(":", " ", 1) for part in parts)


def import_sacrebleu(extra: str) -> Any:
    """Return sacrebleu's metrics; ``ConfigError`` names the extra of vitrail that installs it."""
    return import_optional("sacrebleu.metrics", NEEDED, "sacrebleu", extra)


class CorpusScore(Config):
    """One corpus-level score."""

    score: float
    """From 0 to 100, higher is better."""
    lower: float | None
    """Ends of the 95 % interval, by bootstrap over texts; null if not computed."""
    upper: float | None
    signature: str
    """What must agree for scores to be comparable, in the manner of sacreBLEU."""


def score_corpus(
    metric: Any,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str | None]],
    num_resamples: int,
    **signed: str,
) -> tuple[Any, CorpusScore]:
    """Score texts with a metric of sacrebleu; return what it returns, and the score as it is stored.

    Args:
        references: the first reference of every text, then the second, ...
        num_resamples: of the bootstrap; 0 computes no interval, nor is there one above ``MAX_RESAMPLED``
            texts.
        signed: further parts of the signature.
    """
    streams = [list(stream) for stream in references]
    resamples = num_resamples if len(hypotheses) <= MAX_RESAMPLED else 0
    try:
        found = metric.corpus_score(list(hypotheses), streams, n_bootstrap=resamples or 1)
    except TypeError:  # sacrebleu mixes float and float32 where some resamples score 0: no interval
        resamples = 0
        found = metric.corpus_score(list(hypotheses), streams)
    signature = metric.get_signature()
    for key, value in signed.items():
        signature.update(key, value)
    lower = upper = None
    if resamples > 1:
        # The interval is public in the printed forms only, and left out for a score of 0.
        shown = json.loads(found.format(width=6, signature=str(signature), is_json=True))
        centre, half = shown.get("confidence_mean", 0.0), shown.get("confidence_var", 0.0)
        lower, upper = max(0.0, centre - half), min(100.0, centre + half)
    score = CorpusScore(score=percent(found), lower=lower, upper=upper, signature=str(signature))
    return found, score


def percent(found: Any) -> float:
    """Return a sacrebleu score from 0 to 100."""
    return min(found.score, 100.0)  # equal texts have 100.00000000000004


def rank_rows(rows: Sequence[Any], score: str, *, best_first: bool = False) -> list[Any]:
    """Sort the rows of a table by a score, worst first by default, and equal ones by their index."""
    sign = -1 if best_first else 1
    return sorted(rows, key=lambda row: (sign * getattr(row, score), row.index))


def typical_rows(rows: Sequence[Any], score: str, count: int) -> list[Any]:
    """Return the rows whose score is nearest to the median, neither flattering nor unkind."""
    start = max(0, (len(rows) - count) // 2)
    return rank_rows(rows, score)[start : start + count]


def text_problems(
    bleu: float, pairs: Sequence[tuple[str, str]], cut_off: float, *, name: str
) -> tuple[str, ...]:
    """Say what is wrong with written texts: nothing right (of a BLEU of 100), all the same, or endless."""
    problems = []
    if bleu < LEAST_BLEU:
        problems.append(f"BLEU is about 0: hardly any phrase of the {name} is in their references.")
    texts, references = (Counter(column).most_common(1)[0] for column in zip(*pairs, strict=True))
    (text, count), (_, most) = texts, references
    if count > max(MOST_ALIKE * len(pairs), 2 * most):
        problems.append(f"{count:,} of {len(pairs):,} {name} are the same: {text or '(nothing)'!r}.")
    if cut_off > MOST_ALIKE:
        problems.append(f"{cut_off:.0%} of the {name} reach the greatest length without an end.")
    return tuple(problems)


def generation_tiles(
    scores: Mapping[str, float], length_ratio: float, *, token: str, reference: str, texts: str
) -> list[tuple[str, str, str]]:
    """Return the report's tiles of perplexity, length and texts that were cut off."""
    tiles = []
    if "nll" in scores:
        perplexity = scores.get("perplexity", math.exp(min(scores["nll"], LARGEST_EXPONENT)))
        note = f"{scores['nll']:.3f} nats per {token}, lower is better"
        tiles.append((f"{perplexity:.2f}", "perplexity", note))
    tiles.append((f"{length_ratio:.3f}", "length", f"tokens of BLEU written for each in the {reference}"))
    if scores.get("cut_off"):
        tiles.append((f"{scores['cut_off']:.1%}", "cut off", f"{texts} that did not come to an end"))
    return tiles
