"""`evsys serve`: requests per second, latency, what the wire adds to a forward_backward of 64 x 512 tokens, and how
much longer a client waits beside one that asks for everything at once (aim: three times as long at most).

    python benchmarks/serve.py [--python PATH] [--rounds 12]

The server runs as a process of its own with the mock backend. `bare` is a client of a few lines on a raw socket, so
that the server is what is measured; `tinker` is the package that users have. The work itself is the same everywhere, so
the difference to `in process` is what the protocol costs. Needs an interpreter with the extra `server`.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SMALL = ["--backend-param", "hidden=8"]
"""A model that computes little, so that what the protocol costs is not lost in the noise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=str(ROOT / ".venvs/tinker/bin/python"), help="has the extra `server`")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    if find_spec("tinker") is None or find_spec("uvicorn") is None:
        if not Path(options.python).exists():
            raise SystemExit(
                "needs the extra `server`: run `make test-tinker` once, or name an interpreter with --python"
            )
        os.execv(options.python, [options.python, *sys.argv])
    from measure import machine

    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder))
        try:
            asyncio.run(requests_per_second(*server, options.seconds))
            forward_backward(*server, Path(folder), options.rounds)
            asyncio.run(beside_a_greedy_client(server[1], options.rounds))
        finally:
            server[0].terminate()
            server[0].wait(30)


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "evsys_sdk", "serve", "--model", "tiny", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, *SMALL, "--state-dir", str(folder / "state")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, json.loads(process.stdout.readline())["url"]


class Bare:
    """One connection, one request after another."""

    async def open(self, url: str) -> "Bare":
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._in, self._out = await asyncio.open_connection(self._host, int(port), limit=1 << 24)
        return self

    async def send(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        head = f"{method} /api/v1/{path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._out.write(head.encode() + body)
        answer = (await self._in.readuntil(b"\r\n\r\n")).decode()
        length = int(answer.lower().partition("content-length: ")[2].partition("\r\n")[0])
        return int(answer[9:12]), await self._in.readexactly(length)

    async def json(self, path: str, body: Any) -> Any:
        status, content = await self.send(path, json.dumps(body).encode())
        assert status == 200, content
        return json.loads(content)

    async def model(self) -> str:
        session = (await self.json("create_session", {}))["session_id"]
        body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 8, "seed": 1}}
        return (await self.result((await self.json("create_model", body))["request_id"]))["model_id"]

    async def result(self, request_id: str) -> Any:
        return await self.json("retrieve_future", {"request_id": request_id})

    async def sampler(self) -> str:
        session = (await self.json("create_session", {}))["session_id"]
        body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        return (await self.json("create_sampling_session", body))["sampling_session_id"]

    async def ask_for_samples(self, sampler: str, number: int, count: int, params: Any) -> str:
        prompt = {"chunks": [{"type": "encoded_text", "tokens": list(b"Once upon a time")}]}
        body = {"sampling_session_id": sampler, "seq_id": number, "num_samples": count, "prompt": prompt}
        return (await self.json("asample", {**body, "sampling_params": params}))["request_id"]

    async def sample_seconds(self, sampler: str, number: int) -> float:
        begin = time.perf_counter()
        request_id = await self.ask_for_samples(sampler, number, 8, {"max_tokens": 64, "seed": number, "stop": []})
        body = json.dumps({"request_id": request_id}).encode()
        while (await self.send("retrieve_future", body))[0] == 408:
            continue
        return time.perf_counter() - begin


async def requests_per_second(server: subprocess.Popen[str], url: str, seconds: float) -> None:
    """Look-ups, and whole operations that hardly do anything: an optimiser step of a model without a gradient."""
    print("\n                                   requests/s    p50 ms    p99 ms    server CPU us/request")
    for connections in (1, 32):
        clients = [await Bare().open(url) for _ in range(connections)]
        await measure(server, f"healthz, {connections} at once", clients, look_up, seconds, requests=1)
        steps = Steps([await client.model() for client in clients[:8]])
        await measure(server, f"optim_step + result, {connections} at once", clients, steps, seconds, requests=2)
        for session in {model.partition(":")[0] for model in steps.models}:
            await clients[0].send(f"sessions/{session}/finish", b"{}")


async def beside_a_greedy_client(url: str, rounds: int) -> None:
    """A client that draws 8 samples of 64 tokens, alone and while another waits for 3 x 1,024 samples of any length."""
    greedy, polite = await Bare().open(url), await Bare().open(url)
    much, little = await greedy.sampler(), await polite.sampler()
    alone = [await polite.sample_seconds(little, number) for number in range(rounds)]
    for number in range(3):
        await greedy.ask_for_samples(much, number, 1024, {"stop": []})
    beside = [await polite.sample_seconds(little, rounds + number) for number in range(rounds)]
    await greedy.send(f"sessions/{much.partition(':')[0]}/finish", b"{}")
    one, other = statistics.median(alone), statistics.median(beside)
    print(f"\n8 samples of 64 tokens     alone {1e3 * one:.0f} ms, beside a greedy client {1e3 * other:.0f} ms", end="")
    print(f" ({other / one:.1f}x; slowest {max(beside) / one:.1f}x)")


