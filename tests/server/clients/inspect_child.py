"""Runs an Inspect task through its own OpenAI provider, whole and streamed; prints what each sample said as JSON.

OPENAI_BASE_URL=URL/v1 OPENAI_API_KEY=... python inspect_child.py LOG_DIR QUESTION ...
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(log_dir: str, questions: list[str]) -> dict[str, Any]:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    samples = [Sample(input=text, target="?") for text in questions]
    results: dict[str, Any] = {}
    config = GenerateConfig(max_tokens=12, temperature=0)
    for name, streaming in {"whole": False, "streamed": True}.items():
        # By itself the provider asks every unknown model through the Responses API.
        model = get_model("openai/tiny", config=config, memoize=False, streaming=streaming)
        [log] = eval(
            Task(dataset=samples, solver=generate(), scorer=includes()),
            model=model,
            display="none",
            log_dir=log_dir,
        )
        results[name] = {
            "status": log.status,
            "errors": [sample.error.message for sample in log.samples or [] if sample.error],
            "said": {str(sample.input): sample.output.completion for sample in log.samples or []},
            "usage": sum(usage.output_tokens for usage in log.stats.model_usage.values()),
        }
    return results


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2:])))
