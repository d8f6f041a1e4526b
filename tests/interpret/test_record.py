from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.core.errors import ConfigError
from vitrail.interpret import record
from vitrail.interpret.record import record_attention
from vitrail.models import build
from vitrail.nn.attention import Attention, attend, attention_weights
from vitrail.nn.decoder import CrossAttention
from vitrail.nn.detr_attention import DetrAttention
from vitrail.nn.masks import causal_mask
from vitrail.nn.mixers.synthesizer import Synthesizer
from vitrail.nn.sequence_positions import SequenceRelativeBias

TINY = {"width": 12, "depth": 3, "num_heads": 2, "num_classes": 5, "patch_size": 8, "image_size": (16, 24)}


@pytest.fixture
def model() -> nn.Module:
    return build("deit_ti16_distilled", **TINY).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 24)


def test_every_layer_is_recorded_in_order_with_its_grid(model, images):
    with record_attention(model) as maps:
        model(images)

    assert [each.layer for each in maps] == ["blocks.0.mixer", "blocks.1.mixer", "blocks.2.mixer"]
    for each in maps:
        assert (each.kind, each.grid, each.num_prefix) == ("self", (2, 3), 2)
        assert each.weights.shape == (2, 2, 8, 8)
        assert each.weights.dtype == torch.float32
        assert not each.weights.requires_grad
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(2, 2, 8))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_recording_leaves_outputs_and_gradients_bitwise_unchanged(model, images, training, autocast):
    model.train(training)

    def run() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(images)
        logits.float().square().sum().backward()
        return [logits.detach(), *(parameter.grad for parameter in model.parameters())]

    before = run()
    with record_attention(model) as maps:
        during = run()

    assert len(maps) == 3
    assert all(torch.equal(*pair) for pair in zip(before, during, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_recorded_map_times_the_values_is_the_fused_result(dtype):
    fused = []
    positions = SequenceRelativeBias(3)
    nn.init.normal_(positions.table)
    layer = Attention(12, 3, positions=positions).to(dtype)
    layer.attend = lambda query, key, value, **options: (
        fused.append((value, attend(query, key, value, **options))) or fused[-1][1]
    )
    x = torch.randn(2, 5, 12, dtype=dtype)
    with torch.no_grad(), record_attention(layer) as maps:
        layer(x, may_attend=causal_mask(5))

    value, result = fused[0]
    tolerance = 1e-5 if dtype == torch.float32 else 0.02  # one rounding to 8 bits of mantissa
    torch.testing.assert_close(
        maps[0].weights @ value.float(), result.float(), rtol=tolerance, atol=tolerance
    )
    assert (maps[0].weights.triu(1) == 0).all()


def test_several_forward_passes_append(model, images):
    with record_attention(model, layers=1) as maps:
        model(images)
        model(images[:1, :, :, :8])
    assert [each.weights.shape[0] for each in maps] == [2, 1]
    assert [each.grid for each in maps] == [(2, 3), (2, 1)]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (0, [0]),
        (-1, [2]),
        ([0, 2], [0, 2]),
        ([-1, 0], [0, 2]),
        ("blocks.1", [1]),
        (["blocks.1", -1], [1, 2]),
        ("mixer", [0, 1, 2]),
    ],
)
def test_layers_are_chosen_by_name_or_index(model, images, layers, expected):
    with record_attention(model, layers=layers) as maps:
        model(images)
    assert [each.layer for each in maps] == [f"blocks.{index}.mixer" for index in expected]


@pytest.mark.parametrize("layers", [3, -4, "block.0", ["blocks.0", "head"]])
def test_a_layer_that_is_not_there_and_a_model_without_attention_are_refused(model, layers):
    with (
        pytest.raises(ConfigError, match=r"no attention layer matches .*blocks\.0\.mixer"),
        record_attention(model, layers=layers),
    ):
        pass
    with pytest.raises(ConfigError, match="attention of a Linear"), record_attention(nn.Linear(2, 3)):
        pass


def test_one_query_row_never_builds_the_full_matrix(model, images, monkeypatch):
    shapes = []

    def watched(query, key, **options):
        shapes.append((tuple(query.shape), tuple(key.shape)))
        return attention_weights(query, key, **options)

    with record_attention(model) as full:
        model(images)
    monkeypatch.setattr(record, "attention_weights", watched)
    with record_attention(model, queries=[0]) as row:
        model(images)

    assert shapes == [((2, 2, 1, 6), (2, 2, 8, 6))] * 3
    for one, whole in zip(row, full, strict=True):
        torch.testing.assert_close(one.weights, whole.weights[:, :, :1])


