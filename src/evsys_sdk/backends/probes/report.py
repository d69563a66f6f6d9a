"""What facts about a server mean for the people who train on it."""

from __future__ import annotations

from .facts import Facts

MEANING: dict[str, str] = {
    "loss_reduction": "what is done to the sum of losses over tokens and data",
    "snapshot_samplers": "a sampler keeps its weights while training goes on",
    "aligned_logprobs": "scoring gives a token the log-probability that training gives it",
    "losses": "named losses the server computes itself",
    "custom_loss": "losses of your own have the right gradient",
    "soft_targets": "several targets per position can be sent",
    "seeds": "the same seed gives the same samples",
    "top_k_logprobs": "alternatives per position that are reported",
    "clips_gradients": "grad_clip_norm has an effect",
    "exact_resume": "a restored state goes on bit by bit",
    "rejects_unknown_model": "a model that does not exist is refused",
    "step_latency_s": "seconds of an empty optimiser step",
}
"""Fact -> one line for the report."""


def consequences(facts: Facts) -> list[str]:
    """What is refused, corrected or to be watched out for on a server with these facts."""
    found: list[str] = []
    if facts.loss_reduction == "normalised":
        found.append("Refused: dpo, rl, losses of your own and negative weights, because losses are averaged.")
        found.append("Changed: sft and sdft weigh tokens by sequence, not evenly.")
    elif facts.loss_reduction in ("mean_data", "mean_tokens"):
        found.append("Corrected: losses are averaged by a known number, which is multiplied back.")
    if facts.snapshot_samplers is False:
        found.append("Refused: sdft, opd, rl with kl_coefficient or max_staleness, because samplers follow training.")
        found.append("Refused: scoring a snapshot while training goes on (benchmarks with run_every).")
    if facts.soft_targets is False:
        found.append("Corrected: soft targets are sent as one datum for each alternative.")
    if facts.aligned_logprobs is False:
        found.append("Beware: log-probabilities of samples do not match those of training; rl and opd will be off.")
    if facts.clips_gradients is False:
        found.append("Beware: grad_clip_norm is ignored; lower the learning rate where gradients are large.")
    if facts.exact_resume is False:
        found.append("Beware: a resumed run is not exactly the run it would have been.")
    if facts.seeds is False:
        found.append("Beware: a run cannot be repeated sample by sample.")
    if facts.rejects_unknown_model is False:
        found.append("Beware: the server takes any model name; check that it serves the one you mean.")
    return found
