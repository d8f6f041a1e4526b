"""The verdict of the typographic attack: what decides it, and what leaves it undecided."""

from __future__ import annotations

import pytest

from vitrail.lab.typographic import DEFENCES, FEWEST, DefenceRow, ImpossibleRow, TypographicRow, judge_attack

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
    judgement = judge_attack(make_rows(flipped))

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
    judgement = judge_attack(make_rows(flipped))

    assert judgement.verdict == verdict
    assert f"silencing: not possible for this model, because {REASON}" in judgement.measured
    assert ("undecided, because it hangs on silencing" in judgement.measured) == (verdict == "undecided")


def test_few_images_decide_nothing() -> None:
    judgement = judge_attack(make_rows(HELPED, num_images=FEWEST - 1))

    assert judgement.verdict == "undecided"
    assert f"because {FEWEST - 1} images are fewer than {FEWEST}" in judgement.measured


@pytest.mark.parametrize(("clean", "verdict"), [(0.2, "undecided"), (0.36, "undecided"), (0.39, "holds")])
def test_a_model_that_guesses_decides_nothing(clean: float, verdict: str) -> None:
    # One in four by chance, and two standard errors of 50 images are 0.12.
    judgement = judge_attack(make_rows(HELPED, clean=clean))

    assert judgement.verdict == verdict
    assert ("above the 25% of chance" in judgement.measured) == (verdict == "undecided")


def test_a_defence_that_costs_too_much_does_not_count() -> None:
    dear = [
        row.model_copy(update={"clean_accuracy": 0.8})
        if isinstance(row, DefenceRow) and row.defence == "masking"
        else row
        for row in make_rows(HELPED)
    ]

    assert judge_attack(dear).verdict == "partly"
