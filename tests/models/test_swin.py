import pytest
import torch

from vitrail.interpret import record_attention
from vitrail.models import build

SMALL = {
    "patch_size": 2,
    "width": 6,
    "depths": (2, 2),
    "num_heads": (1, 3),
    "window_size": 3,
    "drop_path": 0.0,
    "num_classes": 5,
    "image_size": (16, 24),
}


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_maps_stay_inside_the_windows_of_the_image(name):
    model = build(name, **SMALL).eval()
    with torch.no_grad(), record_attention(model) as maps:
        model(torch.randn(2, 3, 13, 27))

    assert [each.grid for each in maps] == [(7, 14), (7, 14), (4, 7), (4, 7)]
    plain, shifted = (each.weights[:, :, 7 * 14 // 2].unflatten(-1, (7, 14)) for each in maps[:2])
    for weights, rows, columns in ((plain, slice(3, 6), slice(6, 9)), (shifted, slice(1, 4), slice(7, 10))):
        assert (weights[..., rows, columns] > 0).all()
        torch.testing.assert_close(weights[..., rows, columns].sum((-2, -1)), torch.ones(weights.shape[:2]))


@pytest.mark.parametrize("name", ["swin_t", "swinv2_t"])
def test_recording_changes_no_bit_at_any_size(name):
    model, images = build(name, **SMALL).eval(), torch.randn(2, 3, 37, 53)
    with torch.no_grad():
        expected = model(images)
        with record_attention(model):
            assert torch.equal(model(images), expected)


def test_distances_are_measured_by_the_windows_of_the_training_before():
    tuned, plain = (build("swinv2_t", **SMALL, trained_windows=windows) for windows in ((2, 2), ()))
    tuned.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 16, 24)
    assert not torch.allclose(tuned(images), plain(images))
