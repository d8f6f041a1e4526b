"""What single claims measure, by definitions and independent counts, and what their pictures show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.core.errors import DataError
from vitrail.data.published import published_results
from vitrail.lab import association, double_if
from vitrail.lab.association import Association
from vitrail.lab.batch_norm import BatchNorm
from vitrail.lab.convolution_by_attention import (
    PatchSets,
    associated_share,
    attend_as_convolution,
    distance_to_convolution,
    squares_of,
    unit_vector,
)
from vitrail.lab.data_hunger import MODELS, DataHunger, _open
from vitrail.lab.double_if import DoubleIf
from vitrail.lab.hardware_efficiency import HardwareEfficiency
from vitrail.lab.harness import Progress, Row, num_parameters, rows_of
from vitrail.lab.length_cost import WINDOW, build_layer, count_memory, forward_of
from vitrail.lab.model_sizes import QUOTED, CountedRow, ModelSizes, QuotedRow
from vitrail.lab.permutation import Permutation
from vitrail.lab.receptive_field import ReceptiveField
from vitrail.lab.split_heads import build_heads
from vitrail.lab.token_functions import LAYERS, attend_by_hand, draw_symbols, greatest_error

NUM_SYMBOLS = 7


def test_the_memory_of_attention_is_counted_by_its_weights() -> None:
    short, long = (count_memory("attention", 8, length) for length in (64, 256))
    assert short.attention_bytes == 4 * 4 * 64 * 64  # heads, bytes, queries, keys
    assert long.attention_bytes == 16 * short.attention_bytes
    assert long.fused_bytes < 5 * short.fused_bytes  # the fused kernel writes no weights
    assert count_memory("windows", 8, 4 * WINDOW).attention_bytes == 4 * 4 * 4 * WINDOW * WINDOW
    assert count_memory("recurrent", 8, 64).attention_bytes == 0


def test_windows_see_their_own_tokens_alone() -> None:
    x = torch.randn(1, WINDOW + 5, 8, requires_grad=True)  # a length that is not a multiple
    forward_of(build_layer("windows", 8), x)()[0, 2].sum().backward()
    assert x.grad is not None
    seen = x.grad.abs().sum(dim=-1)[0] > 0
    assert seen[:WINDOW].all()
    assert not seen[WINDOW:].any()


def test_one_set_of_patches_shows_the_class_and_noise_is_beside_the_feature() -> None:
    generator = torch.Generator().manual_seed(0)
    belongs, feature = squares_of(4), unit_vector(5, generator)
    assert belongs[0].nonzero().flatten().tolist() == [0, 1, 4, 5], "squares are neighbours"
    assert (belongs.sum(dim=1) == 4).all()

    patches, sign = PatchSets(belongs, feature, noise=0.5, distraction=0.3, generator=generator).draw(30)

    shown = patches @ feature  # one of -1, 0, 1 in each patch
    torch.testing.assert_close(shown, shown.round(), atol=1e-5, rtol=0)
    agrees = (shown.round() == sign[:, None]).float() @ belongs.float() == 4
    assert agrees.any(dim=1).all()
    assert 0.3 < float((patches - shown[..., None] * feature).std()) < 0.5
    assert set(sign.tolist()) == {-1.0, 1.0}


def test_patches_are_associated_only_with_the_whole_set() -> None:
    belongs = squares_of(4)
    weights = belongs.float()
    assert associated_share(weights, belongs) == 1.0

    weights[0, 0], weights[0, 15] = 0.0, 0.5
    assert associated_share(weights, belongs) == 15 / 16


def test_attention_that_is_written_down_is_the_convolution() -> None:
    errors = [distance_to_convolution(alpha, side=6, dim=5, size=3, seed=2) for alpha in (1.0, 4.0, 12.0)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3

    image, kernel = torch.randn(2, 5, 7), torch.zeros(1, 2, 3, 3)
    kernel[0, 1, 0, 2] = 2.0  # the position above, to the right
    shifted = attend_as_convolution(image, kernel, 20.0)
    torch.testing.assert_close(shifted[0, 1:, :-1], 2 * image[1, :-1, 1:])


def test_the_models_of_data_hunger_are_equally_large() -> None:
    configs = DataHunger()._configs(10)

    sizes = {name: num_parameters(configs[name].build()) for name in MODELS}

    assert all(0.9 < size / sizes["ViT"] < 1.1 for size in sizes.values())


def test_without_fashion_mnist_digits_are_used_and_other_data_must_suffice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("vitrail.tasks.classification.opening.FASHION_FOLDER", tmp_path)
    monkeypatch.delenv("VITRAIL_DATA", raising=False)
    assert _open("fashion-mnist").source == "digits"
    with pytest.raises(DataError):
        _open("no-such-data")

    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(8):
            picture = np.full((8, 8, 3), 9 * number, dtype=np.uint8)
            Image.fromarray(picture).save(tmp_path / name / f"{number}.png")
    with pytest.raises(DataError, match="training images"):
        DataHunger(data=str(tmp_path), image_size=8).run(ignore, seed=0)


def test_targets_of_the_association_are_those_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    symbols = draw_symbols(NUM_SYMBOLS, generator)
    partner = association._draw_partners(NUM_SYMBOLS, generator)
    drawn = association._draw(symbols, partner, generator, 40, 4)

    numbers = (drawn.tokens @ symbols.T).argmax(dim=-1)  # of the symbols; 7 is the stop
    wanted = partner[numbers[:, 0]]
    belongs = (numbers == wanted[:, None]).double()
    expected = (belongs[..., None] * drawn.tokens).sum(dim=1)

    torch.testing.assert_close(drawn.target, expected)
    assert 0 < int(belongs.sum()) < 40
    assert sorted(partner.tolist()) == list(range(NUM_SYMBOLS))
    assert (partner != torch.arange(NUM_SYMBOLS)).all()
    assert all(len(set(row)) == 5 for row in numbers.tolist()), "a symbol stands twice"


def test_targets_of_the_double_if_are_those_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    symbols = draw_symbols(NUM_SYMBOLS, generator)
    drawn = double_if._draw(symbols, 2, generator, 60, 5)

    numbers = (drawn.tokens @ symbols.T).argmax(dim=-1)
    counts = (numbers[:, 0] == double_if.ASKED) * (numbers == double_if.COUNTED).sum(dim=1)

    torch.testing.assert_close(drawn.target, counts[:, None] * symbols[double_if.COUNTED])
    assert set(counts.tolist()) == {0, 1, 2}


def test_by_hand_the_error_falls_like_an_exponential() -> None:
    generator = torch.Generator().manual_seed(1)
    symbols, scores, values, draw = DoubleIf(num_symbols=NUM_SYMBOLS, most=2).write_down(generator)
    drawn = draw(50, 6)

    errors = [greatest_error(attend_by_hand(scores, values, symbols, alpha), drawn) for alpha in (6.0, 7.0)]

    assert errors[0] / errors[1] == pytest.approx(torch.e, rel=0.05)
    assert errors[0] < 0.02


def test_convolutions_are_given_at_least_as_many_parameters() -> None:
    claim = Association(
        length=5, longer=7, num_steps=1, batch_size=3, learning_rate=0.01, num_tested=3, num_symbols=9
    )
    draw = claim.write_down(torch.Generator().manual_seed(2)).draw

    count = {name: next(claim.learn(name, draw, 10, 2)).parameters for name in LAYERS}

    assert count["attention"] == 4 * 10 * 10 + 10
    assert all(count["attention"] <= count[name] < 1.2 * count["attention"] for name in LAYERS)


def test_what_v1_alone_tells_is_the_variance_of_the_count() -> None:
    assert DoubleIf(most=3).blind_error == pytest.approx(1.25 / 3.5)
    assert DoubleIf(most=1).blind_error == pytest.approx(Association().blind_error)


def test_parameters_of_published_tables_are_met_a_wrong_one_is_noticed_and_quotes_do_not_decide() -> None:
    claim = ModelSizes(parts=("parameters",))
    rows = claim.run(ignore, seed=0)
    assert claim.judge(rows).verdict == "holds"

    off_by_one_model = [change(row, "ViT-Huge", deviation=-0.5) for row in rows]
    assert claim.judge(off_by_one_model).verdict == "partly"

    off_by_two = [change(row, "ViT-Base", deviation=0.04) for row in off_by_one_model]
    assert claim.judge(off_by_two).verdict == "does not hold"

    assert len(rows_of(rows, QuotedRow)) == len(QUOTED)
    assert f"{len(QUOTED)} more are only quoted" in claim.judge(rows).measured
    assert all(row.quoted > 0 for row in rows_of(rows, QuotedRow))


def test_quoted_tables_are_whole_and_agree_where_they_overlap() -> None:
    vit = "Dosovitskiy et al. 2021, table "
    rows = published_results()
    count = {number: sum(row.source == vit + number for row in rows) for number in ("2", "5", "6")}
    assert count == {"2": 35, "5": 84, "6": 18 * 7}
    table_5, table_6 = (
        {
            (row.model, row.quantity): row.value
            for row in rows
            if row.source == vit + number and "JFT" in row.trained_on
        }
        for number in ("5", "6")
    )
    for model, epochs in (("ViT-B/32", 7), ("ViT-B/16", 7), ("ViT-L/32", 7), ("ViT-L/16", 14)):
        for quantity in ("imagenet", "imagenet-real", "cifar10", "cifar100", "oxford-pets", "flowers102"):
            assert table_5[model, quantity] == table_6[f"{model}, {epochs} epochs", quantity]
    # Twice the epochs are twice the compute.
    once, twice = (table_6[f"ViT-L/16, {epochs} epochs", "exaFLOPs"] for epochs in (7, 14))
    assert twice == pytest.approx(2 * once, rel=0.01)
    assert not any(
        row.quantity == "exaFLOPs" and "+" not in row.model and row.model.startswith("ViT-B")
        for row in QUOTED
    )


def test_the_picture_of_sizes_shows_accuracy_over_data_and_compute_and_bleu_over_flops() -> None:
    claim = ModelSizes(parts=("parameters",))

    _, data, compute, translators = claim.draw(claim.run(ignore, seed=0)).axes

    curves = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in data.lines}
    assert curves["BiT ResNet152x4"] == [81.30, 85.39, 87.54]
    assert curves["ViT-L/16"] == [76.53, 85.15, 87.12]
    assert curves["ViT-H/14"] == [85.13, 88.04]
    assert {text.get_text() for text in compute.get_legend().get_texts()} == {"ViT", "hybrid", "ResNet (BiT)"}
    assert sum(len(each.get_offsets()) for each in compute.collections) == 18
    assert {"Transformer big", "GNMT + RL"} <= {
        text.get_text() for text in translators.get_legend().get_texts()
    }


def test_a_grid_of_56_patches_has_the_published_attention_and_windows_have_less() -> None:
    claim = ModelSizes(parts=("attention",))
    rows = rows_of(claim.run(ignore, seed=0), CountedRow)

    computed = {row.model: row.counted for row in rows if row.quantity.endswith("as computed")}

    assert computed == {
        "56 x 56 patches, global": 9_834_496,
        "56 x 56 patches, windows of 7 x 7": 64 * 49 * 49,
    }
    assert claim.judge(rows).verdict == "holds"


def test_the_picture_of_receptive_fields_has_whole_layers_and_a_scale_and_hides_no_curve() -> None:
    claim = ReceptiveField(num_seeds=1, depths=(1, 3))

    *maps, curves, beside = claim.draw(claim.run(ignore, seed=0)).axes

    assert len(maps) == 6
    assert beside.child_axes[0].get_xlabel().startswith("gradient of a position")
    assert curves.get_xticks().tolist() == [1, 3, 20]
    strided, dilated = (line for line in curves.lines if line.get_label() in ("strided", "dilated"))
    np.testing.assert_array_equal(strided.get_ydata(), dilated.get_ydata())
    assert strided.get_linewidth() > 2 * dilated.get_linewidth()


@pytest.mark.parametrize("stack", ["stacked", "strided", "dilated"])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_the_field_of_a_convolution_is_in_the_middle_of_the_image(stack: str, depth: int) -> None:
    gradient = ReceptiveField(size=48)._gradient(stack, depth, 0)  # type: ignore[arg-type]

    for axis in (0, 1):
        (seen,) = (gradient.sum(dim=axis) > 0).nonzero(as_tuple=True)
        assert (seen[0] + seen[-1]).item() == 48


def test_operations_are_equal_and_a_comparison_that_is_open_decides_nothing() -> None:
    claim = HardwareEfficiency(models=("resnet18",), image_size=64, batch_size=2, rounds=2)
    rows = claim.run(ignore, seed=0)
    assert [(row.model, row.vit_depth, row.passes) for row in rows] == [
        ("resnet18", 5, "forward"),
        ("resnet18", 5, "training step"),
    ]
    for row in rows:
        assert row.vit_gmacs == pytest.approx(row.gmacs, rel=0.1)
        assert row.lower <= row.ratio <= row.upper
        assert row.upper > 0.5 * row.vit_gflops / row.gflops > 0.25 * row.lower

    def judged(*ranges: tuple[float, float]) -> str:
        given = [
            row.model_copy(update={"lower": low, "upper": high})
            for row, (low, high) in zip([*rows, *rows], ranges, strict=False)
        ]
        return claim.judge(given).verdict

    assert judged((1.1, 2), (1.5, 3)) == "holds"
    assert judged((1.1, 2), (0.5, 0.9)) == judged((0.5, 0.9), (0.9, 0.95)) == "does not hold"
    assert judged((1.1, 2), (0.9, 1.2)) == "undecided"
    assert judged((1.1, 2), (1.1, 2), (0.5, 0.9)) == "partly"


def test_both_bounds_of_the_picture_of_permutations_are_named() -> None:
    claim = Permutation(num_seeds=1)

    (axes,) = claim.draw(claim.run(ignore, seed=0)).axes

    bounds = {line.get_label(): np.asarray(line.get_ydata())[0] for line in axes.lines}
    assert bounds == {"above: the order matters": 1e-3, "below: rounding alone": 1e-10}
    assert axes.get_legend() is not None


def change(row: Any, model: str, **values: object) -> Row:
    """Return the row with other values if it is the model's."""
    return row.model_copy(update=values) if getattr(row, "model", None) == model else row  # type: ignore[no-any-return]


