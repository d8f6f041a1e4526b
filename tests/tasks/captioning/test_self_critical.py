"""Self-critical training: its gradient is that of the expected reward."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from making.scripted_writers import ScriptState
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.text.words import WordVocabulary
from vitrail.data.text_preprocessing import CaptionPreprocessing
from vitrail.models.contract import CaptionOutput
from vitrail.tasks.captioning.objective import CaptionBatch
from vitrail.tasks.captioning.samples import CaptionSample
from vitrail.tasks.captioning.scores import cider_scores, sentence_bleu
from vitrail.tasks.captioning.self_critical import NUM_DRAWN, SelfCriticalObjective
from vitrail.tasks.captioning.settings import CaptionSettings

WORDS = WordVocabulary(["a", "dog"])
END, A, DOG = WORDS.end_id, 4, 5
CAPTIONS = (("a dog", "dog"), ("a a",))  # of two images
PREPROCESSING = CaptionPreprocessing(images=Preprocessing(image_size=(2, 3)))


class Policy(nn.Module):
    """Write tokens by a table of logits for each step, whatever the image; with dropout, if it is on."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        table = torch.randn(steps, WORDS.size, generator=torch.Generator().manual_seed(3))
        self.table = nn.Parameter(table)
        self.dropout = nn.Dropout(0.5)

    def start(self, features: Tensor) -> ScriptState:
        return ScriptState(torch.zeros(len(features), len(self.table), dtype=torch.long))

    def step(self, tokens: Tensor, state: ScriptState) -> tuple[Tensor, ScriptState]:
        logits = self.dropout(self.table[state.num_written]).expand(state.num_rows, -1)
        return logits, ScriptState(state.rows, state.num_written + 1, state.rows_per_sample)

    def forward(self, features: Tensor, captions: Tensor) -> CaptionOutput:
        logits = self.dropout(self.table[: captions.shape[2]])
        return CaptionOutput(logits.expand(*captions.shape, -1), None)


def objective(settings: CaptionSettings) -> SelfCriticalObjective:
    return SelfCriticalObjective(WORDS, PREPROCESSING, settings, augment=None, references=CAPTIONS)


def batch_of(task: SelfCriticalObjective, copies: int) -> CaptionBatch:
    features = torch.zeros(3, 2).half()
    texts = CAPTIONS[0]
    return task.collate([CaptionSample(features, [[A]], texts, index) for index in range(copies)], None)


def test_the_gradient_is_that_of_the_expected_reward() -> None:
    settings = CaptionSettings(cider_reward=0.5, bleu_reward=2.0, max_length=2)
    task, policy, copies = objective(settings), Policy(2), 400
    # Every sequence of two tokens out of the three that may be written; the first end is the last token.
    log_p = policy.table[:, [END, A, DOG]].log_softmax(dim=1)
    expected, names = torch.zeros(()), {A: "a", DOG: "dog", END: "</s>"}
    for pair in product((END, A, DOG), repeat=2):
        words = [names[token] for token in (pair[: pair.index(END) + 1] if END in pair else pair)]
        references, others = ([[*text.split(), "</s>"] for text in texts] for texts in CAPTIONS)
        cider, _ = cider_scores([words, ["a"]], [references, others])
        reward = 0.5 * cider + 2.0 * sentence_bleu(words, references)
        chance = sum(log_p[step, (END, A, DOG).index(token)] for step, token in enumerate(pair))
        expected = expected + torch.as_tensor(chance).exp() * reward
    (exact,) = torch.autograd.grad(-expected, policy.table)
    torch.manual_seed(0)
    policy.train()
    loss = task.loss(policy, batch_of(task, copies))
    assert policy.training
    assert float(loss.count) == NUM_DRAWN * copies
    (drawn,) = torch.autograd.grad(loss.total / loss.count, policy.table)
    # With rewards of at most 7 the standard error of a mean of 2,000 is below 0.05.
    torch.testing.assert_close(drawn, exact, atol=0.1, rtol=0)
    assert float(exact.abs().max()) > 0.3
    assert float(loss.parts["reward"] / loss.count) == pytest.approx(expected.item(), abs=0.1)