async def look_up(client: Bare, index: int) -> None:
    status, _ = await client.send("healthz", b"", "GET")
    assert status == 200


class Steps:
    """Optimiser steps, spread over some models."""

    def __init__(self, models: list[str]) -> None:
        self.models, self._counts = models, [0] * len(models)

    async def __call__(self, client: Bare, index: int) -> None:
        model = index % len(self.models)
        self._counts[model] += 1
        adam = {"model_id": self.models[model], "seq_id": self._counts[model], "adam_params": {"learning_rate": 0.0}}
        await client.result((await client.json("optim_step", adam))["request_id"])


async def measure(
    server: subprocess.Popen[str], name: str, clients: list[Bare], call: Any, seconds: float, *, requests: int
) -> None:
    times: list[float] = []
    cpu, begin = cpu_seconds(server.pid), time.perf_counter()
    end = begin + seconds

    async def worker(client: Bare, index: int) -> None:
        while (begin := time.perf_counter()) < end:
            await call(client, index)
            times.append(time.perf_counter() - begin)

    await asyncio.gather(*(worker(client, index) for index, client in enumerate(clients)))
    rate = requests * len(times) / (time.perf_counter() - begin)
    cpu = 1e6 * (cpu_seconds(server.pid) - cpu) / (requests * len(times))
    times.sort()
    middle, late = (1e3 * times[len(times) * part // 100] for part in (50, 99))
    print(f"{name:35s}{rate:10,.0f}{middle:10.2f}{late:10.2f}{cpu:25.0f}")


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; on a busy machine this says more than wall time."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def forward_backward(server: subprocess.Popen[str], url: str, folder: Path, rounds: int) -> None:
    """The same batch in this process and over the wire, in turn, so that a busy machine disturbs all alike."""
    import numpy as np
    import tinker

    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.datum import Datum
    from evsys_sdk.backends.mock.backend import MockBackend

    random = np.random.default_rng(0)
    data = [Datum.supervised(random.integers(0, 256, 513).tolist(), [1.0] * 513) for _ in range(64)]
    here = MockBackend(hidden=8).prepare(model=ModelSpec("tiny", lora_rank=8, seed=1), run_dir=folder)[
        "training_client"
    ]
    service = tinker.ServiceClient(base_url=url, api_key="tml-x")
    client = service.create_lora_training_client("tiny", rank=8, seed=1)
    inputs = [
        tinker.types.Datum(
            model_input=tinker.types.ModelInput.from_ints(datum.tokens.tolist()),
            loss_fn_inputs={"target_tokens": datum.target_tokens, "weights": datum.weights},
        )
        for datum in data
    ]
    bare = BareTraining(url, inputs)
    contenders: dict[str, Callable[[], float]] = {
        "in process": lambda: here.forward_backward(data, "cross_entropy").result().loss,
        "over the wire, bare": bare.loss,
        "over the wire, tinker": lambda: client.forward_backward(inputs, "cross_entropy").result().metrics["loss:sum"],
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    cpu = dict.fromkeys(contenders, 0.0)
    for _ in range(rounds):
        losses: set[float] = set()
        for name, call in contenders.items():
            used, begin = time.process_time() + cpu_seconds(server.pid), time.perf_counter()
            losses.add(call())
            times[name].append(time.perf_counter() - begin)
            cpu[name] += time.process_time() + cpu_seconds(server.pid) - used
        assert len(losses) == 1, "all must agree"
    title = f"forward_backward, 64 x 512 tokens, {len(bare.body) / 1e3:.0f} kB"
    print(f"\n{title:46s}    median ms    best ms    CPU ms, both ends")
    for name, found in times.items():
        middle, best, used = statistics.median(found), min(found), cpu[name] / rounds
        print(f"{name:40s}{1e3 * middle:19.1f}{1e3 * best:11.1f}{1e3 * used:21.1f}")
    service.close("success").result()


class BareTraining:
    """A forward_backward that was encoded beforehand."""

    def __init__(self, url: str, inputs: list[Any]) -> None:
        from tinker.proto.request_conv import forward_backward_request_to_proto
        from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(Bare().open(url))
        model_id = self._loop.run_until_complete(self._client.model())
        batch = ForwardBackwardInput(data=inputs, loss_fn="cross_entropy", loss_fn_config=None)
        request = ForwardBackwardRequest(forward_backward_input=batch, model_id=model_id, seq_id=1)
        self._message = forward_backward_request_to_proto(request)
        self.body = self._message.SerializeToString()

    def loss(self) -> float:
        from tinker.proto import tinker_public_pb2 as pb

        content = self._loop.run_until_complete(self._run())
        self._message.seq_id += 1
        self.body = self._message.SerializeToString()
        return pb.ForwardBackwardOutput.FromString(content).metrics["loss:sum"]

    async def _run(self) -> bytes:
        _, submitted = await self._client.send("forward_backward", self.body)
        request = json.dumps({"request_id": json.loads(submitted)["request_id"]}).encode()
        return (await self._client.send("retrieve_future", request))[1]


if __name__ == "__main__":
    main()
