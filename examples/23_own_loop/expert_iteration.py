"""Expert iteration: sample with a bias towards the letters, keep the right answers, learn from them."""

import json
import sys
from pathlib import Path

import evsys_sdk

HERE = Path(__file__).parent
MODEL, BACKEND = sys.argv[1:] or ("tiny", "mock")
rows = [json.loads(line) for line in (HERE / "data/train.jsonl").read_text().splitlines()]

with evsys_sdk.record(
    "expert-iteration",
    model=MODEL,
    backend=BACKEND,
    hypothesis={"claim": "Its own right answers teach the model to route requests.", "metric": "pass@1"},
    benchmark={"name": "letters", "path": str(HERE / "data/test.jsonl"), "max_tokens": 8, "models": ["base"]},
) as experiment:
    for run in experiment.runs():
        letters = {run.model.token(letter): 30.0 for letter in "ABCD"}
        for step in run.steps(run.args.get("steps", 20), save_every=4):
            batch = [rows[(16 * step + place) % len(rows)] for place in range(16)]
            asked = [row["prompt"] for row in batch]
            groups = run.model.sample(asked, n=8, max_tokens=1, temperature=3.0, logit_bias=letters)
            rewards = [
                [float(one.text == row["answer"]) for one in group] for row, group in zip(batch, groups, strict=True)
            ]
            run.log_rollouts(groups, rewards)
            right = [(row["prompt"], row["answer"]) for row, earned in zip(batch, rewards, strict=True) if any(earned)]
            run.log(run.model.train(right, learning_rate=run.args.get("learning_rate", 1e-3)).metrics)
