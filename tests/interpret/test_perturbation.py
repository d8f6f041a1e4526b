"""Covering patches of images, and what the perturbation test makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.interpret.perturbation import (
    Faithfulness,
    cover,
    curve_shares,
    fill_images,
    mean_interval,
    patch_of_pixels,
    perturb,
)


def test_patches_tile_an_image_and_differ_by_one_pixel_at_most():
    patches = patch_of_pixels((5, 7), (2, 3))
    assert patches.unique().tolist() == list(range(6))
    assert patches[:, 0].tolist() == [0, 0, 0, 3, 3]
    assert patches[0].tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_only_covered_patches_take_the_filling():
    images, filling = torch.rand(2, 3, 4, 6), -torch.ones(1, 3, 4, 6)
    is_covered = torch.zeros(2, 2, 3, dtype=torch.bool)
    is_covered[0, 1, 2] = True

    covered = cover(images, filling, is_covered)

    assert (covered[0, :, 2:, 4:] == -1).all()
    assert torch.equal(covered[1], images[1])
    assert torch.equal(covered[0, :, :2], images[0, :, :2])


def test_blur_keeps_colours_and_takes_shapes_away():
    flat = torch.full((1, 3, 9, 6), 0.3)
    board = (torch.arange(9)[:, None] + torch.arange(6)).remainder(2).float().expand(1, 3, 9, 6)

    torch.testing.assert_close(fill_images(flat, "blur"), flat)
    blurred = fill_images(board, "blur")
    assert blurred.std() < 0.1 * board.std()
    assert not fill_images(board, "mean").any()


class Corner(nn.Module):
    """Its class is there as far as the first of 2x3 patches is bright."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        bright = images[:, :, :2, :2].mean(dim=(1, 2, 3))
        return torch.stack((4 * bright, -4 * bright), dim=1)


IMAGE = torch.ones(1, 3, 4, 6)


def test_covering_what_the_model_reads_first_makes_its_class_fall_at_once_and_last_at_the_end():
    right, wrong = torch.tensor([[9.0, 1, 2], [3, 4, 5]]), torch.tensor([[0.0, 1, 2], [3, 4, 5]])
    first = perturb(Corner(), IMAGE, 0, right, filling="mean", num_steps=6)
    last = perturb(Corner(), IMAGE, 0, wrong, filling="mean", num_steps=3)

    sure, undecided = torch.sigmoid(torch.tensor(8.0)), torch.tensor(0.5)
    torch.testing.assert_close(first.deletion, torch.tensor([sure, *[undecided] * 6]))
    torch.testing.assert_close(first.insertion, torch.tensor([undecided, *[sure] * 6]))
    assert last.deletion.tolist()[:-1] == pytest.approx([last.deletion[0].item()] * 3)
    assert last.deletion[-1].item() == pytest.approx(0.5)


def test_equal_patches_come_in_an_order_of_the_seed_alone():
    def deletion(seed: int) -> torch.Tensor:
        return perturb(Corner(), IMAGE, 0, torch.zeros(2, 3), filling="mean", num_steps=6, seed=seed).deletion

    assert len({int(deletion(seed).lt(0.6).int().argmax()) for seed in range(12)}) > 2
    assert torch.equal(deletion(3), deletion(3))


def test_steps_are_of_different_patches():
    assert curve_shares(6, 3) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert curve_shares(3, 16) == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_an_interval_holds_the_mean_and_narrows_with_images():
    draw = np.random.default_rng(0).normal(3, 1, size=400)
    few, many = mean_interval(draw[:16]), mean_interval(draw)
    assert few.lower < few.mean < few.upper
    assert many.upper - many.lower < 0.5 * (few.upper - few.lower)
    assert mean_interval(draw) == many
    assert many.lower < 3 < many.upper
    flat = {"a": np.stack([draw - 0.1] * 2, axis=1), "random": np.stack([draw] * 2, axis=1)}
    measured = Faithfulness(deletion=flat, insertion=flat, shares=[0, 1], grid=(1, 1), filling="mean")
    lower, reference = measured.scores()
    assert (lower.method, reference.deletion_against) == ("a", {})
    assert lower.deletion_against["random"].upper == pytest.approx(-0.1)  # paired by image


def test_the_lowest_deletion_comes_first_and_is_held_against_random_and_attention():
    fast, slow = np.array([[1.0, 0.2, 0.0]] * 4), np.array([[1.0, 0.9, 0.0]] * 4)
    measured = Faithfulness(
        deletion={"attention": slow, "relevance": fast, "random": slow},
        insertion={"attention": fast, "relevance": slow, "random": fast},
        shares=[0.0, 0.5, 1.0],
        grid=(1, 2),
        filling="mean",
    )

    first, *others = measured.scores()

    assert first.method == "relevance"
    assert first.deletion.mean == pytest.approx(0.35)
    assert {name: round(each.mean, 3) for name, each in first.deletion_against.items()} == {
        "random": -0.35,
        "attention": -0.35,
    }
    assert {each.method for each in others} == {"attention", "random"}
    tree = measured.to_json()
    assert tree["images"] == 4
    assert tree["methods"]["relevance"]["deletion_curve"] == [1.0, 0.2, 0.0]
