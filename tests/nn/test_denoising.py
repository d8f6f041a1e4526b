import torch

from vitrail.core.boxes import cxcywh_to_xyxy
from vitrail.nn.denoising import denoising_mask, spoil_boxes

BOXES = torch.tensor(
    [
        [[0.5, 0.5, 0.2, 0.4], [0.3, 0.6, 0.1, 0.1], [0.6, 0.4, 0.3, 0.3]],
        [[0.5, 0.5, 0.4, 0.2], [float("nan")] * 4, [9.0] * 4],
        [[float("nan")] * 4] * 3,
    ]
)
LABELS = torch.tensor([[4, 1, 2], [3, 99, -7], [99, 99, 99]])
COUNTS = torch.tensor([3, 1, 0])


def _spoil(**changes):
    settings = {"num_slots": 14, "num_classes": 5, "label_noise": 0.0, "box_noise": 0.5}
    return spoil_boxes(LABELS, BOXES, COUNTS, **(settings | changes))


def test_half_of_the_slots_are_to_be_mended_to_a_box_of_their_image():
    spoiled = _spoil()
    assert spoiled.assigned.shape == (3, 14)
    assert sorted(spoiled.assigned[0, :7].tolist())[:6] != [0] * 6
    assert set(spoiled.assigned[0, :7].tolist()) == {0, 1, 2}
    assert spoiled.assigned[1, :7].tolist() == [0] * 7
    assert spoiled.assigned[2].tolist() == [-1] * 14
    assert (spoiled.assigned[:, 7:] == -1).all()


def test_a_group_has_each_box_once_to_be_mended_and_once_not():
    spoiled = _spoil()
    for half in (slice(0, 7), slice(7, 14)):
        assert sorted(spoiled.groups[0, half].tolist()) == [0, 0, 0, 1, 1, 1, 2]
    pairs = set(zip(spoiled.groups[0, :7].tolist(), spoiled.assigned[0, :7].tolist(), strict=True))
    assert len(pairs) == 7
    assert spoiled.groups[1, :7].tolist() == list(range(7))


def test_labels_are_the_boxes_own_unless_they_are_drawn_anew():
    spoiled = _spoil()
    assert torch.equal(spoiled.labels[0, :7], LABELS[0][spoiled.assigned[0, :7]])
    assert torch.equal(spoiled.labels[0, 7:], spoiled.labels[0, :7])
    drawn = _spoil(label_noise=1.0, num_slots=200).labels
    assert set(drawn[1].tolist()) == set(range(5))
    assert ((spoiled.labels >= 0) & (spoiled.labels < 5)).all()


def test_corners_move_by_up_to_the_noise_and_too_far_ones_by_more():
    noise = 0.5
    spoiled = _spoil(box_noise=noise)
    true = BOXES[0][spoiled.assigned[0, :7]]
    reach = true[:, 2:].repeat(1, 2) * noise / 2
    moved = (cxcywh_to_xyxy(spoiled.boxes[0]).unflatten(0, (2, 7)) - cxcywh_to_xyxy(true)).abs() / reach
    assert (moved[0] <= 1 + 1e-4).all()
    assert (moved[1] >= 1 - 1e-4).all()
    assert (moved[1] <= 2 + 1e-4).all()


def test_spoiled_boxes_are_boxes_in_the_image():
    boxes = _spoil(box_noise=2.0, num_slots=60).boxes
    corners = cxcywh_to_xyxy(boxes)
    assert boxes.isfinite().all()
    assert (boxes[..., 2:] >= 0).all()
    assert (corners > -1e-6).all()
    assert (corners < 1 + 1e-6).all()


def test_of_too_many_boxes_some_are_left_out_by_chance():
    spoiled = [_spoil(num_slots=4).assigned[0, :2].tolist() for _ in range(40)]
    assert all(len(set(each)) == 2 for each in spoiled)
    assert {index for each in spoiled for index in each} == {0, 1, 2}


def test_a_batch_without_any_box_has_random_ones_that_are_nothing():
    spoiled = spoil_boxes(
        torch.zeros(2, 0, dtype=torch.int64),
        torch.zeros(2, 0, 4),
        torch.zeros(2, dtype=torch.int64),
        num_slots=6,
        num_classes=3,
        label_noise=0.2,
        box_noise=1.0,
    )
    assert (spoiled.assigned == -1).all()
    assert len(spoiled.boxes.flatten(0, 1).unique(dim=0)) == 12


def test_no_query_sees_a_slot_and_a_slot_sees_queries_and_its_group():
    groups = torch.tensor([[0, 0, 1], [0, 1, 1]])
    mask = denoising_mask(groups, 2)[:, 0].int().tolist()
    assert mask[0] == [[1, 1, 0, 0, 0]] * 2 + [[1, 1, 1, 1, 0]] * 2 + [[1, 1, 0, 0, 1]]
    assert mask[1] == [[1, 1, 0, 0, 0]] * 2 + [[1, 1, 1, 0, 0]] + [[1, 1, 0, 1, 1]] * 2
