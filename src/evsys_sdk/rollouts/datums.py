"""Rollouts -> datums. The tokens trained on are the tokens sampled, and nothing else carries loss.

Turns of one rollout become one datum where each turn's prompt begins with everything before it (the prefix property);
otherwise, e.g. when a template rewrites earlier turns, each stretch becomes a datum of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends.datum import Datum
from .rollout import Rollout, Turn


def rollout_datums(rollout: Rollout, advantage: float) -> list[Datum]:
    """The datums of a rollout, each sampled token with the rollout's advantage."""
    sampled = [turn for turn in rollout.turns if turn.completion_tokens]  # a policy that only speaks text has none
    return [_datum(stretch, advantage) for stretch in merge_turns(sampled)]


def merge_turns(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Turns in stretches within which every prompt extends what came before it."""
    stretches: list[list[Turn]] = []
    seen: list[int] = []
    for turn in turns:
        if stretches and turn.prompt_tokens[: len(seen)] == seen:
            stretches[-1].append(turn)
        else:
            stretches.append([turn])
        seen = [*turn.prompt_tokens, *turn.completion_tokens]
    return stretches


def _datum(stretch: Sequence[Turn], advantage: float) -> Datum:
    # The last prompt holds everything before it, so that one pass over it trains all turns of the stretch.
    last = stretch[-1]
    full = np.asarray([*last.prompt_tokens, *last.completion_tokens], dtype=np.int64)
    weights = np.zeros(len(full), dtype=np.float32)
    logprobs = np.zeros(len(full), dtype=np.float32)
    for turn in stretch:
        sampled = slice(len(turn.prompt_tokens), len(turn.prompt_tokens) + len(turn.completion_tokens))
        weights[sampled] = 1.0
        logprobs[sampled] = turn.logprobs
    advantages = weights * np.float32(advantage)
    # Position i predicts token i + 1: what belongs to a token moves to the position before it.
    return Datum(full[:-1], full[1:], weights[1:], advantages[1:], logprobs[1:])
