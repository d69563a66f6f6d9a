"""When rewards stop to differ: the run that learned, the one that collapsed, and the one that never had a reward."""

import json
import re
from collections.abc import Sequence

import pytest

from evsys_sdk.rollouts.rollout import Rollout, Turn
from evsys_sdk.training.saturation import RewardSaturation, StepSummary

MIXED, GOOD, BAD = ("0 1", "1 0"), ("1 1", "1 1"), ("0 0", "0 0")


def step(number: int, groups: Sequence[str], *, same: bool = False, cut: bool = False) -> StepSummary:
    rollouts = [
        Rollout(
            f"t{at}",
            sample,
            "truncated" if cut else "ok",
            float(reward),
            [Turn({"role": "assistant", "content": "x" if same else f"x{sample}"}, logprobs=[-0.01 if same else -1.0])],
        )
        for at, group in enumerate(groups)
        for sample, reward in enumerate(group.split())
    ]
    return StepSummary.of(number, rollouts)


@pytest.mark.parametrize(
    ("before", "then", "same", "kind", "after", "words"),
    [
        ([MIXED], GOOD, False, "converged", 3, "highest reward"),
        ([MIXED], ("0.9 0.9", "1 1"), False, "converged", 5, "0.95 on average"),
        ([MIXED], ("0.4 0.4", "0.4 0.4"), True, "collapsed", 5, "entropy 0.01 nats.*learning_rate.*kl_coefficient"),
        ([MIXED], BAD, True, "collapsed", 5, "sampling.temperature"),
        ([MIXED], BAD, False, "stalled", 5, "the answers differ.*group_size"),
        ([], GOOD, False, "solved", 3, "harder tasks"),
        ([], BAD, False, "never", 3, "steps 1 to 3 are 0.*answer format"),
        ([], ("0.5 0.5", "0 0"), False, "never", 3, "do not differ within any task"),
        ([], BAD, True, "never", 3, "raise sampling.temperature"),
    ],
)
def test_why_rewards_stopped_to_differ(
    before: list[tuple[str, ...]], then: tuple[str, ...], same: bool, kind: str, after: int, words: str
) -> None:
    saturation, finding, number = RewardSaturation(), None, 0
    for groups in before:
        number += 1
        assert saturation.update(step(number, groups)) is None
    for at in range(1, after + 1):
        assert finding is None
        again = RewardSaturation()
        again.restore(json.loads(json.dumps(saturation.state())))  # as a resumed run does
        saturation = again
        finding = saturation.update(step(number + at, then, same=same))
    assert finding is not None
    assert finding.kind == kind
    assert re.search(words, finding.text), finding.text
    assert finding.ends_run is (kind != "never")


def test_a_step_with_a_difference_begins_anew_and_cut_off_answers_are_named() -> None:
    saturation = RewardSaturation()
    assert [
        saturation.update(step(at, one)) for at, one in enumerate([MIXED, BAD, BAD, BAD, BAD, MIXED, BAD, BAD])
    ] == [None] * 8
    never = RewardSaturation()
    finding = [never.update(step(at, BAD, cut=True)) for at in range(3)][-1]
    assert finding is not None
    assert "100% of them are cut off: raise sampling.max_tokens" in finding.text
