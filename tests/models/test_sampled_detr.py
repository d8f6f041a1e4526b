import pytest
import torch

from making.small_models import SAMPLED_DETR
from vitrail.interpret import record_attention
from vitrail.models import build
from vitrail.models.contract import BoxTargets

TARGETS = BoxTargets(
    labels=torch.tensor([[4, 1], [0, 0]]),
    boxes=torch.tensor([[[0.4, 0.5, 0.3, 0.2], [0.7, 0.2, 0.1, 0.3]], [[0.0] * 4] * 2]),
    counts=torch.tensor([2, 0]),
)


def _build(**changes):
    model = build("sdetr_nano", **(SAMPLED_DETR | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("size", [(1, 1), (9, 30), (40, 47), (64, 33)])
def test_an_image_alone_gives_what_it_gives_in_a_padded_batch(size):
    model, images = _build(), torch.randn(2, 3, 64, 72)
    height, width = size

    alone = model(images[:1, :, :height, :width])
    padded = model(images, torch.tensor([size, (64, 72)]))

    torch.testing.assert_close(padded.logits[:1], alone.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(padded.boxes[:1], alone.boxes, rtol=1e-4, atol=1e-4)


def test_images_in_another_order_give_the_same_in_that_order():
    model, images = _build(), torch.randn(4, 3, 40, 56)
    order = torch.tensor([2, 0, 3, 1])
    output, moved = model(images), model(images[order])
    torch.testing.assert_close(moved.logits, output.logits[order], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved.boxes, output.boxes[order], rtol=1e-5, atol=1e-5)


def test_training_adds_blocks_proposals_and_mended_boxes():
    output = _build(decoder_depth=3, proposal_matches=3).train()(torch.randn(2, 3, 40, 56), None, TARGETS)
    first, second, proposals, *mended = output.auxiliary
    assert first.logits.shape == second.logits.shape == output.logits.shape
    assert proposals.num_matches == 3
    assert proposals.boxes.shape == (2, 11, 4)
    assert len(mended) == 3
    for each in mended:
        assert each.boxes.shape == (2, 6, 4)
        assert sorted(each.assigned[0].tolist())[:3] == [-1] * 3
        assert (each.assigned[1] == -1).all()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_denoising": 0}, ["answers", "proposals"]),
        ({"queries": "learned"}, ["answers", "mended", "mended"]),
        ({"queries": "learned", "num_denoising": 0, "decoder_depth": 3}, ["answers", "answers"]),
    ],
)
def test_each_part_can_be_left_out(changes, expected):
    output = _build(**changes).train()(torch.randn(2, 3, 40, 56), None, TARGETS)
    kinds = [
        "mended" if each.assigned is not None else "proposals" if each.num_matches > 1 else "answers"
        for each in output.auxiliary
    ]
    assert kinds == expected


def test_at_least_as_many_patches_learn_to_propose_as_there_are_queries():
    output = _build(num_proposals=3).train()(torch.randn(2, 3, 40, 56))
    assert output.auxiliary[-1].boxes.shape == (2, 7, 4)
    assert output.boxes.shape == (2, 7, 4)


def test_spoiled_boxes_do_not_change_the_answer():
    model, images = _build().train(), torch.randn(2, 3, 40, 56)
    with_them, without = model(images, None, TARGETS), model(images)
    torch.testing.assert_close(with_them.logits, without.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(with_them.boxes, without.boxes, rtol=1e-5, atol=1e-5)


def test_a_query_is_recorded_where_it_looks_level_by_level():
    model = _build(strides=(8, 16))
    with torch.no_grad(), record_attention(model, layers="decoder.0.sampled") as maps:
        model(torch.randn(1, 3, 40, 56))
    assert [each.grid for each in maps] == [(5, 7), (3, 4)]
    torch.testing.assert_close(sum(each.weights.sum(-1) for each in maps), torch.ones(1, 3, 7))


def test_a_named_backbone_is_read_where_its_strides_are():
    model = _build(backbone="resnet18", strides=(4, 8))
    output = model(torch.randn(2, 3, 40, 56), torch.tensor([[40, 56], [17, 30]]))
    assert output.boxes.shape == (2, 7, 4)
    names = {name.partition(".")[0] for name, _ in model.backbone.backbone.stages.named_parameters()}
    assert names == {"0", "1"}  # stages that nobody reads are left out