def ignore(progress: Progress) -> None:
    """Do nothing with it."""


def test_split_heads_keep_to_their_channels_while_they_learn() -> None:
    model, num_held = build_heads("split", 12, 3)
    task = Association(num_symbols=11, length=3, longer=3, num_steps=5)
    draw = task.write_down(torch.Generator().manual_seed(0)).draw
    attention = model.layers[0]
    before = attention.qkv.weight.clone()
    task.train(model, draw)

    blocks = attention.qkv.weight.unflatten(0, (3, 3, 4)).unflatten(
        -1, (3, 4)
    )  # q k v, head, own, part, channel
    for head in range(3):
        assert blocks[:, head, :, head].ne(0).all()
        assert (
            not blocks[:, head]
            .index_select(2, torch.tensor([part for part in range(3) if part != head]))
            .any()
        )
    assert not torch.equal(attention.qkv.weight, before)
    assert num_held == 3 * (12 * 12 - 3 * 4 * 4)


def test_narrow_heads_have_no_more_parameters_than_split_ones() -> None:
    (narrow, _), (split, num_held) = (build_heads(name, 24, 4) for name in ("narrow", "split"))
    assert num_parameters(narrow) <= num_parameters(split) - num_held
    assert narrow.layers[0].head_dim == 2


def test_sentences_to_copy_end_and_are_padded() -> None:
    batch = BatchNorm(max_length=5, batch_size=40)._draw(torch.Generator().manual_seed(0))
    assert sorted(set(batch.source_lengths.tolist())) == [3, 4, 5, 6]
    for source, length, given, labels in zip(
        batch.source, batch.source_lengths, batch.decoder_input, batch.labels, strict=True
    ):
        assert (source[:length] > 2).sum() == length - 1
        assert source[length - 1] == 2
        assert not source[length:].any()
        assert labels[:length].tolist() == source[:length].tolist()
        assert (labels[length:] == -100).all()
        assert given[0] == 1
        assert given[1:length].tolist() == source[: length - 1].tolist()
