"""Processor time per chat rollout through each engine, and through Harbor's own queue with nothing of ours around it.

$(scripts/env.sh harbor dev harbor)/bin/python benchmarks/engines.py
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.verifier.result import VerifierResult
from harbor.trial.queue import TrialQueue
from harbor.verifier.base import BaseVerifier
from measure import machine

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.engine import EngineLimits, InlineEngine, RolloutEngine, RolloutRequest
from evsys_sdk.rollouts.harbor.engine import HarborEngine
from evsys_sdk.rollouts.harbor.task_folder import write_stub
from evsys_sdk.rollouts.harness import build_harness
from evsys_sdk.rollouts.rollout import Message, Rollout, Turn

LATENCY_S = 0.05
TASK = HarborTask("t", "say yes", InProcessVerifier("exact_match", expected="yes"))


class SlowPolicy:
    async def act(self, messages: Sequence[Message], *, tools: Any = None) -> Turn:
        await asyncio.sleep(LATENCY_S)
        return Turn({"role": "assistant", "content": "yes"}, list(range(200)), list(range(50)), [-0.5] * 50)


async def verify(task: HarborTask, rollout: Rollout, environment: Any) -> VerificationResult:
    return VerificationResult(1.0)


class BareAgent(BaseAgent):
    @staticmethod
    def name() -> str:
        return "bare"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: Any) -> None:
        await asyncio.sleep(LATENCY_S)


class BareEnvironment(BaseEnvironment):
    @staticmethod
    def type() -> str:
        return "bare"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    def is_path_mounted(self, environment_path: Any, host_path: Path) -> bool:
        return True

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        pass

    async def exec(self, *_: Any, **__: Any) -> ExecResult:
        return ExecResult(return_code=0)

    async def upload_file(self, *_: Any, **__: Any) -> None:
        pass

    upload_dir = download_file = download_dir = upload_file


class BareVerifier(BaseVerifier):
    async def verify(self) -> VerifierResult:
        return VerifierResult(rewards={"reward": 1.0})


async def bare_queue(root: Path, trials: int, concurrency: int) -> list[float | None]:
    queue = TrialQueue(concurrency)
    task = TaskConfig(path=write_stub(root, {}))
    configs = [
        TrialConfig(
            task=task,
            trial_name=uuid.uuid4().hex,
            trials_dir=root / "trials",
            agent=AgentConfig(import_path="engines:BareAgent"),
            environment=EnvironmentConfig(import_path="engines:BareEnvironment"),
            verifier=VerifierConfig(import_path="engines:BareVerifier"),
        )
        for _ in range(trials)
    ]
    results = await asyncio.gather(*queue.submit_batch(configs))
    return [result.verifier_result.rewards["reward"] for result in results]


def run_bare(trials: int, concurrency: int) -> list[float | None]:
    root = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        return asyncio.run(bare_queue(root, trials, concurrency))
    finally:
        shutil.rmtree(root)


def run_engine(engine: RolloutEngine, trials: int) -> list[float | None]:
    harness, policy = build_harness(), SlowPolicy()
    requests = [RolloutRequest(TASK, sample, policy, harness, verify) for sample in range(trials)]
    try:
        return [rollout.reward for rollout in engine.submit(requests).result()]
    finally:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    limits = EngineLimits(concurrency=options.concurrency)
    ways: dict[str, Callable[[], list[float | None]]] = {
        "inline": lambda: run_engine(InlineEngine(limits), options.trials),
        "harbor": lambda: run_engine(HarborEngine(limits), options.trials),
        "TrialQueue alone": lambda: run_bare(options.trials, options.concurrency),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for repeat in range(options.repeats + 1):
        for name, way in ways.items():
            cpu, wall = time.process_time(), time.perf_counter()
            assert way() == [1.0] * options.trials, name
            if repeat:  # the first one also pays for imports
                spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    print(machine())
    bare = statistics.median(cpu for cpu, _ in spent["TrialQueue alone"])
    for name, found in spent.items():
        cpus = [cpu / options.trials * 1000 for cpu, _ in found]
        wall = min(wall for _, wall in found)
        ratio = statistics.median(cpus) * options.trials / 1000 / bare
        print(
            f"{name:<18} {min(cpus):6.2f} / {statistics.median(cpus):6.2f} ms CPU per rollout (least / median)   "
            f"{ratio:5.2f}x TrialQueue alone   best wall {wall:5.2f} s"
        )


if __name__ == "__main__":
    main()
