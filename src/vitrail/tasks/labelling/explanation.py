"""Explain labels of texts: attention between subwords, and what each label loses without each word."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.data.text.subword_sampling import SPACE
from vitrail.data.text.word_groups import END
from vitrail.interpret import AttentionMap, record_any
from vitrail.interpret.viewer.explanation import Explanation
from vitrail.interpret.viewer.maps import LEAST_LOST, OCCLUSION, Maps, Tokens
from vitrail.tasks.labelling.predictor import Labeller
from vitrail.tasks.labelling.samples import EncodedText
from vitrail.tasks.predicting import chunks_of

TOP = 5
OCCLUSION_NOTE = "Share of its probability that a label loses without a word (Li et al. 2016, erasure)."


def explain_text(labeller: Labeller, text: str) -> Explanation:
    """Label a text, record the attention of all layers, and hide its words one by one.

    Raises:
        DataError: there is no word, or there are too many.
    """
    encoded = labeller.encode(text)
    with record_any(labeller.model) as recorded:
        (found,) = labeller.label([text], top=TOP)
    layers = tuple(each._replace(weights=each.weights.cpu()) for each in recorded)
    words = words_of(labeller, text, encoded)
    starts = {places.start for _, places in words}
    pieces = [piece.replace(SPACE, "") or "_" for piece in labeller.vocabulary.pieces(encoded.row)]
    marked = (piece if at in starts else f"##{piece}" for at, piece in enumerate(pieces))  # as in BERT
    shown = Tokens(("(begin)", *[*marked][1:-1], END))
    lost = AttentionMap(OCCLUSION, _occlude(labeller, encoded, words)[None, None], "cross", None, 0)
    is_spread = bool((lost.weights < LEAST_LOST).all())
    names, title = found.labels, f"{found.labels[0]} {found.parts[0].probability:.1%}"
    if found.is_of_words:
        names = tuple(f"{part.source}/{part.label}" for part in found.parts)
        title = " ".join(names)
    maps = [
        Maps(name="attention", title="text to itself", layers=layers, queries=shown, keys=shown),
        Maps(
            name=OCCLUSION,
            title="label to words",
            layers=(lost,),
            queries=Tokens(names),
            keys=Tokens(tuple(word for word, _ in words)),
            note=OCCLUSION_NOTE + " No word matters alone here." * is_spread,
        ),
    ]
    scores = () if found.is_of_words else found.parts[0].scores
    return Explanation(
        name=text, title=title, scores=scores, maps=tuple(each for each in maps if each.layers), answer=found
    )


def words_of(labeller: Labeller, text: str, encoded: EncodedText) -> list[tuple[str, range]]:
    """Return the words of a text, with the positions of their subwords in the row."""
    words = labeller.parts(text) if labeller.is_of_words else text.split()
    found: list[tuple[str, range]] = []
    first = 1
    for word, pieces in zip(
        words, labeller.vocabulary.encode(labeller.preprocessing.prepare(words)), strict=True
    ):
        # a tagged word without subwords is an unknown one; a long text is cut off
        end = min(first + max(len(pieces), labeller.is_of_words), len(encoded.row) - 1)
        if end > first:
            found.append((word, range(first, end)))
        first = end
    return found


def _occlude(
    labeller: Labeller, encoded: EncodedText, words: list[tuple[str, range]]
) -> Float[Tensor, "labels words"]:
    """Return how much of each label's probability is lost when a word becomes unknown, 0..1."""
    unknown = labeller.vocabulary.unknown_id
    rows = [encoded.row]
    rows += [[unknown if at in places else n for at, n in enumerate(encoded.row)] for _, places in words]
    found = torch.cat([labeller.probabilities(part) for part in chunks_of(rows, labeller.batch_size)])
    if labeller.is_of_words:
        found = found[:, encoded.starts]
    shares = found.reshape(len(rows), -1, found.shape[-1])  # rows labels classes
    chosen = shares[0].argmax(dim=-1).expand(len(rows), -1)
    of_chosen = shares.gather(2, chosen[..., None])[..., 0]  # rows labels
    return (1 - of_chosen[1:] / of_chosen[0]).clamp(min=0).T
