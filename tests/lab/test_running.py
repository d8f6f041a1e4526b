"""The folder of the lab: what a run of claims leaves, what it keeps, and the command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from vitrail.cli import main
from vitrail.core.errors import CheckpointError, ConfigError, VitrailError
from vitrail.lab import CLAIMS
from vitrail.lab.harness import (
    STYLE,
    ClaimBegan,
    ClaimEnded,
    LabEvent,
    LabResults,
    Progress,
    Verdict,
    format_cell,
    measure,
    run_claims,
    tabulate,
)
from vitrail.lab.score_scaling import ScoreRow

LITTLE = {
    "permutation.num_seeds": 1,
    "score_scaling.num_seeds": 1,
    "score_scaling.dims": [4, 64],
    "score_scaling.num_queries": 9,
}


def test_claims_leave_pictures_numbers_and_a_page_and_the_same_one_is_renewed(tmp_path: Path) -> None:
    events: list[LabEvent] = []

    done = run_claims(
        ["score_scaling", "permutation"],
        changes=LITTLE,
        output=tmp_path / "lab",
        seed=2,
        pictures=["svg", ".pdf"],
        on_event=events.append,
    )

    assert [result.name for result in done.results] == ["score_scaling", "permutation"]
    stored = LabResults.from_tree(json.loads((done.folder / "results.json").read_text()))
    assert [claim.name for claim in stored.claims] == ["permutation", "score_scaling"]
    assert stored.claims[0] == done.results[1]
    assert stored.claims[0].settings["num_seeds"] == 1
    assert stored.claims[0].seed == 2
    assert stored.claims[0].environment["threads"] == 1
    for claim in stored.claims:
        assert (done.folder / claim.picture).read_bytes().startswith(b"\x89PNG")
        assert (done.folder / f"{claim.name}.svg").read_bytes().startswith(b"<?xml")
        assert (done.folder / f"{claim.name}.pdf").read_bytes().startswith(b"%PDF")
    page = done.page.read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "Vaswani et al. 2017, section 3.5" in page
    first = page[page.index("Conclusions") : page.index("<h2>All")]
    assert all(f"{each.verdict}: " in first and each.name in first for each in stored.claims)
    began = [event.name for event in events if isinstance(event, ClaimBegan)]
    assert began == ["score_scaling", "permutation"]
    assert [type(event) for event in events[-2:]] == [Progress, ClaimEnded]

    (done.folder / "permutation.svg").unlink()
    again = run_claims(["permutation"], changes={"permutation.num_seeds": 2}, output=f"{done.folder}.svg")
    assert (done.folder / "permutation.svg").is_file()

    kept = LabResults.from_tree(json.loads((done.folder / "results.json").read_text()))
    assert [result.name for result in again.results] == ["permutation"]
    assert [claim.name for claim in kept.claims] == ["permutation", "score_scaling"]
    assert kept.claims[0].settings["num_seeds"] == 2
    assert kept.claims[1] == stored.claims[1]


def test_settings_that_belong_together_are_taken_together(tmp_path: Path) -> None:
    changes = {"typographic.images": str(tmp_path / "none"), "typographic.weights": str(tmp_path / "nowhere")}
    with pytest.raises(VitrailError, match="nowhere"):  # and not "weights and images belong together"
        run_claims(["typographic"], changes=changes, output=tmp_path / "lab")


def test_a_verdict_is_shown_with_the_settings_that_were_changed(tmp_path: Path) -> None:
    changes = {**LITTLE_SCORES, "score_scaling.num_keys": 64}  # the last one is the default

    (result,) = run_claims(["score_scaling"], changes=changes, output=tmp_path).results

    assert result.changed_from == {"dims": [4, 16, 64, 256, 1024], "num_queries": 512, "num_seeds": 3}
    dims = "dims=[4, 64] (default [4, 16, 64, 256, 1024])"
    seeds, queries = "num_seeds=1 (default 3)", "num_queries=9 (default 512)"
    assert result.decision == f"{result.verdict}, with {seeds}, {dims}, {queries}"
    page = (tmp_path / "lab.html").read_text()
    assert f"{result.verdict}</b>, with {seeds}, {dims}, {queries}</dd>" in page, "beside the verdict"
    assert f"<td>{result.decision}</td>" in page, "in the table of all"
    assert f". {seeds}, {dims}, num_keys=64, {queries}</p>" in page, "in the list of settings"


def test_a_verdict_of_the_defaults_stands_alone() -> None:
    claim = CLAIMS["permutation"]

    result, _ = measure(claim, seed=0, progress=lambda progress: None)

    assert result.changed_from == {}
    assert result.decision == "holds"
    assert result.write_setting("num_seeds") == "num_seeds=8"


def test_the_page_has_a_colour_for_every_verdict() -> None:
    for verdict in get_args(Verdict):
        assert f".{verdict.split()[-1]}{{color:" in STYLE


LITTLE_SCORES = {name: value for name, value in LITTLE.items() if name.startswith("score")}


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (["permutatoin"], {}, "no claim named 'permutatoin'.*Did you mean 'permutation'"),
        (["permutation"], {"bottleneck.num_steps": 1}, "the name of a claim that is run"),
        (["permutation"], {"permutation": 1}, "the name of a claim that is run"),
        (["permutation"], {"permutation.num_sedes": 1}, "Did you mean 'num_seeds'"),
        (["permutation"], {"permutation.num_seeds": 0}, "greater than or equal to 1"),
        (["permutation"], {"permutation.num_seeds": 0}, "num_seeds=8 by default; results.json holds"),
        (["typographic"], {"typographic.images": "x"}, "give both, or none.*images=null by default"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_measured(
    tmp_path: Path, names: list[str], changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_claims(names, changes=changes, output=tmp_path / "lab")

    assert not (tmp_path / "lab").exists()


def test_results_that_cannot_be_read_are_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text('{"claims": 7}')

    with pytest.raises(CheckpointError, match="Choose another folder"):
        run_claims(["permutation"], output=tmp_path)

    assert file.read_text() == '{"claims": 7}'


def test_rows_become_tables_whose_columns_are_explained_and_cells_readable() -> None:
    row = ScoreRow(
        dim=4,
        scaled=True,
        seed=0,
        score_std=float("inf"),
        largest_weight=0.5,
        median_gradient=0.1,
        mean_gradient=0.1,
    )

    (table,) = tabulate([row, row])

    assert table.caption.startswith("Softmax over the scores")
    assert table.columns["dim"] == "Width of queries and keys."
    assert len(table.rows) == 2
    assert table.rows[0][:4] == (0, 4, True, None)
    cells = [format_cell(value) for value in (True, 2048, 0.123456, None, "pre")]
    assert cells == ["yes", "2,048", "0.1235", "-", "pre"]


def test_the_command_lists_the_claims(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main(["lab"]) == 0

    shown = capsys.readouterr().out
    for name in CLAIMS:
        assert re.search(rf"^{name} ", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80


def test_the_command_measures_and_says_what_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    assert main(["lab", "permutation", "--set", "permutation.num_seeds=2", "--seed", "1"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/1 permutation"
    heads = [line.split()[0] for line in lines if re.match("[a-z]", line)]
    assert heads == ["claim", "source", "published", "measured", "verdict", "time", "page"]
    shown = " ".join(" ".join(lines).split())
    assert "verdict holds, with num_seeds=2 (default 8) time" in shown
    assert lines[-1] == "page lab/lab.html"
    assert max(map(len, lines)) <= 80
    assert (tmp_path / "lab" / "permutation.png").exists()

    assert main(["lab", "permutaton"]) == 2
    assert "Did you mean 'permutation'" in " ".join(capsys.readouterr().err.split())
