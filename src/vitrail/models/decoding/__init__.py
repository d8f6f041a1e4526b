"""Write sentences token by token: the likeliest token at every step, or the best of several hypotheses.

Any model with ``step`` can be decoded. Steps are taken on tensors; Python sees a hypothesis only when it
ends. Sentences that are done leave the batch, some at a time, and a sentence is written alone as it is in a
batch.
"""

from vitrail.models.decoding.beam import USUAL_PATIENCE, beam_search
from vitrail.models.decoding.greedy import greedy
from vitrail.models.decoding.hypothesis import Hypothesis

__all__ = ["USUAL_PATIENCE", "Hypothesis", "beam_search", "greedy"]
