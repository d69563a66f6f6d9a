"""The decider is right about prepared situations, and the truth is what training on them does; `benchmarks/decider.py`
measures two hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from .situations import FAMILIES, Bench


@pytest.mark.slow
def test_it_says_yes_when_learning_helps_and_no_otherwise(tmp_path: Path) -> None:
    judged = list(Bench(tmp_path).judge_world(7, dict.fromkeys(FAMILIES, 2)))
    truth = {one.family for one in judged if one.helps}
    assert {"new_kind", "changed_answer"} <= truth
    assert not truth & {"more_of_the_same", "nobody_knows", "poisoned"}
    wrong = [(one.family, one.before, one.after) for one in judged if not one.is_right]
    assert len(wrong) <= 0.1 * len(judged), wrong
