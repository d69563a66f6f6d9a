"""Verifiers and metrics as a notebook calls them: with plain values, outside of any event loop."""

from typing import Any

import pytest

from evsys_sdk.registry import get_metric, get_verifier


@pytest.mark.parametrize(
    ("name", "params", "completion"),
    [("regex_match", {"pattern": "a+"}, "a"), ("format_only", {}, "<answer>a</answer>")],
)
def test_verify_returns_the_result_itself(name: str, params: dict[str, Any], completion: str) -> None:
    verifier: Any = get_verifier(name)
    assert verifier(**params).verify(prompt="p", completion=completion, target="a").reward == 1.0


@pytest.mark.parametrize("name", ["pass_at_k", "mean_reward", "pass@1"])
def test_metrics_take_predictions_and_targets(name: str) -> None:
    metric: Any = get_metric(name)
    assert metric().compute(predictions=["a", "b"], targets=["a", "c"]) == 0.5
    assert metric().compute(["a", "b"], ["a", "b "]) == 1.0
    assert metric().compute([[1.0], [0.0]]) == 0.5
    with pytest.raises(TypeError, match="takes no 'labels'"):
        metric().compute(labels=["a"])
