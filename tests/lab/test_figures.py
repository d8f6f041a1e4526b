"""Figures: drawn by the layers, and equal to what can be counted by hand."""

from __future__ import annotations

import json
import re
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from making.bert_folder import write_bert_folder
from making.colour_clip import load_colour_clip, write_colour_images
from vitrail.cli import main
from vitrail.core.errors import DataError
from vitrail.lab.figures import FIGURES
from vitrail.lab.figures.drawing import draw_figure
from vitrail.lab.figures.images import draw_borders
from vitrail.lab.figures.masks import attended_regions, masks_of
from vitrail.lab.figures.norms import Norms, normalised_together
from vitrail.lab.small_clip import SmallClip
from vitrail.nn.windows import fit_windows, window_positions
from vitrail.tasks.contrastive.predictor import ImageTextEncoder
from vitrail.tasks.labelling.predictor import Labeller

# Little enough to be drawn in moments.
TINY: dict[str, dict[str, Any]] = {
    "attention": {"text": ["a dog runs"], "dim": 6},
    "causal_mask": {"text": ["a dog runs"]},
    "neighbourhood_mask": {"grid": "2x3"},
    "norms": {"batch_size": 2, "channels": 4, "positions": 3},
    "padding_mask": {"text": ["a dog", "dogs"]},
    "patches": {"image_size": "8x12", "patch_size": 4},
    "positional_attention": {"side": 4, "num_steps": 1},
    "relative_index": {"window": "2x2"},
    "shifted_mask": {"grid": "4x4", "window": "2x2"},
    "sinusoidal": {"num_tokens": 5, "dim": 6},
    "typographic": {},
    "windows": {"image_size": "16x16", "patch_size": 4, "window": "2x2"},
    "word_in_context": {"text": ["a dog runs", "run, dog"], "word": "run"},
}
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture(autouse=True)
def colour_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a CLIP that knows colours for every model, and for the small one that would be trained."""
    module = import_module("vitrail.lab.figures.typographic")
    monkeypatch.setattr(module, "ImageTextEncoder", lambda source: ImageTextEncoder(load_colour_clip()))
    monkeypatch.setattr(SmallClip, "train_clip", lambda *_: ImageTextEncoder(load_colour_clip()))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bert")
    write_bert_folder(folder, "none")
    return f"hf:{folder}"


@pytest.fixture(autouse=True)
def small_bert(monkeypatch: pytest.MonkeyPatch, bert: str) -> None:
    monkeypatch.setitem(TINY["word_in_context"], "model", bert)


def test_a_word_has_one_vector_in_the_table_and_others_in_context(bert: str) -> None:
    table, context = matrices_of("word_in_context", **TINY["word_in_context"])
    labeller = Labeller(bert)
    pieces = [labeller.embed(text) for text in TINY["word_in_context"]["text"]]
    assert [each[0] for each in pieces] == [
        ["[CLS]", "a", "dog", "run", "##s", "[SEP]"],
        ["[CLS]", "run", "[UNK]", "dog", "[SEP]"],
    ]
    first, second = pieces[0][1][[3, 4]].mean(dim=0), pieces[1][1][[1, 2]].mean(dim=0)
    assert context[0, 1] == pytest.approx(float(torch.cosine_similarity(first, second, dim=0)), abs=1e-6)
    np.testing.assert_allclose(np.diagonal(table), 1, rtol=1e-6)
    same = matrices_of("word_in_context", text=["a run", "dog run."], word="run", model=bert)[0]
    assert same[0, 1] < 1  # the full stop belongs to the word that spaces divide
    with pytest.raises(DataError, match="'a dog' lacks the word 'run'"):
        matrices_of("word_in_context", text=["a dog", "run"], word="run", model=bert)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_described_and_is_the_same_file_at_every_call(name: str, tmp_path: Path) -> None:
    assert min(map(len, (FIGURES[name].shows, FIGURES[name].source))) > 15

    for suffix, magic in MAGIC.items():
        # All figures are written by one function: one of them shows whether it repeats itself in each format.
        times = 2 if suffix == ".svg" or name == "causal_mask" else 1
        written = [tmp_path / f"{number}{suffix}" for number in range(times)]
        for path in written:
            draw_figure(name, path, **TINY[name])
        assert written[0].read_bytes().startswith(magic)
        assert written[0].read_bytes() == written[-1].read_bytes()


def matrices_of(name: str, **settings: Any) -> list[np.ndarray]:
    return [each.values for each in FIGURES[name].with_changes(settings).draw().matrices]


def test_sinusoidal_positions_are_those_of_the_formula() -> None:
    (table,) = matrices_of("sinusoidal", num_tokens=7, dim=6)

    expected = [
        [(np.cos if c % 2 else np.sin)(p / 10_000 ** ((c - c % 2) / 6)) for c in range(6)] for p in range(7)
    ]
    assert np.allclose(table, expected, atol=1e-6)


def test_the_relative_index_of_a_window_is_that_of_the_table() -> None:
    patches, table, index = matrices_of("relative_index", window="2x2")

    assert table.shape == (3, 3)
    for query, key in product(range(4), repeat=2):
        (down, right), (row, column) = divmod(query, 2), divmod(key, 2)
        assert index[patches.flat[query], patches.flat[key]] == table[down - row + 1, right - column + 1]


def test_masks_of_words_are_those_of_their_lengths() -> None:
    (causal,) = matrices_of("causal_mask", text=["a dog runs"])
    padding = matrices_of("padding_mask", text=["a dog runs", "dogs"])
    joined = matrices_of("padding_mask", text=["a dog runs", "two dogs"], causal=True)

    assert causal.tolist() == np.tril(np.ones((3, 3))).astype(bool).tolist()
    assert [each.astype(int).tolist() for each in padding] == [[[1, 1, 1]] * 3, [[1, 0, 0]] * 3]
    assert joined[1].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize(("grid", "window"), [((8, 8), (4, 4)), ((9, 10), (4, 3)), ((5, 14), (7, 7))])
@pytest.mark.parametrize("shifted", [False, True])
def test_patches_see_each_other_inside_the_windows_of_the_plane(
    grid: tuple[int, int], window: tuple[int, int], shifted: bool
) -> None:
    windows = fit_windows(grid, window, shifted=shifted)

    regions = attended_regions(windows)

    of_plane = {
        (row, column): (
            (row - windows.shift[0]) // windows.size[0],
            (column - windows.shift[1]) // windows.size[1],
        )
        for row, column in product(*map(range, grid))
    }
    order = list(dict.fromkeys(of_plane.values()))
    assert regions.tolist() == [
        [order.index(of_plane[row, column]) for column in range(grid[1])] for row in range(grid[0])
    ]
    patches = window_positions(windows)
    for number, mask in enumerate(masks_of(windows)):
        for query, key in product(range(windows.num_tokens), repeat=2):
            first, second = patches[number, query], patches[number, key]
            if min(first, second) >= 0:
                assert mask[query, key] == (regions.flatten()[first] == regions.flatten()[second])


def test_borders_are_drawn_between_regions_and_around_the_image() -> None:
    axes = Figure().add_subplot()

    draw_borders(axes, torch.tensor([[0, 0, 1], [0, 0, 2]]), 4)

    edges = {tuple(map(tuple, np.stack(line.get_data(), axis=1).tolist())) for line in axes.lines}
    assert len(edges) == 10 + 2 + 1
    assert ((7.5, -0.5), (7.5, 3.5)) in edges
    assert ((7.5, 3.5), (11.5, 3.5)) in edges
    assert ((3.5, -0.5), (3.5, 3.5)) not in edges


def test_patches_are_pieces_of_the_image_row_by_row(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    figure = FIGURES["patches"].with_changes(
        {"image": str(tmp_path / "a.png"), "image_size": "8x12", "patch_size": 4}
    )

    _, _, row = figure.draw().figure.axes

    drawn = (
        np.asarray(row.images[0].get_array())[:, :4, :3],
        np.asarray(row.images[0].get_array())[:, -4:, :3],
    )
    assert np.allclose(drawn[0] * 255, pixels[:4, :4], atol=1e-3)
    assert np.allclose(drawn[1] * 255, pixels[4:, 8:], atol=1e-3)


def test_norms_average_over_the_axes_of_their_papers() -> None:
    shape = (3, 4, 5, 2)
    every = np.zeros(shape, dtype=bool)
    expected = {
        "batch norm": np.s_[:, -1],
        "layer norm of a token": np.s_[0, :, -1, -1],
        "layer norm of an image": np.s_[0],
        "instance norm": np.s_[0, -1],
        "group norm": np.s_[0, 2:],
    }

    for name, layer in Norms(channels=4, groups=2).layers().items():
        together = every.copy()
        together[expected[name]] = True
        assert np.array_equal(normalised_together(layer, shape).numpy(), together), name


def test_positional_attention_finds_the_neighbourhood() -> None:
    matrices = matrices_of("positional_attention", side=4, num_steps=400)

    learned, given = matrices[0], matrices[4]
    assert np.allclose(learned.sum(axis=1), 1, atol=1e-5)
    assert (given[0].reshape(4, 4) > 0).astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0] * 4, [0] * 4]
    near = learned[given > 0].sum() / len(learned)
    assert near > 0.6  # 0.25 before the training


def test_a_typographic_attack_has_both_tables_of_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photo,) = write_colour_images(tmp_path, ["red"])
    command = ["draw", "typographic", str(photo), "--model", "any", "--word", "green"]
    names = ["--set", 'names=["red","blue"]', "-o", str(tmp_path / "a.png")]

    assert main([*command, *names, "--json"]) == 0

    (table,) = json.loads(capsys.readouterr().out)["matrices"]
    assert sorted(table["rows"]) == ["blue", "green", "red"]
    assert table["rows"][0] == "red"
    assert np.allclose(np.sum(table["values"], axis=0), 1, atol=1e-5)
    before, after = table["values"][0]
    assert before > after  # the word covers some of the red

    assert main([*command, *names]) == 0
    shown = capsys.readouterr()
    assert re.search(r"^class +before +after$", shown.out, re.MULTILINE)
    assert not shown.err
    assert main(["draw", "typographic", "-o", str(tmp_path / "b.png")]) == 0
    assert "training a small CLIP for about a minute" in capsys.readouterr().err


def test_a_head_by_hand_is_computed_step_by_step() -> None:
    x = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
    query = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
    key = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
    value = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]

    steps = FIGURES["attention"].with_changes(
        {"x": x, "query": query, "key": key, "value": value, "causal": True}
    )
    found = {each.name.split(" ")[0]: each.values for each in steps.draw().matrices}

    q, k, v = (np.array(x) @ np.array(each) for each in (query, key, value))
    scaled = q @ k.T / np.sqrt(3)
    weights = np.exp(np.where(np.tril(np.ones((3, 3))) > 0, scaled, -np.inf))
    weights /= weights.sum(axis=1, keepdims=True)
    assert q.tolist() == [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
    expected = {
        "X": x,
        "Q": q,
        "K": k,
        "V": v,
        "scores": q @ k.T,
        "scaled": scaled,
        "softmax": weights,
        "Z": weights @ v,
    }
    for name, values in expected.items():
        assert np.allclose(found[name], values, atol=1e-5), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["causal_maks"], "Did you mean 'causal_mask'"),
        (["causal_mask", "-o", "mask.gif"], "ends in .png, .svg or .pdf"),
        (["causal_mask", "-o", "mask"], "ends in .png, .svg or .pdf"),
        (["causal_mask", "--text", "   "], "no word"),
        (["causal_mask", "--text", "a", "--text", "b"], "at most 1 item"),
        (["causal_mask", "photo.jpg"], "takes no image file"),
        (["sinusoidal", "--text", "a dog"], "takes no --text. Expected one of attention, causal_mask"),
        (["sinusoidal", "--word", "ipod"], "takes no --word. Expected one of typographic, word_in_context"),
        (["sinusoidal", "--set", "dim=5"], "multiple of 2"),
        (["sinusoidal", "--set", "dims=6"], "Did you mean 'dim'"),
        (["norms", "--set", "groups=4"], "does not divide channels 6"),
        (["patches", "nowhere.jpg"], "nowhere.jpg"),
        (["patches", "--set", "patch_size=50"], "divides height and width"),
        (["windows", "--set", "patch_size=448"], "divides height and width"),
        (["typographic", "photo.jpg"], "without a CLIP"),
        (["typographic", "--set", "template=a photo"], "placeholders"),
        (["attention", "--set", "x=[[1,2],[3]]"], "equally long"),
        (["attention", "--set", "query=[[1,2]]"], "4 rows"),
        (["attention", "--set", "head=2"], "there is no head 2. Expected 1 to 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_a_file_is_written(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["draw", *arguments]) == 2

    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_the_figures_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw"]) == 0

    shown = capsys.readouterr().out
    assert [name for name in FIGURES if name not in shown] == []