def test_query_rows_come_in_the_order_asked_with_their_bias_and_mask():
    positions, x = SequenceRelativeBias(2), torch.randn(2, 5, 6)
    nn.init.normal_(positions.table)
    layer = Attention(6, 2, positions=positions)
    with record_attention(layer) as full:
        layer(x, may_attend=causal_mask(5))
    with record_attention(layer, queries=[4, -3, 0]) as rows:
        layer(x, may_attend=causal_mask(5))
    torch.testing.assert_close(rows[0].weights, full[0].weights[:, :, [4, 2, 0]])


def test_a_query_that_is_not_there_is_refused_and_the_taps_are_removed(model, images):
    with (
        pytest.raises(ConfigError, match=r"queries \[8\] .* below 8"),
        record_attention(model, queries=[0, 8]),
    ):
        model(images)
    assert all(block.mixer.tap is None for block in model.blocks)
    with record_attention(model) as maps:
        model(images)
    assert len(maps) == 3


def test_cross_attention_says_so_and_has_no_grid_unless_given():
    layer, x, context = DetrAttention(6, 2), torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    with record_attention(layer) as maps:
        for grid in (None, (2, 3)):
            layer(x, positions=x, context=context, context_positions=context, grid=grid)
    assert [(each.kind, each.grid, each.num_prefix) for each in maps] == [
        ("cross", None, 0),
        ("cross", (2, 3), 1),
    ]
    assert maps[0].weights.shape == (2, 2, 5, 7)


def test_a_layer_is_recorded_once_at_a_time_and_others_beside_it(model, images):
    with record_attention(model, layers=0) as outer:
        with pytest.raises(ConfigError, match=r"blocks\.0\.mixer.*recorded already"), record_attention(model):
            pass
        with record_attention(model, layers=[1, 2]) as inner:
            model(images)
        model(images)
    assert len(outer) == 2
    assert len(inner) == 2


@pytest.mark.compiled
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model_records_and_keeps_its_graphs(model, images, fullgraph):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    with torch.no_grad():
        before, made = compiled(images), len(graphs)
        for _ in range(3):
            with record_attention(compiled) as maps:
                during = compiled(images)
        after = compiled(images)

    assert made == len(graphs) == 1
    assert [each.layer for each in maps] == ["blocks.0.mixer", "blocks.1.mixer", "blocks.2.mixer"]
    assert torch.equal(before, during)
    assert torch.equal(before, after)


@pytest.mark.compiled
def test_a_block_compiled_alone_has_its_name_in_the_bare_model(model, images):
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    with record_attention(model, layers="blocks.1.mixer") as maps:
        model(images)
    assert [each.layer for each in maps] == ["blocks.1.mixer"]


