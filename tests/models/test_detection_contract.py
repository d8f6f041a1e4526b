"""What every registered detection model must do, whatever its family: run over all of them, made small."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from making.recorded_steps import assert_steps_lead_to_the_map
from making.small_models import STEADY_QUERIES, build_shaken, small_configs
from vitrail.core.errors import DataError
from vitrail.interpret import record_attention
from vitrail.models import MODELS
from vitrail.models.contract import BoxTargets, DetectionModelConfig, DetectionOutput

SIZES = torch.tensor([[64, 50], [41, 72], [33, 40]])  # none of them fills the 64 x 72 pixels that all have
NUM_CLASSES = 5
TARGETS = BoxTargets(
    labels=torch.tensor([[4, 1], [0, 0], [2, 0]]),
    boxes=torch.tensor(
        [[[0.4, 0.5, 0.3, 0.2], [0.7, 0.2, 0.1, 0.3]], [[0.0] * 4] * 2, [[0.5] * 4, [0.0] * 4]]
    ),
    counts=torch.tensor([2, 0, 1]),
)
NO_BOXES = BoxTargets(torch.zeros(3, 0, dtype=torch.int64), torch.zeros(3, 0, 4), torch.zeros(3).long())


CONFIGS = small_configs(DetectionModelConfig)
FIRSTS = {MODELS[name].family: name for name in sorted(CONFIGS, reverse=True) if name in MODELS}
TRACED = [  # tracing takes seconds: by default one variant of each family, with --all-variants every one
    name if name in FIRSTS.values() else pytest.param(name, marks=pytest.mark.further) for name in CONFIGS
]


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> DetectionModelConfig:
    return CONFIGS[request.param]


@pytest.fixture
def model(config: DetectionModelConfig) -> nn.Module:
    return build_shaken(config)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, 64, 72)


def _with_steady_queries(config: DetectionModelConfig) -> DetectionModelConfig:
    """Return the settings with queries that rounding puts into no other order."""
    return config.with_changes(STEADY_QUERIES if config.family == "sampled_detr" else {})


def _assert_close(output: DetectionOutput, expected: DetectionOutput, *, rtol: float, atol: float) -> None:
    torch.testing.assert_close(output.logits, expected.logits, rtol=rtol, atol=atol)
    torch.testing.assert_close(output.boxes, expected.boxes, rtol=rtol, atol=atol)


def _equal(output: DetectionOutput, expected: DetectionOutput) -> bool:
    return torch.equal(output.logits, expected.logits) and torch.equal(output.boxes, expected.boxes)


@pytest.mark.parametrize("size", [(1, 1), (48, 16), (37, 101), (100, 131)])
def test_any_image_size_gives_every_querys_logits_and_a_box_in_the_image(model, size):
    output = model(torch.randn(2, 3, *size))

    config = model.config
    num_logits = NUM_CLASSES + (config.scoring == "softmax")
    assert output.logits.shape == (2, config.num_queries, num_logits)
    assert output.boxes.shape == (2, config.num_queries, 4)
    assert output.logits.isfinite().all()
    assert (output.boxes >= 0).all()
    assert (output.boxes <= 1).all()
    assert output.auxiliary == ()


def test_every_border_of_an_image_has_gradients(model):
    images = torch.randn(2, 3, 67, 91, requires_grad=True)
    output = model(images)
    (output.logits.square().sum() + output.boxes.square().sum()).backward()
    assert images.grad.isfinite().all()
    assert (images.grad.abs().amax(dim=(1, 2, 3)) > 0).all()
    assert images.grad[..., -1, :].abs().max() > 0
    assert images.grad[..., -1].abs().max() > 0


def test_what_the_padding_holds_changes_nothing(model, images):
    expected = model(images, SIZES)
    for image, (height, width) in zip(images, SIZES.tolist(), strict=True):
        image[:, height:], image[..., width:] = 99.0, -99.0
    assert _equal(model(images, SIZES), expected)
    assert not _equal(model(images), expected)


def test_sizes_of_images_without_padding_change_nothing(model, images):
    sizes = torch.tensor([[64, 72]]).expand(3, 2)
    assert _equal(model(images, sizes), model(images))


def test_outputs_are_repeatable_and_independent_of_the_rest_of_the_batch(model, images):
    output = model(images, SIZES)
    assert _equal(model(images, SIZES), output)
    single = model(images[1:2], SIZES[1:2])
    # other batch sizes take other blockings of the same sums
    _assert_close(single, DetectionOutput(output.logits[1:2], output.boxes[1:2]), rtol=1e-5, atol=5e-6)


def test_a_query_is_no_other(model, images):
    boxes = model(images).boxes[0]
    assert len(boxes.unique(dim=0)) == len(boxes)


def test_targets_change_nothing_in_evaluation(model, images):
    assert _equal(model(images, SIZES, TARGETS), model(images, SIZES))


def test_training_predicts_more_than_is_answered(model, images):
    output = model.train()(images, SIZES, TARGETS)
    num_logits = NUM_CLASSES + (model.config.scoring == "softmax")
    assert output.logits.shape == (3, model.config.num_queries, num_logits)
    assert output.auxiliary
    for each in output.auxiliary:
        assert each.logits.shape == (*each.boxes.shape[:2], num_logits)
        assert each.num_matches >= 1
        assert each.weight > 0
        if each.assigned is not None:
            assert each.assigned.shape == each.boxes.shape[:2]
            assert (each.assigned < TARGETS.counts[:, None]).all()


@pytest.mark.parametrize("targets", [TARGETS, NO_BOXES, None], ids=["boxes", "no_boxes", "no_targets"])
def test_images_with_and_without_boxes_give_finite_predictions(model, images, targets):
    output = model.train()(images, SIZES, targets)
    for each in (output, *output.auxiliary):
        assert each.logits.isfinite().all()
        assert each.boxes.isfinite().all()


def test_gradients_reach_every_parameter_that_is_trained(model, images):
    output = model.train()(images, SIZES, TARGETS)
    answers = (output, *output.auxiliary)
    loss = sum(each.logits.square().sum() + each.boxes.square().sum() for each in answers)
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda images, sizes: (images[0], sizes), "images of shape (3, 64, 72)"),
        (lambda images, sizes: (images.long(), sizes), "images of type torch.int64"),
        (lambda images, sizes: (images[:, :1], sizes), "images with 1 channels"),
        (lambda images, sizes: (images * float("nan"), sizes), "NaN or infinite"),
        (lambda images, sizes: (images, sizes[:2]), "shape (2, 2) for 3 images"),
        (lambda images, sizes: (images, sizes.float()), "sizes of type torch.float32"),
        (lambda images, sizes: (images, sizes.flip(1)), "in 64x72 pixels"),
        (lambda images, sizes: (images, sizes * 0), "in 64x72 pixels"),
    ],
)
def test_inputs_of_another_kind_are_refused_with_a_remedy(model, images, change, given, as_shipped):
    with pytest.raises(DataError) as refused:
        model(*change(images, SIZES))
    assert given in refused.value.given
    assert refused.value.remedy


def test_autocast_stays_near_float32(config, images):
    model = build_shaken(_with_steady_queries(config))
    with torch.autocast("cpu", torch.bfloat16):
        narrow = model(images, SIZES)
    wide = DetectionOutput(narrow.logits.float(), narrow.boxes.float())
    _assert_close(wide, model(images, SIZES), rtol=0.1, atol=0.1)  # 8 bits of mantissa


def test_bfloat16_weights_stay_near_float32(config, images):
    model = build_shaken(_with_steady_queries(config))
    narrow = copy.deepcopy(model).bfloat16()(images.bfloat16(), SIZES)
    assert narrow.logits.dtype == torch.bfloat16
    wide = DetectionOutput(narrow.logits.float(), narrow.boxes.float())
    _assert_close(wide, model(images, SIZES), rtol=0.1, atol=0.1)  # 8 bits of mantissa


def test_recorded_steps_lead_to_the_maps_of_layers_that_compare_queries_with_keys(model, images):
    with torch.no_grad(), record_attention(model, keep_qkv=True) as maps:
        model(images, SIZES)
    comparing = [each for each in maps if each.steps.query is not None]  # deformable attention compares none
    assert comparing
    for each in comparing:
        assert_steps_lead_to_the_map(each)
        assert (each.steps.context is not None) == (each.kind == "cross")


def test_recorded_maps_are_there_and_look_at_no_padding(model, images):
    with torch.no_grad(), record_attention(model) as maps:
        output = model(images, SIZES)
    with torch.no_grad():
        assert _equal(output, model(images, SIZES))
    crossing = [each for each in maps if each.kind == "cross"]
    assert crossing
    shares: dict[str, Tensor] = {}
    for each in maps:
        assert each.weights.shape[0] == 3
        assert each.weights.dtype == torch.float32
        shares[each.layer] = shares.get(each.layer, 0) + each.weights.sum(-1)
    for share in shares.values():  # all levels of a layer together, where it has several
        torch.testing.assert_close(share, torch.ones(share.shape))
    for each in crossing:
        assert each.weights.shape[-2] == model.config.num_queries
        assert each.weights.shape[-1] == each.grid[0] * each.grid[1]
        by_patch = each.weights.unflatten(-1, each.grid)
        assert by_patch[2, ..., -1].max() == 0  # the columns to the right of an image that is 40 of 72 wide
        assert by_patch[0].max() > 0


@pytest.mark.compiled
@pytest.mark.parametrize("name", TRACED)
def test_compiled_models_are_one_graph_and_equal_eager(name, images):
    model = build_shaken(CONFIGS[name])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        # eager code takes another kernel for linear layers on a processor, with other orders of sums
        _assert_close(compiled(images, SIZES), model(images, SIZES), rtol=1e-5, atol=1e-5)


@pytest.mark.compiled
@pytest.mark.parametrize("name", TRACED)
def test_exported_models_take_any_batch(name, images):
    model = build_shaken(CONFIGS[name])
    shapes = {"images": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(model, (images,), dynamic_shapes=shapes).module()
    with torch.no_grad():
        for size in (1, 5):
            images = torch.randn(size, 3, 64, 72)
            _assert_close(exported(images), model(images), rtol=1e-5, atol=1e-5)
