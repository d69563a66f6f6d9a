"""GRPO: a few demonstrations, then policy gradients on groups of answers, scored while it trains."""

import json
import sys
from pathlib import Path

import evsys_sdk

HERE = Path(__file__).parent
MODEL, BACKEND = sys.argv[1:] or ("tiny", "mock")
rows = [json.loads(line) for line in (HERE / "data/train.jsonl").read_text().splitlines()]
test = {"name": "letters", "path": str(HERE / "data/test.jsonl"), "split": "test", "models": ["base"], "max_tokens": 8}
val = {"name": "val", "path": str(HERE / "data/val.jsonl"), "split": "val", "run_every": 8, "max_tokens": 8}

with evsys_sdk.record(
    "grpo",
    model=MODEL,
    backend=BACKEND,
    hypothesis={"claim": "Rewards for the right letter teach routing.", "metric": "pass@1"},
    benchmark=[test, val],
) as experiment:
    for run in experiment.runs():
        for step in run.steps(run.args.get("steps", 24), save_every=4, reserve_s=30):
            batch = [rows[(8 * step + place) % len(rows)] for place in range(8)]
            if step < 8:
                run.log(run.model.train([(row["prompt"], row["answer"]) for row in batch], learning_rate=2e-3).metrics)
                continue
            groups = run.model.sample([row["prompt"] for row in batch], n=8, max_tokens=4)
            rewards = [
                [float(one.text == row["answer"]) for one in group] for row, group in zip(batch, groups, strict=True)
            ]
            run.log_rollouts(groups, rewards)
            advantages = [advantage for earned in rewards for advantage in evsys_sdk.group_advantages(earned)]
            answers = [answer for group in groups for answer in group]
            data = [answer.datum(a) for answer, a in zip(answers, advantages, strict=True) if a]
            run.log(run.model.train(data, "importance_sampling", learning_rate=1e-3).metrics if data else {})