def test_a_model_wrapped_for_several_processes_records_under_its_own_names(model, images, tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        with record_attention(wrapped, layers=[0]) as maps:
            wrapped(images)
    finally:
        torch.distributed.destroy_process_group()
    assert [each.layer for each in maps] == ["blocks.0.mixer"]


def test_what_is_kept_of_a_map_is_decided_at_once(model, images):
    kept_before: list[int] = []

    def first_queries_of_later_layers(recorded):
        kept_before.append(len(maps))
        return None if "0" in recorded.layer else recorded._replace(weights=recorded.weights[:, :, :3])

    with record_attention(model, keep=first_queries_of_later_layers) as maps:
        model(images)
    with record_attention(model) as whole:
        model(images)

    assert kept_before == [0, 0, 1]
    assert [each.layer for each in maps] == ["blocks.1.mixer", "blocks.2.mixer"]
    assert torch.equal(maps[1].weights, whole[2].weights[:, :, :3])


def test_steps_are_those_that_the_equations_give_by_hand(model, images):
    layer, outputs = model.blocks[1].mixer, []
    layer.register_forward_hook(lambda module, given, output: outputs.append((given[0], output)))
    with torch.no_grad(), record_attention(model, layers=1, keep_qkv=True) as maps:
        model(images)

    ((x, output),), steps = outputs, maps[0].steps
    query, key, value = layer.qkv(x).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    assert torch.equal(steps.x, x)
    for recorded, expected in ((steps.query, query), (steps.key, key), (steps.value, value)):
        torch.testing.assert_close(recorded, expected)
    torch.testing.assert_close(steps.scores, query @ key.mT)
    assert steps.scale == 6**-0.5
    torch.testing.assert_close(steps.scaled_scores, query @ key.mT / 6**0.5)
    assert (steps.context, steps.bias, steps.may_attend) == (None, None, None)
    torch.testing.assert_close(maps[0].weights, steps.masked_scores.softmax(-1))
    torch.testing.assert_close(steps.result, maps[0].weights @ value, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(layer.projection(steps.result.transpose(1, 2).flatten(2)), output)


def test_steps_are_kept_only_on_request_and_change_nothing(model, images):
    with torch.no_grad():
        before = model(images)
        with record_attention(model) as without:
            model(images)
        with record_attention(model, keep_qkv=True) as maps:
            during = model(images)
    assert torch.equal(before, during)
    assert [each.steps for each in without] == [None] * 3
    for each, plain in zip(maps, without, strict=True):
        assert torch.equal(each.weights, plain.weights)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_steps_have_the_rows_of_the_queries_asked_for():
    positions, x = SequenceRelativeBias(2), torch.randn(2, 5, 6)
    nn.init.normal_(positions.table)
    layer = Attention(6, 2, positions=positions)
    with record_attention(layer, keep_qkv=True) as full:
        layer(x, may_attend=causal_mask(5))
    with record_attention(layer, queries=[4, 0], keep_qkv=True) as rows:
        layer(x, may_attend=causal_mask(5))
    whole, few = full[0].steps, rows[0].steps
    for name in ("query", "scores", "scaled_scores", "masked_scores", "may_attend", "bias", "result"):
        assert torch.equal(getattr(few, name), getattr(whole, name)[..., [4, 0], :]), name
    for name in ("x", "key", "value"):
        assert torch.equal(getattr(few, name), getattr(whole, name)), name
    assert (whole.masked_scores.isneginf() == causal_mask(5).logical_not()).all()


def test_steps_of_cross_attention_have_what_keys_and_values_are_made_of():
    x, context = torch.randn(2, 5, 6), torch.randn(2, 7, 6)
    detr, cross = DetrAttention(6, 2), CrossAttention(6, 2)
    with record_attention(detr, keep_qkv=True) as of_detr:
        detr(x, positions=x, context=context, context_positions=context)
    with record_attention(cross, keep_qkv=True) as of_cross:
        cross(x, cross.remember(context))
    for (recorded,) in (of_detr, of_cross):
        assert torch.equal(recorded.steps.x, x)
        assert torch.equal(recorded.steps.context, context)
    torch.testing.assert_close(
        of_cross[0].steps.value, cross.key_value(context)[..., 6:].unflatten(-1, (2, 3)).transpose(1, 2)
    )


def test_additive_scores_are_steps_as_they_are_and_a_mixer_has_its_input_alone():
    layer, mixer, x = (
        Attention(6, 2, score="additive"),
        Synthesizer(6, 2, scores=_Even()),
        torch.randn(2, 5, 6),
    )
    with torch.no_grad(), record_attention(layer, queries=[3], keep_qkv=True) as maps:
        layer(x, may_attend=causal_mask(5))
    steps = maps[0].steps
    torch.testing.assert_close(steps.scores, layer.score(steps.query, steps.key))
    assert torch.equal(steps.scaled_scores, steps.scores)
    torch.testing.assert_close(maps[0].weights, steps.masked_scores.softmax(-1))
    torch.testing.assert_close(steps.result, maps[0].weights @ steps.value)

    with record_attention(mixer, keep_qkv=True) as maps:
        mixer(x)
    assert torch.equal(maps[0].steps.x, x)
    assert (maps[0].steps.query, maps[0].steps.masked_scores, maps[0].steps.result) == (None, None, None)


class _Even(nn.Module):
    def forward(self, x, *, grid=None):
        return torch.zeros(1, 2, x.shape[1], x.shape[1])


def test_what_is_kept_of_a_map_can_leave_its_steps_out(model, images):
    def without_steps_of_the_first(recorded):
        return recorded._replace(steps=None) if "0" in recorded.layer else recorded

    with record_attention(model, keep=without_steps_of_the_first, keep_qkv=True) as maps:
        model(images)
    assert [each.steps is None for each in maps] == [True, False, False]
