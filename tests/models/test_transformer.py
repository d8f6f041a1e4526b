from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from making.small_models import shrink
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import record_attention
from vitrail.models import MODELS, build
from vitrail.models.transformer import Transformer, TransformerConfig
from vitrail.nn.masks import causal_mask
from vitrail.nn.sinusoidal import sinusoidal_positions

SMALL = shrink("transformer_base")
LENGTHS = torch.tensor([4, 7, 2])


def build_small(**changes: object) -> Transformer:
    return SMALL.with_changes(changes).build().eval()


def make_sentences() -> tuple[Tensor, Tensor, Tensor]:
    """Return three sentences with padding behind them, their lengths, and what is written of them."""
    return torch.randint(3, 17, (3, 7)), LENGTHS, torch.randint(3, 17, (3, 5))


def to_torch(model: Transformer) -> nn.Transformer:
    """Return torch's Transformer, which has no tables, with the weights of a model."""
    config = model.config
    is_pre = config.norm == "pre"
    theirs = nn.Transformer(
        config.width,
        config.num_heads,
        config.encoder_depth,
        config.decoder_depth,
        config.hidden_dim,
        dropout=0.0,
        activation=config.activation,
        batch_first=True,
        norm_first=is_pre,
    ).eval()
    if is_pre:
        pairs = [(theirs.encoder.norm, model.encoder_norm), (theirs.decoder.norm, model.decoder_norm)]
    else:
        theirs.encoder.norm = theirs.decoder.norm = None
        pairs = []
    tensors = []
    for their_block, block in zip(theirs.encoder.layers, model.encoder, strict=True):
        pairs += [
            (their_block.self_attn.out_proj, block.mixer.projection),
            (their_block.norm1, block.mixer_norm),
            (their_block.norm2, block.mlp_norm),
            *_mlp_pairs(their_block, block),
        ]
        tensors += _joined(their_block.self_attn, block.mixer.qkv)
    for their_block, block in zip(theirs.decoder.layers, model.decoder, strict=True):
        cross = block.cross_attention
        pairs += [
            (their_block.self_attn.out_proj, block.self_attention.projection),
            (their_block.multihead_attn.out_proj, cross.projection),
            (their_block.norm1, block.self_norm),
            (their_block.norm2, block.cross_norm),
            (their_block.norm3, block.mlp_norm),
            *_mlp_pairs(their_block, block),
        ]
        tensors += _joined(their_block.self_attn, block.self_attention.qkv)
        tensors += _joined(their_block.multihead_attn, cross.query, cross.key_value)
    tensors += [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in ("weight", "bias")]
    assert sum(theirs.numel() for theirs, _ in tensors) == sum(p.numel() for p in theirs.parameters())
    with torch.no_grad():
        for target, value in tensors:
            target.copy_(value)
    return theirs


