"""`inspect`: a task of inspect_ai as a benchmark, with its own solver and scorer, on a model of this SDK.

    benchmark: { name: sums, path: "inspect:evals/sums.py@sums?digits=2", split: test }

The samples are listed once, as tasks. To score a model, Inspect evaluates them in a separate process that requests each
answer from this one. Its log is kept, and the scores are read from the log.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ...data.types import HarborTask
from ...errors import DataError, EvalError
from ...paths import in_project, project_root
from ...protocols import Row
from ...rollouts.engine import EngineLimits
from ...rollouts.rollout import Policy
from ...training.blocking import run_blocking
from ...user_code import report_progress
from ..foreign_run import ForeignParams, ForeignRun, ForeignSuite, read_inspect_log
from ..scored_model import Sampling, ScoredModel

_LONGEST_LINE = 64 * 1024 * 1024
_LISTING_S = 600.0
_WORKER = "evsys_sdk.eval.inspect_worker"


class InspectParams(ForeignParams):
    """The task and its score."""

    subject: str = Field(min_length=1)
    """`FILE.py@NAME` in the project, or `PACKAGE/NAME` of an installed package such as `inspect_evals`."""
    scorer: str | None = Field(default=None, min_length=1)
    """The score to use if the task has several: `NAME`, or `NAME/KEY` for a scorer with several values."""


class Inspect(ForeignSuite[InspectParams]):
    """Evaluate with a task of inspect_ai: its samples, solver and scorer. For benchmarks only."""

    name: ClassVar[str] = "inspect"
    program: ClassVar[str] = "inspect-ai"
    Config = InspectParams

    @property
    def version(self) -> str:
        """Version of the library, and a hash of the task's file."""
        file = in_project(self.cfg.subject.partition("@")[0])
        return self.version_with([file] if file.is_file() else [])

    def make_rows(self) -> Iterator[Row]:
        """Yield the samples of the task, as Inspect loads them."""
        message = run_blocking(lambda: _Run({"do": "rows", **self._order}).finish(_LISTING_S))
        for sample in message["rows"]:
            *context, last = sample["messages"]
            row = self.make_row(sample["id"], last["content"], sample["target"] or None, sample["content"])
            yield row | {"metadata": {"context_messages": context} if context else {}}

    async def run_tasks(
        self,
        model: ScoredModel,
        sampling: Sampling,
        tasks: Sequence[HarborTask],
        *,
        samples: int,
        limits: EngineLimits,
        folder: Path | None,
    ) -> ForeignRun:
        """Evaluate these tasks with Inspect and read its log."""
        with tempfile.TemporaryDirectory() as temporary:
            order = {"do": "run", "samples": self.contents(tasks), "epochs": samples, "concurrency": limits.concurrency}
            order |= {"timeout_s": int(limits.timeout_s), "folder": str(folder or temporary), "model": "evsys"}
            run = _Run(order | self._order, partial(model.policy, sampling))
            log = await run.finish(None)
            return read_inspect_log(Path(log["log"]), scorer=self.cfg.scorer)

    @property
    def _order(self) -> dict[str, Any]:
        return {"task": self.cfg.subject, "args": self.cfg.knobs, "scorer": self.cfg.scorer}


@dataclass(slots=True)
class _Run:
    """One worker process with Inspect, and the answers to its requests."""

    order: Mapping[str, Any]
    policy: Callable[[str, int], Policy] | None = None
    """(sample id, epoch) -> the policy of that rollout."""
    _policies: dict[tuple[str, int], Policy] = field(default_factory=dict[tuple[str, int], Any])

    async def finish(self, limit_s: float | None) -> dict[str, Any]:
        """Start the process, answer its requests, and return its final message."""
        with tempfile.TemporaryFile() as printed:
            process = await asyncio.create_subprocess_exec(
                # -P keeps the project's folder off the path, where a file may shadow a module.
                *(sys.executable, "-P", "-m", _WORKER),
                cwd=project_root(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=printed,
                limit=_LONGEST_LINE,
            )
            answers: set[asyncio.Task[None]] = set()
            try:
                await _send(process, self.order)
                async with asyncio.timeout(limit_s):
                    while line := await _next_line(process):
                        if "ask" not in line:
                            break
                        task = asyncio.create_task(self._answer(process, line))
                        answers.add(task)
                        task.add_done_callback(answers.discard)
            finally:
                for task in answers:
                    task.cancel()
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            printed.seek(0)
            tail = printed.read()[-2000:].decode(errors="replace").strip()
        if not line or "error" in line:
            reason = line["error"] if line else f"its process ended with {process.returncode}: {tail[-500:]}"
            raise DataError(f"task '{self.order['task']}' of inspect_ai: {reason}. Check the task with `inspect eval`.")
        return line

    async def _answer(self, process: asyncio.subprocess.Process, request: dict[str, Any]) -> None:
        attempt = request["sample"], request["epoch"] - 1
        try:
            unsupported = sorted({"stop_seqs", "response_schema", "num_choices", "logprobs"} & set(request["config"]))
            if unsupported:
                raise EvalError(f"the task sets {unsupported[0]}, which a benchmark does not support")
            assert self.policy is not None
            if attempt not in self._policies:
                self._policies[attempt] = self.policy(*attempt)
            turn = await self._policies[attempt].act(request["messages"], tools=request["tools"] or None)
            used = {"input_tokens": turn.input_tokens, "output_tokens": turn.output_tokens}
            answer: dict[str, Any] = {"message": turn.message, "stop_reason": turn.stop_reason, **used}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        report_progress()
        with suppress(ConnectionError):
            await _send(process, {"ask": request["ask"], **answer})


async def _send(process: asyncio.subprocess.Process, message: Mapping[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    await process.stdin.drain()


async def _next_line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    return json.loads(line) if line else {}
