"""`evsys serve` against SkyRL's Tinker server: the same package, the same requests, models of the same size, one CPU.

    python benchmarks/skyrl_server.py [--rounds 5] [--skyrl-python PATH] [--local-python PATH]

SkyRL trains a Qwen3 of 0.1 million parameters with JAX. `evsys serve --backend local` trains the very same model with
torch, also in float32, if --local-python names an interpreter with the extras `local` and `server`. `--backend mock` is
another and simpler model: its row shows what remains when the model costs little, not who computes faster. All are
asked in turn, through the `tinker` package. The environments are those of `make test-skyrl` and `make test-tinker`.
"""

import argparse
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
DATA, LENGTH = 64, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=ROOT / ".venvs/tinker/bin/python")
    parser.add_argument("--skyrl-python", type=Path, default=ROOT / ".venvs/skyrl/bin/python")
    parser.add_argument("--local-python", type=Path, help="has the extras `local` and `server`")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for needed, target in ((options.python, "test-tinker"), (options.skyrl_python, "test-skyrl")):
        if not needed.exists():
            raise SystemExit(f"needs {needed}: run `make {target}` once")
    if find_spec("tinker") is None:
        os.execv(options.python, [str(options.python), *sys.argv])
    from measure import machine

    print(machine())
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        contenders = list(started(options, Path(folder), stack))
        for _ in range(options.rounds + 1):  # the first is for what is compiled or loaded on first use
            for contender in contenders:
                contender.measure()
        check_agreement(contenders)
        report(contenders)


def started(options: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> "Iterator[Contender]":
    sys.path.insert(0, str(ROOT / "tests/skyrl"))
    from running import SkyRLServer, tiny_model

    model = tiny_model(options.skyrl_python)
    skyrl = stack.enter_context(SkyRLServer(options.skyrl_python, model, folder / "skyrl"))
    yield Contender(f"SkyRL {version_of(options.skyrl_python)}, JAX", skyrl.url, skyrl.process.pid, str(model))
    if options.local_python is not None:
        local = evsys_serve(options.local_python, "local", str(model), folder / "local", "dtype=float32")
        url, pid = stack.enter_context(local)
        yield Contender("evsys serve, local (torch)", url, pid, str(model))
    url, pid = stack.enter_context(evsys_serve(options.python, "mock", "tiny", folder / "mock"))
    yield Contender("evsys serve, mock (numpy)", url, pid, "tiny")


def version_of(python: Path) -> str:
    command = [str(python), "-c", "from importlib.metadata import version; print(version('skyrl'))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def evsys_serve(python: Path, backend: str, model: str, folder: Path, *params: str) -> Iterator[tuple[str, int]]:
    command = [str(python), "-m", "evsys_sdk", "serve", "--backend", backend, "--model", model, "--port", "0", "--json"]
    command += [part for param in params for part in ("--backend-param", param)]
    process = subprocess.Popen([*command, "--state-dir", str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    try:
        line = process.stdout.readline()
        if not line.startswith('{"'):
            raise SystemExit(f"`{' '.join(command)}` did not start")
        yield json.loads(line)["url"], process.pid
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Contender:
    """A server, and how long it took to do what it was asked."""

    name: str
    url: str
    pid: int
    model: str
    times: dict[str, list[float]] = field(default_factory=dict)
    cpu: list[float] = field(default_factory=list)
    logprobs: Any = None
    _client: Any = None
    _data: Any = None

    def measure(self) -> None:
        """One round: a large backward pass, empty steps one by one, and empty steps that are sent ahead."""
        import tinker

        if self._client is None:
            service = tinker.ServiceClient(base_url=self.url, api_key="tml-any")
            self._client, self._data = service.create_lora_training_client(self.model, rank=8, seed=1), batch()
        client, adam = self._client, tinker.types.AdamParams(learning_rate=0.0)
        used = cpu_seconds(self.pid)
        self._timed("backward", lambda: self._backward(client))
        self.cpu.append(cpu_seconds(self.pid) - used)
        for _ in range(5):
            self._timed("step", lambda: client.optim_step(adam).result(timeout=600))
        self._timed(
            "20 steps", lambda: [step.result(timeout=600) for step in [client.optim_step(adam) for _ in range(20)]]
        )

    def _backward(self, client: Any) -> None:
        output = client.forward_backward(self._data, "cross_entropy").result(timeout=600)
        self.logprobs = output.loss_fn_outputs[0]["logprobs"].to_numpy()

    def _timed(self, what: str, call: Any) -> None:
        began = time.perf_counter()
        call()
        self.times.setdefault(what, []).append(time.perf_counter() - began)

    def settled(self, what: str) -> list[float]:
        """Without the first round."""
        found = self.times[what]
        return found[len(found) // len(self.cpu) :]


def all_of(futures: list[Any]) -> None:
    for future in futures:
        future.result(timeout=600)


def batch() -> list[Any]:
    import numpy as np
    import tinker

    tokens = np.random.default_rng(0).integers(3, 256, (DATA, LENGTH + 1))
    return [
        tinker.types.Datum(
            model_input=tinker.types.ModelInput.from_ints(row[:-1].tolist()),
            loss_fn_inputs={"target_tokens": row[1:].astype(np.int64), "weights": np.ones(LENGTH, np.float32)},
        )
        for row in tokens
    ]


def cpu_seconds(pid: int) -> float:
    """What a process and its children have used so far; on a busy machine this says more than wall time."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            if pid in (int(path.parent.name), int(fields[1])):
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def check_agreement(contenders: list[Contender]) -> None:
    """What trains the same model must find the same log-probabilities."""
    first = contenders[0]
    for other in contenders[1:]:
        if other.model == first.model:
            difference = abs(first.logprobs - other.logprobs).max()
            assert difference < 1e-3, f"{first.name} and {other.name} differ by {difference}"
            print(f"{first.name} and {other.name}: log-probabilities differ by at most {difference:.1e}")


def report(contenders: list[Contender]) -> None:
    title = f"forward_backward, {DATA} x {LENGTH}"
    print(f"\n{title:32s}{'median s':>10s}{'best s':>10s}{'first s':>10s}{'server CPU s':>14s}{'tokens/s':>10s}")
    for one in contenders:
        times, first = one.wait_until_settled("backward"), one.times["backward"][0]
        middle, used = statistics.median(times), statistics.median(one.cpu[1:])
        print(f"{one.name:32s}{middle:10.3f}{min(times):10.3f}{first:10.2f}{used:14.2f}{DATA * LENGTH / middle:10,.0f}")
    print(f"\n{'optim_step without a gradient':32s}{'median ms':>10s}{'best ms':>10s}{'sent ahead, steps/s':>22s}")
    for one in contenders:
        times, ahead = one.wait_until_settled("step"), 20 / statistics.median(one.wait_until_settled("20 steps"))
        print(f"{one.name:32s}{1e3 * statistics.median(times):10.1f}{1e3 * min(times):10.1f}{ahead:22.1f}")


if __name__ == "__main__":
    main()
