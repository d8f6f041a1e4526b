"""The table, the sentences, the pictures and the page of a comparison."""

from __future__ import annotations

import pytest

from making.comparisons import make_run
from vitrail.studies.comparison import (
    SCORES,
    ComparedRun,
    Comparison,
    PairTest,
    comparison_table,
    concluded,
    conditions,
    format_count,
    join_names,
    stand,
)
from vitrail.studies.comparison_page import (
    MORE_COLOURS,
    join_curves,
    looks_of,
    pareto_front,
    write_comparison,
)


def state(comparison: Comparison) -> tuple[str, ...]:
    return concluded(comparison).statements


def pair_of(first: str, second: str, p: float, *, lower: float = 0.01, **changes: object) -> PairTest:
    fields = {"difference": 0.05, "lower": lower, "upper": 0.09, "p": p / 3, "p_corrected": p, **changes}
    return PairTest(first=first, second=second, test="mcnemar", **fields)


@pytest.fixture
def comparison() -> Comparison:
    runs = (
        make_run("attention"),
        ComparedRun(name="fourier", seed=3, error="the loss <b>became</b> NaN"),
        make_run("pooling", score=0.9),
        ComparedRun(name="mlp", seed=3),
    )
    standings = (stand(runs[2:3], (0.8, 0.95)), stand(runs[:1], (0.8, 0.93)))
    return Comparison(
        kind="mixer",
        data="photos/",
        score="accuracy",
        budget_s=90.0,
        changes={"train.batch_size": 8},
        runs=runs,
        standings=standings,
        pairs=(pair_of("pooling", "attention", 0.3, lower=-0.01),),
    )


def test_the_table_begins_with_the_highest_score(comparison):
    header, rows = comparison_table(comparison)
    assert header == ["mixer", "accuracy", "95 %", "steps", "param.", "MACs", "samples/s", "peak MiB"]
    assert rows[0] == ["pooling", "90.0%", "80.0-95.0", "200", "1.23 M", "45.6 M", "1,234", "512"]
    assert rows[1][:3] == ["attention", "87.5%", "80.0-93.0"]
    assert rows[2] == ["fourier", "failed", *"------"]
    assert rows[3] == ["mlp", *"-------"]


def test_translators_have_a_second_score_and_memory_that_nobody_counted_is_a_dash():
    run = make_run("rnn", score=31.25, further={"chrf": 55.5}, peak_memory_mib=None)
    standings = (stand([run], (30.0, 32.5)), stand([run], None))
    comparison = Comparison(
        kind="model", data="p", score="bleu", budget_s=9, runs=(run,), standings=standings
    )
    header, rows = comparison_table(comparison)
    assert header[:4] == ["model", "BLEU", "95 %", "chrF"]
    assert rows[0][:4] == ["rnn", "31.2", "30.0-32.5", "55.5"]
    assert rows[1][2] == rows[1][-1] == "-"


def test_runs_of_one_name_are_averaged():
    standing = stand([make_run("mlp", 1, score=0.5), make_run("mlp", 2, score=0.7, steps=301)], (0.4, 0.8))
    assert (standing.seeds, standing.over, standing.steps) == ((1, 2), "seeds", 250)
    assert standing.score == pytest.approx(0.6)


def test_no_difference_is_claimed_that_is_not_shown(comparison):
    leader, *others = state(comparison)
    assert leader == ("pooling has the highest accuracy, 90.0%; no significant difference to attention.")
    assert others == [
        "Intervals are over test samples, 95 %; what another seed would give is not in them: give --seeds 3 "
        "or more to know. A difference is significant where p is below 0.05 and its interval excludes zero."
    ]


@pytest.mark.parametrize(
    ("p", "lower", "is_significant"), [(0.049, 0.01, True), (0.051, 0.01, False), (0.001, -0.01, False)]
)
def test_a_difference_needs_both_a_small_p_and_an_interval_without_zero(comparison, p, lower, is_significant):
    changed = comparison.model_copy(update={"pairs": (pair_of("pooling", "attention", p, lower=lower),)})
    better = "is better than attention by more than the choice of test samples explains" in state(changed)[0]
    assert better == is_significant


def test_what_others_than_the_first_differ_in_is_named(comparison):
    runs = (*comparison.runs, make_run("lstm", score=0.7))
    changed = comparison.model_copy(
        update={
            "runs": runs,
            "standings": (*comparison.standings, stand(runs[-1:], (0.6, 0.8))),
            "pairs": (
                pair_of("pooling", "attention", 0.5),
                pair_of("pooling", "lstm", 0.01),
                pair_of("attention", "lstm", 0.02),
            ),
        }
    )
    leader, others, *_ = state(changed)
    assert "better than lstm" in leader
    assert "no significant difference to attention" in leader
    assert others == "Also significant: attention over lstm."


