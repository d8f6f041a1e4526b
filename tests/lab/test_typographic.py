"""The typographic attack: words that are written, found and hidden, heads that read them, and the verdict."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image

from vitrail.core.errors import ConfigError
from vitrail.lab.small_clip import (
    COLOURS,
    SHAPES,
    WORDS,
    draw_scene,
    draw_shape,
    find_words,
    hide_words,
    small_config,
    to_pixels,
    write_word,
)
from vitrail.lab.typographic import (
    DEFENCES,
    FEWEST,
    DefenceRow,
    ExampleRow,
    ImpossibleRow,
    Predictions,
    Typographic,
    TypographicRow,
    _count,
    attack,
    choose_heads,
)

SIZE = 48


def draw_shapes(count: int) -> torch.Tensor:
    random = Random(3)
    colours = tuple(COLOURS)
    return to_pixels(
        [
            draw_shape(SHAPES[place % len(SHAPES)], colours[place % len(colours)], random, size=SIZE)
            for place in range(count)
        ]
    )


def test_a_word_changes_its_box_and_nothing_else() -> None:
    image, random = Image.new("RGB", (90, 60), (120, 130, 140)), Random(5)
    for word in ("moon", "a much longer word than fits"):
        written = write_word(image, word, random)
        left, top, right, bottom = written.box
        before, after = to_pixels([image])[0], to_pixels([written.image])[0]
        changed = (before != after).any(dim=0)
        assert changed[top:bottom, left:right].any()
        changed[top:bottom, left:right] = False
        assert not changed.any()
        assert 0 <= left < right <= 90
        assert 0 <= top < bottom <= 60


def test_the_same_draw_writes_the_same_and_another_another() -> None:
    image = Image.new("RGB", (48, 48), (200, 100, 0))
    first, again, other = (write_word(image, "ring", Random(seed)) for seed in (1, 1, 2))

    assert first.box == again.box
    assert first.image.tobytes() == again.image.tobytes() != other.image.tobytes()


def test_words_are_found_and_shapes_are_not() -> None:
    clean = draw_shapes(24)
    images = attack(clean, torch.arange(24) % len(SHAPES), SHAPES, Random(0))
    found = torch.stack([find_words(each) for each in images.attacked])
    covered = [(mask & box).sum() / box.sum() for mask, box in zip(found, images.has_word, strict=True)]

    assert torch.stack(covered).mean() > 0.6
    assert sum(bool(find_words(each).any()) for each in clean) <= 3


def test_an_image_without_a_word_is_left_as_it_is() -> None:
    plain = torch.full((3, 40, 56), 77, dtype=torch.uint8)
    assert torch.equal(hide_words(plain, 8), plain)
    texture = torch.zeros(3, 40, 56, dtype=torch.uint8)
    texture[:, :, ::2] = 255
    assert torch.equal(hide_words(texture, 8), texture), "all of it would be hidden"


def test_hidden_patches_have_the_colour_around() -> None:
    image = Image.new("RGB", (48, 48), (10, 200, 30))
    written = write_word(image, "cross", Random(4))
    hidden = hide_words(to_pixels([written.image])[0], 8)

    distance = (hidden.int() - to_pixels([image])[0].int()).abs().amax(dim=0)
    assert (distance > 60).float().mean() < 0.02


def test_a_large_image_is_looked_through_at_the_size_of_a_small_one() -> None:
    image = Image.new("RGB", (480, 360), (230, 230, 230))
    written = write_word(image, "house", Random(0))
    left, top, right, bottom = written.box
    found = find_words(to_pixels([written.image])[0])

    assert found.shape == (360, 480)
    assert found[top:bottom, left:right].float().mean() > 0.5
    assert not find_words(to_pixels([image])[0]).any()


def test_the_written_word_is_another_class_and_an_attack_needs_two() -> None:
    images = attack(draw_shapes(6), torch.arange(6), SHAPES, Random(1))
    assert (images.words != images.labels).all()
    assert (images.attacked != images.clean).flatten(1).any(dim=1).all()
    with pytest.raises(ConfigError, match="attack with 1 classes"):
        attack(draw_shapes(1), torch.zeros(1, dtype=torch.int64), ["star"], Random(1))


def test_scenes_mention_what_is_there() -> None:
    random, subwords = Random(0), WORDS
    scenes = [draw_scene(random, size=32) for _ in range(60)]

    assert {bool(scene.shape) for scene in scenes} == {bool(scene.word) for scene in scenes} == {True, False}
    for scene in scenes:
        mentioned = set(scene.caption.split()) & set(SHAPES)
        assert mentioned
        assert mentioned <= {scene.shape, scene.word}
        assert subwords.unknown_id not in subwords.encode([scene.caption])[0]
    assert any(scene.shape and scene.caption == scene.word for scene in scenes), (
        "none mentions its word alone"
    )


def test_heads_that_read_are_chosen_and_those_that_cost_are_not() -> None:
    labels, words = torch.arange(10) % 6, (torch.arange(10) + 1) % 6
    reads, useless = {("a", 0), ("b", 2)}, {("a", 1)}

    def predict(heads: Any) -> Predictions:
        """Each reading head that is silenced mends two in ten; a useless one costs clean images."""
        mended, lost = 0.2 + 0.2 * len(reads & set(heads)), 0.5 if useless & set(heads) else 0.0
        right = (torch.arange(10) < round(share * 10) for share in (1.0 - lost, mended))
        return Predictions(*(torch.where(each, labels, words) for each in right))

    scores = {("a", 0): 0.9, ("a", 1): 0.8, ("b", 2): 0.5, ("b", 0): 0.1}

    assert choose_heads(predict, labels, scores) == [("a", 0), ("b", 2)]


def test_an_answer_that_was_the_word_before_is_no_flip() -> None:
    images = attack(draw_shapes(4), torch.arange(4), SHAPES, Random(1))
    words, others = images.words, images.labels
    was_it_before = torch.stack((words[0], *others[1:]))
    row = _count(Predictions(was_it_before, words, 0.25), "masking", images, 3, num_classes=6)

    assert row.flipped == 0.75
    assert row.looked_for_words == 0.25


def give_model(folder: Path, monkeypatch: pytest.MonkeyPatch, **tower: object) -> Typographic:
    """Return the claim about an untrained model and 24 images of two classes, five of which it tests."""
    from vitrail.data.text_preprocessing import ImageTextPreprocessing
    from vitrail.models.checkpoint import LoadedModel
    from vitrail.tasks.contrastive import predictor as image_text

    for place, pixels in enumerate(draw_shapes(24)):
        of_class = folder / SHAPES[place % 2]
        of_class.mkdir(exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(of_class / f"{place}.png")
    preprocessing = ImageTextPreprocessing(image_size=(32, 32)).model_dump(mode="json")
    config = small_config(32, 8)
    config = config.with_changes({"image_model_settings": {**config.image_model_settings, **tower}})
    loaded = LoadedModel(config.build().eval(), {"name": "x"}, preprocessing, [], {})
    monkeypatch.setattr(image_text, "open_in_torch", lambda *asked, expected: loaded)
    monkeypatch.setattr(image_text, "vocabulary_from_files", lambda files: WORDS)
    return Typographic(weights="runs/x", images=str(folder), num_seeds=2, num_tested=3, num_calibration=2)


def test_a_given_model_is_attacked_on_given_images_and_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = give_model(tmp_path, monkeypatch)

    rows = claim.run(lambda progress: None, seed=0)

    counted = [row for row in rows if isinstance(row, DefenceRow)]
    assert [row.defence for row in counted] == [*DEFENCES, *DEFENCES]
    assert {(row.num_images, row.num_classes) for row in counted} == {(3, 2)}
    shares, _, examples = claim.draw(rows).axes
    assert shares.get_ylim() == (0, 1)
    insets = [inset for inset in examples.child_axes if inset.images]
    assert len(insets) == len(examples.texts) == 3, "those of the first seed"


def test_the_images_that_are_shown_are_those_that_were_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = give_model(tmp_path, monkeypatch)
    _, tested, _ = claim._prepare(1)
    rows = [
        ExampleRow(seed=1, index=index, true_class="", word="", undefended="", defended="")
        for index in (2, 0)
    ]

    shown = claim._attack_again(rows)

    for image, place in zip(shown, (2, 0), strict=True):
        assert torch.equal(torch.from_numpy(image).permute(2, 0, 1), tested.attacked[place])


@pytest.mark.parametrize(
    ("tower", "reason"),
    [
        ({"class_token": False, "pool": "mean"}, "the image tower has no class token"),
        ({"class_token": False, "pool": "mean", "mixer": "fourier"}, "mixes without attention"),
    ],
)
def test_a_model_whose_heads_cannot_be_silenced_is_said_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tower: dict[str, object], reason: str
) -> None:
    claim = give_model(tmp_path, monkeypatch, **tower)

    rows = claim.run(lambda progress: None, seed=0)

    impossible = [row for row in rows if isinstance(row, ImpossibleRow)]
    assert [(row.seed, row.defence) for row in impossible] == [(0, "silencing"), (1, "silencing")]
    assert reason in impossible[0].reason
    measured = claim.judge(rows).measured
    assert measured.count(f"silencing: not possible for this model, because {impossible[0].reason}") == 1
    shares, _ = claim.draw(rows).axes  # and no empty panel of heads
    assert [text.get_text() for text in shares.get_xticklabels()][-1] == "silencing:\nnot possible"


REASON = "it has no class token"
HELPED = {"none": 0.5, "prompts": 0.1, "masking": 0.1, "silencing": 0.1}


def make_rows(
    flipped: dict[str, float], *, num_images: int = FEWEST, clean: float = 0.95
) -> list[TypographicRow]:
    """Return what two seeds answer; a defence that is not named is not possible."""
    accuracies = {**dict.fromkeys(flipped, clean - 0.02), "none": clean}
    rows: list[TypographicRow] = []
    for seed in (0, 1):
        rows += [
            DefenceRow(
                seed=seed,
                defence=defence,
                clean_accuracy=accuracies[defence],
                attacked_accuracy=0.4,
                flipped=flipped[defence],
                looked_for_words=None,
                num_images=num_images,
                num_classes=4,
            )
            if defence in flipped
            else ImpossibleRow(seed=seed, defence=defence, reason=REASON)
            for defence in DEFENCES
        ]
    return rows


@pytest.mark.parametrize(
    ("flipped", "verdict"),
    [
        ({"none": 0.5, "prompts": 0.1, "masking": 0.2, "silencing": 0.3}, "holds"),
        ({"none": 0.5, "prompts": 0.1, "masking": 0.2, "silencing": 0.4}, "partly"),
        ({"none": 0.5, "prompts": 0.5, "masking": 0.5, "silencing": 0.5}, "does not hold"),
        ({"none": 0.1, "prompts": 0.0, "masking": 0.0, "silencing": 0.0}, "does not hold"),
    ],
)
def test_the_verdict_needs_the_attack_and_every_defence(flipped: dict[str, float], verdict: str) -> None:
    judgement = Typographic().judge(make_rows(flipped))

    assert judgement.verdict == verdict
    assert "not possible" not in judgement.measured
    assert f"({FEWEST} with each seed)" in judgement.measured


@pytest.mark.parametrize(
    ("flipped", "verdict"),
    [
        ({"none": 0.5, "prompts": 0.1, "masking": 0.2}, "undecided"),  # it may hold
        ({"none": 0.5, "prompts": 0.5, "masking": 0.5}, "undecided"),  # it may hold partly
        ({"none": 0.5, "prompts": 0.1, "masking": 0.5}, "partly"),  # whatever silencing would do
        ({"none": 0.1, "prompts": 0.0, "masking": 0.0}, "does not hold"),
    ],
)
def test_a_defence_that_is_not_possible_is_named_and_may_leave_all_undecided(
    flipped: dict[str, float], verdict: str
) -> None:
    judgement = Typographic().judge(make_rows(flipped))

    assert judgement.verdict == verdict
    assert f"silencing: not possible for this model, because {REASON}" in judgement.measured
    assert ("undecided, because it hangs on silencing" in judgement.measured) == (verdict == "undecided")


@pytest.mark.parametrize(
    ("options", "verdict", "doubt"),
    [
        ({"num_images": FEWEST - 1}, "undecided", f"because {FEWEST - 1} images are fewer than {FEWEST}"),
        # One in four by chance, and two standard errors of 50 images are 0.12.
        ({"clean": 0.2}, "undecided", "above the 25% of chance"),
        ({"clean": 0.36}, "undecided", "above the 25% of chance"),
        ({"clean": 0.39}, "holds", ""),
    ],
)
def test_few_images_and_a_model_that_guesses_decide_nothing(
    options: dict[str, Any], verdict: str, doubt: str
) -> None:
    judgement = Typographic().judge(make_rows(HELPED, **options))

    assert judgement.verdict == verdict
    assert doubt in judgement.measured
    assert ("chance" in judgement.measured) == ("chance" in doubt)


def test_a_defence_that_costs_too_much_does_not_count() -> None:
    dear = [
        row.model_copy(update={"clean_accuracy": 0.8})
        if isinstance(row, DefenceRow) and row.defence == "masking"
        else row
        for row in make_rows(HELPED)
    ]

    assert Typographic().judge(dear).verdict == "partly"
