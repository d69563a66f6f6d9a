"""Programs use the server unmodified: anthropic, LangChain, litellm, Inspect, lm-eval, verifiers' vf-eval.

Where they let us set the temperature, what they saw is compared with what the server says to a plain request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from .serving import KEY, ServerProcess

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("tinker") is None, reason="needs the extra `server`: run make test-clients"),
]
HERE = Path(__file__).parent / "clients"
QUESTIONS = ("hi", "what is 2+2?", "häßlich 🙂")
LENGTH = 12
LITELLM = os.environ.get("EVSYS_LITELLM_PYTHON", "")
VERIFIERS = os.environ.get("EVSYS_VERIFIERS_PYTHON", "")


def ask(server: ServerProcess, question: str, length: int = LENGTH) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "max_tokens": length}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def run(command: list[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(find_spec("inspect_ai") is None, reason="needs inspect_ai: run make test-clients")
def test_inspects_own_provider_reads_answers_whole_and_streamed(server: ServerProcess, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "inspect_child.py"), str(tmp_path / "logs"), *QUESTIONS]
    printed = run(command, tmp_path, OPENAI_BASE_URL=f"{server.url}/v1", OPENAI_API_KEY=KEY)
    parsed = json.loads(printed.splitlines()[-1])
    assert parsed.keys() == {"whole", "streamed"}
    for how, first in parsed.items():
        assert (first["status"], first["errors"]) == ("success", []), how
        assert first["said"].keys() == set(QUESTIONS), how
        assert any(first["said"].values()), how
        # It leaves the temperature out for a model that it does not know, so what is said is not the same each time.
        assert len(QUESTIONS) <= first["usage"] <= len(QUESTIONS) * LENGTH, how


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-eval: run make test-clients")
def test_lm_evals_chat_client_scores_a_task(server: ServerProcess, tmp_path: Path) -> None:
    expected = {question: ask(server, question)["choices"][0]["message"]["content"] for question in QUESTIONS}
    rows = [{"question": question, "answer": expected[question]} for question in QUESTIONS]
    rows[-1]["answer"] = "something else"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "probe",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "output_type": "generate_until",
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n\n\n"], "temperature": 0, "max_gen_toks": LENGTH},
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "probe.yaml").write_text(json.dumps(task), encoding="utf-8")
    model = f"model=tiny,base_url={server.url}/v1/chat/completions,num_concurrent=2,max_retries=1"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-chat-completions", "--model_args", model]
    command += ["--tasks", "probe", "--include_path", str(tmp_path), "--apply_chat_template", "--log_samples"]
    run([*command, "--output_path", str(tmp_path / "out")], tmp_path, OPENAI_API_KEY=KEY)
    [samples] = (tmp_path / "out").rglob("samples_probe_*.jsonl")
    logged = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    assert {line["doc"]["question"]: line["resps"][0][0] for line in logged} == expected
    assert sorted(line["exact_match"] for line in logged) == [0.0, 1.0, 1.0]


def make_byte_tokenizer(folder: Path) -> Path:
    """The tokenizer of the mock backend as Hugging Face's library loads it: byte b is token b."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = [*range(33, 127), *range(161, 173), *range(174, 256)]  # how GPT-2 writes bytes as characters
    others = [byte for byte in range(256) if byte not in alphabet]
    names = {byte: chr(byte) for byte in alphabet} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    vocabulary = {names[byte]: byte for byte in range(256)} | {
        "<|endoftext|>": 256,
        "<|im_start|>": 257,
        "<|im_end|>": 258,
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>").save_pretrained(str(folder))
    return folder


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-eval: run make test-clients")
def test_lm_eval_scores_multiple_choice_by_echoed_prompts(server: ServerProcess, tmp_path: Path) -> None:
    rows = [{"question": f"{n} + {n} =", "choices": [str(2 * n), str(n), "no"], "answer": 0} for n in range(1, 4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "probe",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "output_type": "multiple_choice",
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "probe.yaml").write_text(json.dumps(task), encoding="utf-8")
    tokenizer = make_byte_tokenizer(tmp_path / "tokenizer")
    model = f"model=tiny,base_url={server.url}/v1/completions,tokenizer={tokenizer},max_retries=1"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model]
    command += ["--tasks", "probe", "--include_path", str(tmp_path), "--batch_size", "3", "--log_samples"]
    run([*command, "--output_path", str(tmp_path / "out")], tmp_path, OPENAI_API_KEY=KEY)
    [samples] = (tmp_path / "out").rglob("samples_probe_*.jsonl")
    for line in samples.read_text(encoding="utf-8").splitlines():
        parsed = json.loads(line)
        for choice, [[logprob, _]] in zip(parsed["doc"]["choices"], parsed["resps"], strict=True):
            body = {"model": "tiny", "prompt": f"{parsed['doc']['question']} {choice}", "echo": True, "logprobs": 1}
            answer = httpx.post(f"{server.url}/v1/completions", json={**body, "max_tokens": 0}, timeout=60).json()
            values = answer["choices"][0]["logprobs"]["token_logprobs"]
            assert float(logprob) == pytest.approx(sum(values[len(parsed["doc"]["question"]) :]), abs=1e-3)


def run_child(name: str, server: ServerProcess, folder: Path, python: str = sys.executable) -> dict[str, Any]:
    return json.loads(run([python, str(HERE / name), server.url, KEY], folder).splitlines()[-1])


@pytest.mark.skipif(find_spec("anthropic") is None, reason="needs anthropic: run make test-clients")
def test_anthropics_own_client(server: ServerProcess, tmp_path: Path) -> None:
    result = run_child("anthropic_child.py", server, tmp_path)
    assert result["whole"] == result["streamed"]
    assert result["same_usage"]
    assert all(call["city"] in ("Rome", "Oslo") for call in result["calls"])
    assert result["reasons"] == ["tool_use", "tool_use"]
    assert (result["after"], result["counted"] > 0) == ("assistant", True)
    assert result["errors"] == {"model": "NotFoundError", "value": "BadRequestError"}


@pytest.mark.skipif(find_spec("langchain_openai") is None, reason="needs langchain-openai: run make test-clients")
def test_langchains_structured_output(server: ServerProcess, tmp_path: Path) -> None:
    result = run_child("langchain_child.py", server, tmp_path)
    assert {result["json_schema"], result["function_calling"]} <= {"Rome", "Oslo"}
    assert result["calls"] == ["Report"]


@pytest.mark.skipif(not LITELLM, reason="needs EVSYS_LITELLM_PYTHON, a Python that has litellm")
def test_litellm_by_three_apis(server: ServerProcess, tmp_path: Path) -> None:
    result = run_child("litellm_child.py", server, tmp_path, LITELLM)
    assert len(set(result.values())) == 1, result


@pytest.mark.skipif(not VERIFIERS, reason="needs EVSYS_VERIFIERS_PYTHON, a Python that has verifiers")
def test_vf_eval_plays_its_episodes_by_streams(server: ServerProcess, tmp_path: Path) -> None:
    finds_uv = "import os, uv; print(os.path.dirname(uv.find_uv_bin()))"
    tools = run([VERIFIERS, "-c", finds_uv], tmp_path).strip()
    main = "from verifiers.v1.cli.eval.main import main; main()"
    command = [VERIFIERS, "-c", main, "verifiers_tasks", "-m", "tiny", "--no-push", "-r", "2", "-o", str(tmp_path)]
    command += ["--client.base-url", f"{server.url}/v1", "--client.api-key-var", "PROBE_KEY", "--run.dir", "probe"]
    command += ["--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess"]
    command += ["--sampling.temperature", "0", "--sampling.max-tokens", str(LENGTH)]
    path = os.pathsep.join([tools, os.environ["PATH"]])
    run(command, tmp_path, PATH=path, PYTHONPATH=str(HERE), PROBE_KEY=KEY, HF_HUB_OFFLINE="1")
    lines = (tmp_path / "probe/traces.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4, "two tasks, two episodes each"
    for number in range(2):
        content = ask(server, f"{number} + {number} =")["choices"][0]["message"]["content"]
        of_task = [line for line in lines if f'"{number} + {number} ="' in line]
        assert len(of_task) == 2
        assert all(json.dumps(content, ensure_ascii=False)[1:-1] in line for line in of_task)
