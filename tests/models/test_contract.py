"""What every registered image model must do, whatever its family: run over all of them, made small.

Variants that are equal when made small are run once, under the name of the first. A family is made small in
``small_models``.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from making.recorded_steps import assert_steps_lead_to_the_map
from making.small_models import FOR_PHOTOGRAPHS, build_shaken, small_configs
from vitrail.core.errors import ConfigError, DataError
from vitrail.interpret import record_attention
from vitrail.models import MODELS
from vitrail.models.contract import ImageModelConfig

CONFIGS = small_configs(ImageModelConfig)
FIRSTS = {MODELS[name].family: name for name in sorted(CONFIGS, reverse=True) if name in MODELS}
TRACED = [  # tracing takes seconds: by default one variant of each family, with --all-variants every one
    name if name in FIRSTS.values() else pytest.param(name, marks=pytest.mark.further) for name in CONFIGS
]


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> ImageModelConfig:
    return CONFIGS[request.param]


@pytest.fixture
def model(config: ImageModelConfig) -> nn.Module:
    return build_shaken(config)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(3, 3, 16, 24)


@pytest.mark.parametrize("size", ["native", "smallest", (37, 53), (48, 16)])
def test_any_image_size_gives_logits_tokens_and_features(model, size):
    least = model.config.min_size
    height, width = {"native": model.config.image_size, "smallest": (least, least + 1)}.get(size, size)
    images = torch.randn(2, 3, height, width)

    logits, tokens, features = model(images), model.tokens(images), model.features(images)

    assert logits.shape == (2, 5)
    assert tokens.shape[0] == 2
    assert [stage.shape[0] for stage in features] == [2] * len(features)
    areas = [stage.shape[-2] * stage.shape[-1] for stage in features]
    assert areas == sorted(areas, reverse=True)
    for tensor in (logits, tokens, *features):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("name", [name for name in CONFIGS if name in MODELS])
def test_a_photograph_of_odd_size_gives_gradients(name):
    config = CONFIGS[name].with_changes(FOR_PHOTOGRAPHS.get(MODELS[name].family, {}))
    model, images = build_shaken(config), torch.randn(2, 3, 250, 331, requires_grad=True)
    logits = model(images)
    assert logits.shape == (2, 5)
    logits.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert (images.grad.abs().amax(dim=(1, 2, 3)) > 0).all()
    assert images.grad[..., -1, :].abs().max() > 0
    assert images.grad[..., -1].abs().max() > 0


def test_a_larger_image_is_not_cropped(model):
    images = torch.randn(1, 3, 37, 53)
    changed = images.clone()
    changed[..., -1, -1] += 9.0
    assert not torch.equal(model(images), model(changed))


@pytest.mark.parametrize(
    ("change", "given", "remedy"),
    [
        (lambda images, least: images[0], "images of shape (3, 16, 24)", "Add a batch axis"),
        (lambda images, least: images.long(), "images of type torch.int64", "Divide by 255"),
        (lambda images, least: images[:, :1], "images with 1 channels", "num_channels=1"),
        (lambda images, least: images[..., : least - 1], "pixels", "Enlarge the images"),
        (lambda images, least: images * float("nan"), "NaN or infinite", "isfinite"),
    ],
)
def test_images_of_another_kind_are_refused_with_a_remedy(model, images, change, given, remedy, as_shipped):
    wrong = change(images, model.config.min_size)
    for way in (model, model.tokens, model.features):
        with pytest.raises(DataError) as refused:
            way(wrong)
        assert given in refused.value.given
        assert remedy in refused.value.remedy


def test_gradients_reach_every_parameter(model, images):
    model.train()
    nn.functional.cross_entropy(model(images), torch.tensor([0, 3, 4])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_outputs_are_repeatable_and_independent_of_the_rest_of_the_batch(model, images):
    logits = model(images)
    assert torch.equal(model(images), logits)
    # other batch sizes take other blockings of the same sums
    torch.testing.assert_close(model(images[1:2]), logits[1:2], rtol=1e-5, atol=2e-6)


def test_autocast_stays_near_float32(model, images):
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(images)
    torch.testing.assert_close(narrow.float(), model(images), rtol=0.1, atol=0.05)  # 8 bits of mantissa


def test_bfloat16_weights_stay_near_float32(model, images):
    narrow = copy.deepcopy(model).bfloat16()(images.bfloat16())
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), model(images), rtol=0.1, atol=0.05)  # 8 bits of mantissa


def test_recorded_maps_are_there_and_say_where_their_tokens_are(model, images):
    if not _has_attention(model):
        with pytest.raises(ConfigError, match="attention"), record_attention(model):
            pass
        return
    with torch.no_grad(), record_attention(model) as maps:
        logits = model(images)
    with torch.no_grad():
        assert torch.equal(logits, model(images))
    assert maps
    for each in maps:
        assert each.weights.shape[0] == 3
        assert each.weights.dtype == torch.float32
        assert each.weights.shape[-1] == each.num_prefix + each.grid[0] * each.grid[1]
        patches = each.query_grid[0] * each.query_grid[1]
        assert each.weights.shape[-2] - patches == each.num_prefix
        if each.kind != "mixing":
            torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))


def test_recorded_rows_are_those_of_the_whole_maps(model, images):
    if not _has_attention(model):
        pytest.skip("there is no attention to record")
    with torch.no_grad(), record_attention(model, layers=0) as whole, record_attention(model, -1) as last:
        model(images)
    with torch.no_grad(), record_attention(model, layers=[0, -1], queries=[0, -1]) as rows:
        model(images)
    assert len(rows) == len(whole) + len(last)
    for few, all_rows in zip(rows, [*whole, *last], strict=True):
        assert few.layer == all_rows.layer
        torch.testing.assert_close(few.weights, all_rows.weights[..., [0, -1], :], rtol=1e-5, atol=1e-6)


def test_recorded_steps_lead_from_the_input_to_the_weights_and_the_result(model, images):
    if not _has_attention(model):
        pytest.skip("there is no attention to record")
    with torch.no_grad(), record_attention(model, keep_qkv=True) as maps:
        model(images)
    with torch.no_grad(), record_attention(model, queries=[0, -1], keep_qkv=True) as rows:
        model(images)
    for each, few in zip(maps, rows, strict=True):
        steps = each.steps
        assert steps.x.shape[0] == 3
        if each.kind == "mixing":
            continue
        assert_steps_lead_to_the_map(each)
        for name in ("query", "scores", "masked_scores", "result"):
            found, expected = getattr(few.steps, name), getattr(steps, name)[..., [0, -1], :]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def _has_attention(model: nn.Module) -> bool:
    return any(hasattr(layer, "tap") for layer in model.modules())


@pytest.mark.compiled
@pytest.mark.parametrize("name", TRACED)
def test_compiled_models_are_one_graph_and_equal_eager(name, images):
    model = build_shaken(CONFIGS[name])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        # eager code takes another kernel for linear layers on a processor, with other orders of sums
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.parametrize("name", TRACED)
def test_exported_models_take_any_batch(name, images):
    model = build_shaken(CONFIGS[name])
    batch = torch.export.Dim("batch")
    exported = torch.export.export(model, (images,), dynamic_shapes={"images": {0: batch}}).module()
    with torch.no_grad():
        for size in (1, 5):
            images = torch.randn(size, 3, 16, 24)
            torch.testing.assert_close(exported(images), model(images), rtol=1e-5, atol=1e-6)
