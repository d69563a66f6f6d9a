"""From answers to numbers: what counts, what is left out, how sure it is, and how it is written down."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from dataclasses import replace

import pytest

from evsys_sdk.errors import EvalError
from evsys_sdk.eval import (
    AliasMatcher,
    EvalRow,
    EvalSummary,
    RetryFailure,
    RetryReport,
    format_summary_markdown,
    score_rows,
    summarize,
)

MATCHER = AliasMatcher({"A_A": ["A_B"]}, secondary={"A_A": ["A_C"]})


def rows(count: int, toolkits: str = "") -> list[EvalRow]:
    return [EvalRow(f"r{at}", "hi", "A_A", toolkits[at] if toolkits else None) for at in range(count)]


def summary_of(answers: list[list[str | None]], toolkits: str = "", k: int | None = None) -> EvalSummary:
    results = score_rows(rows(len(answers), toolkits), answers, MATCHER)
    return summarize(results, max_attempts=k, secondary=True)


def test_each_attempt_says_what_was_predicted_and_how_it_matches() -> None:
    [result] = score_rows(rows(1), [["<answer>a_a</answer>", "A_B", "A_C", "x", None]], MATCHER)
    *answers, failed = result.attempts
    assert [(answer.info["predicted"], answer.info["match"], answer.reward) for answer in answers] == [
        ("a_a", "exact", 1.0),
        ("A_B", "alias", 1.0),
        ("A_C", "secondary", 0.0),
        ("x", "none", 0.0),
    ]
    assert failed.failed
    assert result.scored == answers


def test_an_extraction_of_ones_own() -> None:
    [result] = score_rows(rows(1), [["tool=A_A!"]], MATCHER, extract=lambda text: text[5:-1])
    assert result.attempts[0].info["match"] == "exact"


def test_answers_must_fit_the_rows() -> None:
    with pytest.raises(EvalError, match="2 rows, but answers for 1"):
        score_rows(rows(2), [["A_A"]], MATCHER)
    with pytest.raises(EvalError, match="a list of answers"):
        score_rows(rows(1), ["A_A"], MATCHER)


def test_exact_and_alias_pass_secondary_is_reported_apart() -> None:
    summary = summary_of([["A_A"], ["A_B"], ["A_C"], ["x"]])
    assert summary.pass_at_1 is not None
    assert summary.pass_at_1.value == 0.5
    assert summary.pass_at_with_secondary[1] is not None
    assert summary.pass_at_with_secondary[1].value == 0.75
    assert {kind: found and found.value for kind, found in summary.rates.items()} == {
        "exact": 0.25,
        "alias": 0.25,
        "secondary": 0.25,
        "none": 0.25,
    }


def test_pass_at_k_is_the_mean_over_all_ways_to_choose_k_attempts() -> None:
    answers: list[list[str | None]] = [["A_A", "x", "x", "x", "x"], ["A_A", "x", "A_B", "x", "x"], ["x"] * 5]
    summary = summary_of(answers)
    assert list(summary.pass_at) == [1, 2, 4, 5]
    for k, score in summary.pass_at.items():
        chosen = [
            statistics.fmean(any(text != "x" for text in some) for some in itertools.combinations(texts, k))
            for texts in answers
        ]
        assert score is not None
        assert score.value == pytest.approx(statistics.fmean(chosen))
        assert score.stderr == pytest.approx(statistics.stdev(chosen) / math.sqrt(3))


def test_failed_attempts_are_counted_and_in_no_score() -> None:
    summary = summary_of([["A_A", None], ["A_A", "x"], [None, None]], k=2)
    assert (summary.n_attempts, summary.n_failed_attempts, summary.n_unscored_rows) == (6, 3, 1)
    assert summary.pass_at_1 is not None
    assert (summary.pass_at_1.value, summary.pass_at_1.n_tasks) == (0.75, 2)
    assert summary.pass_at_k is not None
    assert (summary.pass_at_k.value, summary.pass_at_k.n_tasks) == (1.0, 1)


def test_nothing_scored_is_no_score_and_not_zero() -> None:
    summary = summary_of([[None], [None]])
    assert (summary.pass_at_1, summary.rates["none"]) == (None, None)
    assert "| pass@1 | no score | 0 |" in format_summary_markdown(summary)


def test_more_attempts_at_a_row_do_not_make_the_error_smaller() -> None:
    few, many = summary_of([["A_A"], ["x"], ["x"]]), summary_of([["A_A"] * 50, ["x"] * 50, ["x"] * 50])
    assert few.pass_at_1 is not None
    assert many.pass_at_1 is not None
    assert few.pass_at_1 == replace(many.pass_at_1, n_samples=3)


def test_the_interval_does_not_vanish_where_all_rows_agree() -> None:
    score = summary_of([["A_A"]] * 5).pass_at_1
    assert score is not None
    assert (score.value, score.stderr, score.high) == (1.0, 0.0, pytest.approx(1.0))
    assert score.low == pytest.approx(0.5655, abs=1e-3)
    assert (single := summary_of([["A_A"]]).pass_at_1) is not None
    assert single.stderr is None


def test_by_toolkit() -> None:
    summary = summary_of([["A_A"], ["x"], ["A_A"]], toolkits="aab")
    values = {
        name: (found.n_rows, found.pass_at_1 and found.pass_at_1.value) for name, found in summary.by_toolkit.items()
    }
    assert values == {"a": (2, 0.5), "b": (1, 1.0)}
    assert summary_of([["A_A"]]).by_toolkit == {}
    mixed = summarize(score_rows([EvalRow("x", "hi", "A_A"), *rows(1, "a")], [["A_A"], ["A_A"]], MATCHER))
    assert set(mixed.by_toolkit) == {"(no toolkit)", "a"}


def test_the_json_form_is_strict_json_and_complete() -> None:
    report = RetryReport()
    report.count(3, RetryFailure("row 'r0', attempt 1", 3, "TimeoutError: late"))
    results = score_rows(rows(2, "ab"), [["A_A"], [None]], MATCHER)
    parsed = json.loads(
        json.dumps(summarize(results, retry_report=report, notes=["careful"]).to_dict(), allow_nan=False)
    )
    assert parsed["retry_report"]["total_failures"] == 1
    assert parsed["pass_at"]["1"]["n_tasks"] == 1
    assert parsed["by_toolkit"]["b"] == {"n_rows": 1, "pass_at_1": None, "pass_at_k": None}
    assert parsed["notes"] == ["careful"]
    assert parsed["pass_at_with_secondary"] == {}


def test_markdown_shows_scores_toolkits_failures_and_notes() -> None:
    report = RetryReport()
    for at in range(12):
        report.count(2, RetryFailure(f"row 'r{at}', attempt 1", 2, "OSError: a\nb | c"))
    results = score_rows(rows(2, "ab"), [["A_A", "A_A"], ["x", "x"]], MATCHER)
    text = format_summary_markdown(
        summarize(results, retry_report=report, model="m", notes=["careful"]), title="Routing"
    )
    assert text.startswith("# Routing\n\nModel: `m`. 2 rows, 2 attempts each; 0 attempts failed.\n\n| score |")
    assert "| pass@1 | 0.500 ± 0.500 (0.095 to 0.905) | 2 |" in text
    assert "| toolkit | rows | pass@1 | pass@2 |" in text
    assert "- row 'r0', attempt 1, tried 2 times: OSError: a b | c" in text
    assert "- and 2 more" in text
    assert text.endswith("## Notes\n\n- careful\n")
