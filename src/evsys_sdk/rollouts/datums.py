"""Rollouts -> datums. Exactly the sampled tokens carry loss.

Turns whose prompt extends everything before it form one datum, which the policy's token buffer ensures. A branch, such
as a sub-agent or a rewritten history, is a separate datum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..backends.datum import Datum
from .rollout import Rollout, Turn


def rollout_datums(rollout: Rollout, advantage: float) -> list[Datum]:
    """The datums of a rollout, each sampled token with the rollout's advantage."""
    sampled = [turn for turn in rollout.turns if turn.completion_tokens]  # text-only policies have no tokens
    return [_datum(turns, advantage) for turns in merge_turns(sampled)]


def merge_turns(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Group turns into sequences in which every prompt extends the previous turn; branches may interleave."""
    sequences: list[list[Turn]] = []
    prefixes: list[list[int]] = []
    for turn in turns:
        # The longest prefix: after a fork, the turn belongs to the branch that it continues.
        fitting = [at for at, tokens in enumerate(prefixes) if turn.prompt_tokens[: len(tokens)] == tokens]
        at = max(fitting, key=lambda at: len(prefixes[at]), default=len(sequences))
        if at == len(sequences):
            sequences.append([])
            prefixes.append([])
        sequences[at].append(turn)
        prefixes[at] = [*turn.prompt_tokens, *turn.completion_tokens]
    return sequences


def datum_metrics(rollouts: Sequence[Sequence[Datum]]) -> dict[str, float]:
    """Datums per rollout, and trained tokens per sampled token."""
    data = [datum for rollout in rollouts for datum in rollout]
    sampled = sum(int((datum.weights > 0).sum()) for datum in data)
    return {
        "rollouts/datums_per_rollout": len(data) / max(len(rollouts), 1),
        "rollouts/trained_per_sampled": sum(len(datum.tokens) + 1 for datum in data) / max(sampled, 1),
    }


def _datum(turns: Sequence[Turn], advantage: float) -> Datum:
    # The last prompt contains everything before it, so one forward pass covers all turns.
    last = turns[-1]
    full = np.asarray([*last.prompt_tokens, *last.completion_tokens], dtype=np.int64)
    weights = np.zeros(len(full), dtype=np.float32)
    logprobs = np.zeros(len(full), dtype=np.float32)
    for turn in turns:
        sampled = slice(len(turn.prompt_tokens), len(turn.prompt_tokens) + len(turn.completion_tokens))
        weights[sampled] = 1.0
        logprobs[sampled] = turn.logprobs
    advantages = weights * np.float32(advantage)
    # Position i predicts token i + 1, so per-token values move one position to the left.
    return Datum(full[:-1], full[1:], weights[1:], advantages[1:], logprobs[1:])
