"""Rollouts -> datums. The tokens trained on are the tokens sampled, and nothing else carries loss.

Turns of one rollout become one datum where each turn's prompt begins with everything before it, which the token buffer
of the policy sees to; a branch, such as a sub-agent or a history that the program rewrote, is its own datum.
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
    """Turns in stretches within which every prompt extends what came before it; branches may take turns."""
    stretches: list[list[Turn]] = []
    seen: list[list[int]] = []
    for turn in turns:
        # The longest beginning: after a fork, the turn belongs to the branch that it continues.
        fitting = [at for at, tokens in enumerate(seen) if turn.prompt_tokens[: len(tokens)] == tokens]
        at = max(fitting, key=lambda at: len(seen[at]), default=len(stretches))
        if at == len(stretches):
            stretches.append([])
            seen.append([])
        stretches[at].append(turn)
        seen[at] = [*turn.prompt_tokens, *turn.completion_tokens]
    return stretches


def datum_metrics(rollouts: Sequence[Sequence[Datum]]) -> dict[str, float]:
    """How much is trained for what was sampled, over the datums of each rollout."""
    data = [datum for one in rollouts for datum in one]
    sampled = sum(int((datum.weights > 0).sum()) for datum in data)
    return {
        "rollouts/datums_per_rollout": len(data) / max(len(rollouts), 1),
        "rollouts/trained_per_sampled": sum(len(datum.tokens) + 1 for datum in data) / max(sampled, 1),
    }


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
