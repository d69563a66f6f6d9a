"""Distillation towards biased logits: learn to answer with one letter, as the untrained model does under a bias."""

import json
import sys
from pathlib import Path

import evsys_sdk

HERE = Path(__file__).parent
MODEL, BACKEND = sys.argv[1:] or ("tiny", "mock")


def one_letter(model, bias=12.0):
    """Raise the letters, and behind a letter the end of the turn."""
    letters = [model.token(letter) for letter in "ABCD"]
    end = model.datums([("", "A")])[0].target_tokens[-1]

    def change(tokens, logprobs):
        logprobs[end if tokens[-1] in letters else letters] += bias
        return logprobs

    return change


rows = [json.loads(line) for line in (HERE / "data/train.jsonl").read_text().splitlines()]

with evsys_sdk.record(
    "distil-bias",
    model=MODEL,
    backend=BACKEND,
    hypothesis={"claim": "The bias can be distilled: one letter, without it.", "metric": "pass@1"},
    benchmark={"name": "form", "path": str(HERE / "data/form.jsonl"), "max_tokens": 8, "models": ["base"]},
) as experiment:
    for run in experiment.runs():
        biased = [one_letter(run.model)]
        for step in run.steps(run.args.get("steps", 16), save_every=4):
            prompts = [rows[(16 * step + place) % len(rows)]["prompt"] for place in range(16)]
            answers = [group[0] for group in run.model.sample(prompts, max_tokens=2, processors=biased)]
            targets = run.model.base.distil(answers, k=64, processors=biased)
            run.log(run.model.train(targets, learning_rate=2e-3).metrics)