def test_pairs_that_were_not_tested_are_called_so(comparison):
    tied = [each.model_copy(update={"score": 0.9}) for each in comparison.standings]
    leader = state(comparison.model_copy(update={"standings": tuple(tied)}))[0]
    assert leader == "pooling and attention have the highest accuracy, 90.0%."
    assert "not tested against attention" in state(comparison.model_copy(update={"pairs": ()}))[0]
    alone = comparison.model_copy(update={"standings": comparison.standings[:1], "pairs": ()})
    assert state(alone)[0] == "pooling alone is finished: there is nothing to compare it with."
    nothing = comparison.model_copy(update={"standings": (), "pairs": ()})
    assert "nothing to compare" in state(nothing)[0]


def test_runs_that_are_short_or_of_very_different_length_are_called_so(comparison):
    assert not any("start-up" in sentence for sentence in state(comparison))
    uneven = comparison.model_copy(update={"runs": (*comparison.runs, make_run("lstm", steps=2))})
    assert any("speed decide more than the architecture" in sentence for sentence in state(uneven))

    runs = tuple(make_run(name, steps=20) for name in ("pooling", "attention"))
    short = comparison.model_copy(update={"runs": runs})
    assert any("do not rank" in s and "a longer budget" in s for s in state(short))
    counted = short.model_copy(update={"changes": {"train.steps": 20}})
    assert any("do not rank" in s and "more steps" in s for s in state(counted))


def test_conditions_name_time_or_steps_and_what_all_share(comparison):
    assert conditions(comparison) == (
        "Each mixer was trained for 1m 30s, with seed 3, train.batch_size=8, from start to report, "
        "one after the other on the same machine."
    )
    counted = comparison.model_copy(update={"changes": {"train.steps": 20}})
    assert "trained for 20 steps, with seed 3, one after" in conditions(counted)


def test_curves_of_several_seeds_become_a_band():
    curve = [{"step": 120, "elapsed_s": 2.4, "score": 0.7}]  # stopped before its second validation
    runs = [make_run("mlp", 1), make_run("mlp", 2, curve=curve)]
    ((x, mean, lower, upper),) = join_curves(runs, lambda point: point.step)
    assert (x, lower, upper) == (110, 0.5, 0.7)
    assert mean == pytest.approx(0.6)


def test_the_front_holds_what_no_other_beats_in_both():
    scores = {"cheap": 0.5, "good": 0.9, "beaten": 0.8, "twin": 0.9, "dear": 0.9}
    costs = {"cheap": 1.0, "good": 3.0, "beaten": 4.0, "twin": 3.0, "dear": 5.0}
    assert pareto_front(scores, costs) == ["cheap", "good", "twin"]


def test_every_name_has_a_look_of_its_own():
    runs = tuple(make_run(f"mixer{number}") for number in range(2 * len(MORE_COLOURS) + 1))
    looks = looks_of(Comparison(kind="mixer", data="d", score="accuracy", budget_s=9, runs=runs))
    assert len(set(looks.values())) == len(runs)


def test_the_page_holds_what_it_says_pictures_tables_failures_and_links(comparison, tmp_path):
    path = tmp_path / "comparison.html"
    write_comparison(path, comparison.model_copy(update={"statements": state(comparison)}))
    page = path.read_text(encoding="utf-8")

    for name in ("scores with intervals", "curves by time", "curves by step", "accuracy against MACs"):
        assert f'aria-label="{name}"' in page
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "no significant difference to attention" in page
    assert "<td>pooling - attention</td>" in page
    assert "the loss &lt;b&gt;became&lt;/b&gt; NaN" in page
    assert 'href="pooling-seed3/report.html"' in page
    assert "fourier, seed 3" in page


def test_pictures_are_left_out_where_nothing_was_finished_or_validated(comparison, tmp_path):
    def page_of(**changes: object) -> str:
        write_comparison(tmp_path / "page.html", comparison.model_copy(update=changes))
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    unfinished = page_of(runs=comparison.runs[1:2], standings=(), pairs=())
    assert "<svg" not in unfinished
    assert "failed" in unfinished
    unvalidated = page_of(runs=(make_run("attention", curve=()), make_run("pooling", curve=())))
    assert "Learning curves" not in unvalidated


def test_many_names_are_cut_and_great_numbers_have_three_digits():
    assert [join_names(list(names)) for names in ("a", "ab", "abcde")] == [
        "a",
        "a and b",
        "a, b, c and 2 others",
    ]
    counts = {999: "999", 1_000: "1.00 k", 45_600_000: "45.6 M", 987_654_321: "988 M", 17.6e9: "17.6 G"}
    assert [format_count(count) for count in counts] == list(counts.values())


@pytest.mark.parametrize(
    ("score", "written", "interval"), [("accuracy", "58.3%", "25.0-75.0"), ("ap", "0.583", "0.250-0.750")]
)
def test_scores_are_written_as_in_reports(score: str, written: str, interval: str) -> None:
    assert SCORES[score].format(7 / 12) == written
    assert SCORES[score].format_interval(0.25, 0.75) == interval