def _mlp_pairs(theirs: nn.Module, ours: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    return [(theirs.linear1, ours.mlp.expand), (theirs.linear2, ours.mlp.contract)]


def _joined(theirs: nn.Module, *layers: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [
        (theirs.in_proj_weight, torch.cat([layer.weight for layer in layers])),
        (theirs.in_proj_bias, torch.cat([layer.bias for layer in layers])),
    ]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch tells of a fast path that is not taken
def test_the_forward_pass_equals_torchs_with_the_same_weights(norm, activation):
    model = build_small(norm=norm, activation=activation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # no bias is zero, and no norm's weight one
    source, lengths, target = make_sentences()
    is_padding = torch.arange(7) >= lengths[:, None]
    positions = sinusoidal_positions(7, 12)
    sources, targets = (model.target_embedding(tokens) * 12**0.5 for tokens in (source, target))
    hidden = to_torch(model)(
        sources + positions,
        targets + positions[:5],
        tgt_mask=~causal_mask(5)[0, 0],
        src_key_padding_mask=is_padding,
        memory_key_padding_mask=is_padding,
    )

    logits = model(source, lengths, target)

    torch.testing.assert_close(logits, hidden @ model.target_embedding.weight.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tie", "names", "tables"),
    [
        ("all", {"target_embedding.weight"}, 1),
        ("output", {"source_embedding.weight", "target_embedding.weight"}, 2),
        ("none", {"source_embedding.weight", "target_embedding.weight", "output.weight"}, 3),
    ],
)
def test_tied_matrices_are_one(tie, names, tables):
    model = build_small(tie=tie)
    state = model.state_dict()
    assert names == {name for name in state if name.startswith(("source_", "target_", "output"))}
    count = sum(parameter.numel() for parameter in model.parameters())
    blocks = sum(
        parameter.numel() for part in (model.encoder, model.decoder) for parameter in part.parameters()
    )
    assert count - blocks == tables * 17 * 12


def test_the_output_has_a_bias_where_it_is_asked_for():
    for tie in ("all", "none"):
        model = build_small(tie=tie, output_bias=True)
        sentences = make_sentences()
        before = model(*sentences)
        bias = model.output_bias if tie == "all" else model.output.bias
        assert bias.shape == (17,)
        with torch.no_grad():
            bias += torch.arange(17)
        torch.testing.assert_close(model(*sentences), before + torch.arange(17))


def test_pre_norm_models_end_with_norms_and_have_no_other_weights():
    with torch.device("meta"):
        post, pre = (build("transformer_base", norm=norm) for norm in ("post", "pre"))
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (post, pre)]
    assert counts[1] - counts[0] == 2 * 2 * 512


def test_weights_are_drawn_so_that_logits_begin_near_standard_normal():
    """Tables of variance 1/width, scaled by its root, give tokens of variance one (fairseq)."""
    model = TransformerConfig(
        source_vocabulary_size=500, target_vocabulary_size=500, width=64, num_heads=4, encoder_depth=1,
        decoder_depth=1, hidden_dim=32,
    ).build()  # fmt: skip
    assert model.target_embedding.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    bound = (1.5 / 64) ** 0.5
    block = model.decoder[0]
    for layer in (block.self_attention.qkv, block.cross_attention.query, block.cross_attention.key_value):
        assert layer.weight.abs().max().item() == pytest.approx(bound, rel=0.02)
        assert layer.bias.abs().max() == 0
    expand = block.mlp.expand.weight
    assert expand.abs().max().item() == pytest.approx((6 / (64 + 32)) ** 0.5, rel=0.02)


def test_a_mixer_for_images_alone_is_refused():
    with pytest.raises(ConfigError, match=r"lstm_2d.*mixer 'lstm' for sequences"):
        build_small(mixer="lstm_2d")(*make_sentences())


@pytest.mark.parametrize("changes", [{"positions": "learned"}, {"mixer": "mlp"}])
def test_a_sentence_longer_than_the_model_reaches_is_refused(changes):
    model = build_small(**changes)
    with pytest.raises(DataError, match="at most 9 tokens"):
        model.start(torch.full((1, 10), 5), torch.tensor([10]))


@pytest.mark.parametrize("positions", ["sinusoidal", "relative", "rotary"])
def test_other_sentences_have_no_limit(positions):
    model = build_small(positions=positions)
    logits = model(torch.full((1, 600), 5), torch.tensor([600]), torch.full((1, 3), 5))
    assert logits.isfinite().all()


def test_every_attention_is_recorded_by_its_name():
    model = build_small()
    with record_attention(model) as maps:
        model(*make_sentences())
    assert [(each.layer, each.kind) for each in maps] == [
        ("encoder.0.mixer", "self"),
        ("encoder.1.mixer", "self"),
        ("decoder.0.self_attention", "self"),
        ("decoder.0.cross_attention", "cross"),
        ("decoder.1.self_attention", "self"),
        ("decoder.1.cross_attention", "cross"),
    ]
    for each in maps:
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))


