"""The decoder of Show, Attend and Tell against the equations, written out with loops."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.interpret import record_attention
from vitrail.nn.glimpse_decoder import GlimpseDecoder
from vitrail.nn.recurrent_decoder import RecurrentStack

DIM, HIDDEN, ATTENTION, CELLS = 5, 6, 4, 7


def decoder() -> GlimpseDecoder:
    stack = RecurrentStack(DIM, HIDDEN, depth=1, cell="lstm", dropout=0.0)
    made = GlimpseDecoder(stack, dim=DIM, hidden_dim=HIDDEN, attention_dim=ATTENTION)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


def by_the_equations(made: GlimpseDecoder, x: Tensor, cells: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each word of one caption is told from, and the weights of each step."""
    weights, attention = made.stack.cells[0].weights, made.attention
    hidden, memory = (part[0] for part in made.stack.begin(cells.mean(dim=0)[None])[0])
    told, shares = [], []
    for word in x:
        scores = []
        for cell in cells:
            mixed = attention.query_projection.weight @ hidden + attention.key_projection.weight @ cell
            scores.append(attention.score.weight[0] @ mixed.tanh())
        alpha = torch.stack(scores).softmax(dim=0)  # equation 5
        beta = (made.gate.weight[0] @ hidden + made.gate.bias[0]).sigmoid()  # section 4.2.1
        seen = beta * sum(share * cell for share, cell in zip(alpha, cells, strict=True))  # equation 13
        gates = weights.input_weight @ word + made.feed.weight @ seen + weights.hidden_weight @ hidden
        gates = gates + weights.input_bias + weights.hidden_bias
        i, f, g, o = gates.chunk(4)  # equations 1 to 3
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * memory.tanh()
        told.append(word + made.of_state.weight @ hidden + made.of_glimpse.weight @ seen)  # equation 7
        shares.append(alpha)
    return told, shares


def test_it_does_what_the_equations_say() -> None:
    made, x, cells = decoder(), torch.randn(2, 3, 4, DIM), torch.randn(2, CELLS, HIDDEN)
    written = made(x, made.start(cells).expand(3))
    for image in range(2):
        for caption in range(3):
            told, shares = by_the_equations(made, x[image, caption], cells[image])
            torch.testing.assert_close(written.vectors[image, caption], torch.stack(told))
            torch.testing.assert_close(written.weights[image, caption], torch.stack(shares))


def test_what_is_recorded_is_what_was_read() -> None:
    made, x, cells = decoder(), torch.randn(2, 3, 4, DIM), torch.randn(2, CELLS, HIDDEN)
    with record_attention(made) as maps:
        written = made(x, made.start(cells).expand(3), grid=(1, CELLS))
    (recorded,) = maps
    assert (recorded.kind, recorded.grid, recorded.num_prefix) == ("cross", (1, CELLS), 0)
    torch.testing.assert_close(recorded.weights[:, 0], written.weights.flatten(0, 1))
    with record_attention(made) as steps:
        vectors, _ = made.step(x[:, 0, 0], made.start(cells))
    torch.testing.assert_close(steps[0].weights[:, 0, 0], written.weights[:, 0, 0])
    torch.testing.assert_close(vectors, written.vectors[:, 0, 0])
