"""Gateway and token buffer: what a program's request costs next to a plain proxy, and what multi-turn training saves.

    python benchmarks/gateway.py                                   # requests and turns
    python benchmarks/gateway.py --model FOLDER --before CHECKOUT  # and RL with 16 turns, here and in an old checkout

Times are processor time. A request goes over loopback with one open connection; the client is in each figure. The
plain proxy is Starlette and uvicorn in front of a fixed answer, forwarding with httpx; it needs the extra `server`.
RL needs the extra `local` and a model folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from evsys_sdk.backends.mock.tokenizer import ByteTokenizer
from evsys_sdk.inference.renderer import get_renderer
from evsys_sdk.inference.token_buffer import TokenBuffer
from evsys_sdk.rollouts.gateway import Gateway, GatewayBudget
from evsys_sdk.rollouts.rollout import Turn

REQUESTS = 400
TURNS = 16
AGENT = '''
class Clerk:
    """Sixteen turns: each answer is acknowledged by a tool."""

    async def run(self, task, policy, environment):
        messages = [{"role": "user", "content": task.instruction}]
        for turn in range(16):
            answer = await policy.act(messages)
            messages += [answer.message, {"role": "user", "content": f"Result {turn}: noted. Go on."}]
        return messages[:-1]
'''


class Fixed:
    """A policy that answers at once."""

    async def act(self, messages: Any, *, tools: Any = None) -> Turn:
        return Turn({"role": "assistant", "content": "fine"}, [1], [2], [-0.5], input_tokens=1, output_tokens=1)


def body(number: int) -> dict[str, Any]:
    return {"model": "policy", "messages": [{"role": "user", "content": f"question {number}"}]}


async def time_requests(url: str, key: str, first: int) -> float:
    """Processor seconds of this process for a chat completion, client and servers together."""
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, trust_env=False) as client:
        start = time.process_time()
        for number in range(first, first + REQUESTS):
            answer = await client.post("/v1/chat/completions", json=body(number))
            answer.raise_for_status()
        return (time.process_time() - start) / REQUESTS


async def serve_fixed() -> asyncio.Server:
    """The least that can answer: a fixed completion, without reading the request."""
    message = {"role": "assistant", "content": "fine"}
    content = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            while request := await reader.read(65536):
                if not request.endswith(b"\r\n\r\n"):  # else the body is still to come
                    writer.write(head + content)
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


def serve_proxy(target: str) -> Any:
    """A plain proxy in a thread of its own; None without the packages."""
    try:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        return None
    client = httpx.AsyncClient(base_url=target, trust_env=False)

    async def forward(request: Any) -> Any:
        answer = await client.post(request.url.path, content=await request.body())
        return Response(answer.content, media_type="application/json")

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server


async def measure_requests() -> None:
    """Three contenders in turn, so that all meet the same load; what the client itself costs is in each."""
    found: dict[str, list[float]] = {"fixed answer": [], "plain proxy": [], "gateway": []}
    fixed = await serve_fixed()
    address = f"http://127.0.0.1:{fixed.sockets[0].getsockname()[1]}"
    proxy = serve_proxy(address)
    async with Gateway(Fixed(), GatewayBudget(max_turns=10 * REQUESTS)) as gateway:
        for turn in range(5):
            found["fixed answer"].append(await time_requests(address, "none", turn * REQUESTS))
            if proxy is not None:
                port = proxy.servers[0].sockets[0].getsockname()[1]
                found["plain proxy"].append(await time_requests(f"http://127.0.0.1:{port}", "none", turn * REQUESTS))
            found["gateway"].append(await time_requests(gateway.url, gateway.credential, turn * REQUESTS))
    if proxy is not None:
        proxy.should_exit = True
    least = median(found["fixed answer"])
    for name, times in found.items():
        if times:
            middle = median(times)
            print(f"a request   {name:13} {middle * 1e6:6.0f} us   without the client {(middle - least) * 1e6:6.0f} us")


def measure_turns() -> None:
    renderer = get_renderer(ByteTokenizer())
    for turns in (8, 32):
        buffer, rendered, buffered = TokenBuffer(renderer), 0.0, 0.0
        messages: list[dict[str, Any]] = [{"role": "user", "content": "go " * 40}]
        for turn in range(turns):
            start = time.process_time()
            renderer.prompt(messages)
            middle = time.process_time()
            prompt = buffer.prompt(messages)
            buffered += time.process_time() - middle
            rendered += middle - start
            message = {"role": "assistant", "content": f"answer {turn} " * 10}
            sampled = renderer.render([*messages, message], "last_assistant")[-1]
            tokens = [token for token, weight in zip(sampled.tokens, sampled.weights, strict=True) if weight]
            buffer.add(messages, (), message, prompt, tokens)
            messages += [message, {"role": "user", "content": f"result {turn} " * 20}]
        print(
            f"a turn of {turns:2}     rendered anew {rendered / turns * 1e6:6.0f} us   "
            f"token buffer {buffered / turns * 1e6:6.0f} us"
        )


def train(checkout: Path | None, model: str) -> list[dict[str, float]]:
    """The steps of RL with 16 turns, by the code of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        verifier = {"kind": "in_process", "fn_name": "contains", "expected": "the"}
        tasks = [
            {"task_id": f"t{at}", "instruction": f"Tell a story, part {at}.", "verifier": verifier} for at in (0, 1)
        ]
        (root / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        (root / "clerk.py").write_text(AGENT)
        params: dict[str, Any] = {
            "max_steps": 3,
            "batch_size": 2,
            "group_size": 4,
            "advantage": "mean",
            "sampling": {"max_tokens": 8},
            "agent_import_path": "clerk:Clerk",
        }
        run = {
            "name": "r",
            "data": {"path": "tasks.jsonl"},
            "model": {"name": model},
            "algorithm": {"kind": "rl", "params": params},
            "backend": {"kind": "local"},
        }
        (root / "config.yaml").write_text(json.dumps({"name": "e", "output_dir": "outputs", "run": run}))
        environment = dict(os.environ)
        if checkout is not None:
            environment["PYTHONPATH"] = str(checkout / "src")
        command = [sys.executable, "-m", "evsys_sdk", "run", "config.yaml", "--quiet"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        logs = root / "outputs" / "e" / "r" / "logs"
        metrics = [json.loads(line) for line in (logs / "metrics.jsonl").read_text().splitlines()]
        timing = [json.loads(line) for line in (logs / "timing.jsonl").read_text().splitlines()]
        if not any("loss" in line for line in metrics):
            raise SystemExit(done.stdout + done.stderr)
        return [{**line, **times} for line, times in zip(metrics, timing, strict=False)]


def measure_training(model: str, before: Path) -> None:
    for name, checkout in (("before", before), ("now", None)):
        steps = [step for step in train(checkout, model) if "loss" in step]
        sampled = sum(step["tokens_sampled"] for step in steps)
        trained = sum(step["tokens"] for step in steps)
        took = {key: sum(step[f"time/{key}_s"] for step in steps) / len(steps) for key in ("rollouts", "compute")}
        shown = "  ".join(f"{key} {value:.1f} s" for key, value in took.items())
        print(f"RL, {TURNS} turns     {name:6}  {trained / sampled:5.2f} tokens trained for one sampled   {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a model, for RL on the backend local")
    parser.add_argument("--before", type=Path, help="checkout of an older version")
    given = parser.parse_args()
    asyncio.run(measure_requests())
    measure_turns()
    if given.model and given.before:
        measure_training(given.model, given.before)


if __name__ == "__main__":
    main()