def test_rows_of_one_length_need_no_mask():
    model = build_small()
    source, _, target = make_sentences()
    state = model.start(source, torch.tensor([7, 7, 7]))
    assert state.source_bias is None
    logits, _ = model.step(target[:, 0], state)
    torch.testing.assert_close(
        logits, model(source, torch.tensor([7, 7, 7]), target)[:, 0], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "hidden_dropout"])
def test_each_dropout_acts_in_training_alone(name):
    model = build_small(**{name: 0.5})
    sentences = make_sentences()
    assert torch.equal(model(*sentences), model(*sentences))
    model.train()
    assert not torch.equal(model(*sentences), model(*sentences))


def test_the_paper_models_differ_from_the_tiny_one_as_published():
    assert (MODELS["transformer_big"].width, MODELS["transformer_big"].dropout) == (1024, 0.3)
    assert (MODELS["transformer_tiny"].encoder_depth, MODELS["transformer_tiny"].hidden_dim) == (4, 256)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.further),
        pytest.param({"norm": "pre", "positions": "rotary"}, marks=pytest.mark.further),
        {"positions": "sinusoidal+relative", "head_dim": 3, "value_dim": 7},
        {"mixer": "dynamic_convolution", "decoder_mixer": "light_convolution", "norm_layer": "batch"},
    ],
)
def test_exported_models_take_any_batch_and_any_lengths(changes):
    model = build_small(**changes)
    batch, read, written = (torch.export.Dim(name, min=2, max=300) for name in ("batch", "read", "written"))
    exported = torch.export.export(
        model,
        make_sentences(),
        dynamic_shapes={
            "source": {0: batch, 1: read},
            "source_lengths": {0: batch},
            "target": {0: batch, 1: written},
        },
    ).module()
    with torch.no_grad():
        for size, num_source, num_target in ((3, 7, 5), (2, 11, 13)):
            source, target = (torch.randint(3, 17, (size, each)) for each in (num_source, num_target))
            lengths = torch.arange(num_source, num_source - size, -1)
            torch.testing.assert_close(
                exported(source, lengths, target), model(source, lengths, target), rtol=1e-5, atol=1e-5
            )


@pytest.mark.compiled
def test_compiled_models_are_one_graph_and_equal_eager():
    model = build_small()
    sentences = make_sentences()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(*sentences)
        torch.testing.assert_close(compiled, model(*sentences), rtol=1e-5, atol=1e-5)


def test_kernels_widen_from_block_to_block_and_the_last_width_stays():
    convolutions = {"mixer": "light_convolution", "decoder_mixer": "dynamic_convolution"}
    model = build_small(**convolutions, kernel_sizes=(3, 7), encoder_depth=3, decoder_depth=2)
    assert [block.mixer.kernel_size for block in model.encoder] == [(1, 3), (1, 7), (1, 7)]
    assert [block.self_attention.kernel_size for block in model.decoder] == [(1, 3), (1, 7)]
    assert build_small(**convolutions).encoder[1].mixer.kernel_size == (1, 15)


def test_a_convolving_decoder_is_recorded_and_reads_no_later_token():
    model = build_small(decoder_mixer="dynamic_convolution")
    source, lengths, target = make_sentences()
    changed = target.clone()
    changed[:, 3:] = 4
    with record_attention(model, "decoder") as maps:
        logits = model(source, lengths, target)
    assert torch.equal(model(source, lengths, changed)[:, :3], logits[:, :3])
    assert [each.kind for each in maps] == ["mixing", "cross"] * 2
    assert not maps[0].weights.triu(1).any()


def test_absolute_and_relative_positions_act_together():
    model = build_small(positions="learned+relative")
    sentences = make_sentences()
    before = model(*sentences)
    for table in (model.source_positions.table, model.encoder[0].mixer.positions.table):
        with torch.no_grad():
            table.normal_()
        after = model(*sentences)
        assert not torch.allclose(after, before)
        before = after
