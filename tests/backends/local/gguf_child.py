"""Ask llama.cpp, by way of xllamacpp, for the most probable next tokens after raw token ids. Runs in its Python.

python gguf_child.py MODEL.gguf '[1, 2, 3]' -> [[id, logprob], ...]
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(path: str, tokens: list[int]) -> list[list[float]]:
    import xllamacpp  # pyright: ignore[reportMissingImports]

    params: Any = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = path, 256, 1, False
    params.cpuparams.n_threads = 2
    server: Any = xllamacpp.Server(params)
    asked = {"prompt": tokens, "n_predict": 1, "max_tokens": 1, "temperature": 0, "n_probs": 5, "logprobs": 5}
    answer: Any = server.handle_completions({**asked, "cache_prompt": False})
    answer = json.loads(answer) if isinstance(answer, str) else answer
    [content] = answer["choices"][0]["logprobs"]["content"]
    return [[one["id"], one["logprob"]] for one in content["top_logprobs"]]


if __name__ == "__main__":
    print("RESULT" + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
