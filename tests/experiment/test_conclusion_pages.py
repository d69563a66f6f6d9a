"""Conclusion pages of twelve situations, as approved text in `pages/`.

After a change that is meant, write them anew (WRITE_PAGES=1) and read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk.experiment.conclusion.evidence import Evidence
from evsys_sdk.experiment.conclusion.markdown import as_markdown
from evsys_sdk.experiment.conclusion.verdict import conclude_from

from .conclusion_records import evidence, metadata

PAGES = Path(__file__).parent / "pages"


def solved(seeds: int = 3, tasks: int = 40, seed: int = 0, **gains: float) -> dict[str, Any]:
    """Tasks solved by a baseline and by runs that solve so much more, in four samples of each."""
    draw = np.random.default_rng(seed)
    ease = draw.uniform(0.3, 0.6, tasks)
    return {
        name: draw.binomial(4, np.clip(ease + gain + draw.normal(0, 0.01, (seeds, 1)), 0, 1)) / 4
        for name, gain in {"baseline": 0.0, **gains}.items()
    }


def claim(**fields: Any) -> Any:
    return metadata({"claim": "a beats the baseline", **fields})


def always(value: float) -> dict[str, Any]:
    return {name: np.full((3, 40), value) for name in ("baseline", "a")}


def along_steps() -> Evidence:
    scores = solved(s20=0.1, s40=0.3)
    about = claim(kind="trend", axis="algorithm.params.max_steps")
    given = evidence({"s10": scores["baseline"], "s20": scores["s20"], "s40": scores["s40"]}, about=about)
    settings = [{"algorithm.params.max_steps": value} for value in (10, 20, 40)]
    return replace(given, runs=[replace(run, settings=one) for run, one in zip(given.runs, settings, strict=True)])


def lose_samples() -> Evidence:
    """One sample of nine is lost on every task."""
    given, lost = evidence(solved(a=0.1)), {f"t{at}": [*[0.5] * 8, None] for at in range(40)}
    runs = [
        replace(
            run,
            arms=[
                replace(
                    arm,
                    scorings={key: replace(one, failed_samples=20, samples=lost) for key, one in arm.scorings.items()},
                )
                for arm in run.arms
            ],
        )
        for run in given.runs
    ]
    return replace(given, runs=runs)


CUT_OFF = "49 % of the answers were cut off at max_tokens"
SITUATIONS: dict[str, Evidence] = {
    "supported": evidence(solved(a=0.3), attempt=1),
    "several_runs": evidence(solved(a=0.3, b=0.05, c=0.0), attempt=1),
    "selected_by_validation": evidence(solved(a=0.3, b=0.05), solved(seed=1, a=0.3, b=0.05), attempt=2),
    "refuted": evidence(solved(a=-0.3), about=claim(min_effect=0.05)),
    "inconclusive": evidence(solved(a=0.02)),
    "two_seeds": evidence(solved(seeds=2, a=0.4)),
    "all_zero": evidence(always(0.0), findings=[CUT_OFF]),
    "all_one_not_worse": evidence(always(1.0), about=claim(kind="not_worse", margin=0.1)),
    "not_worse": evidence(solved(a=0.0), about=claim(kind="not_worse", margin=0.2)),
    "trend": along_steps(),
    "missing_samples": lose_samples(),
    "flagged_on_mock": evidence(
        solved(a=0.3), backend="mock", flags=["contamination: 3 of 40 evaluation tasks also occur in the training data"]
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_page_is_the_approved_one(name: str) -> None:
    page = as_markdown(conclude_from(SITUATIONS[name]))
    path = PAGES / f"{name}.md"
    if os.environ.get("WRITE_PAGES"):
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")


def test_no_number_of_a_page_lies_outside_of_the_range_of_a_rate() -> None:
    for given in SITUATIONS.values():
        found = conclude_from(given)
        ends = [end for one in found.comparisons for end in (one.low, one.high) if end is not None]
        assert all(-1 <= end <= 1 for end in ends)
        assert found.smallest_detectable is None or found.smallest_detectable <= 1


def test_the_better_run_is_the_best_one_where_not_worse_is_claimed() -> None:
    scores = solved(a=-0.1)
    found = conclude_from(evidence(scores, about=claim(kind="not_worse", margin=0.4)))
    assert (found.verdict, found.best_arm) == ("supported", "baseline")
