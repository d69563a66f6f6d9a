"""The inspect_ai process: lists the samples of a task, or evaluates them with a model in the parent process.

    python -m evsys_sdk.eval.inspect_worker      # started by the task source `inspect`, never by hand

One JSON object per line. The parent sends an order; the worker requests completions by sample and epoch and ends with
its result. The task's prints go to stderr. Task code and Inspect's process-wide state stay out of the parent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

from .inspect_api import policy_api, read_message


class _Channel:
    """Concurrent requests to the parent."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}

    def send(self, **message: Any) -> None:
        with self._lock:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        state = import_module("inspect_ai.solver._task_state").sample_state()
        if state is None:
            raise RuntimeError("the model was called outside of a sample")
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._waiting[number] = loop, future
        self.send(ask=number, sample=str(state.sample_id), epoch=int(state.epoch), **question)
        answer = await future
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def read_answers(self) -> None:
        for line in sys.stdin:
            answer = json.loads(line)
            loop, future = self._waiting.pop(answer["ask"])
            loop.call_soon_threadsafe(lambda future=future, answer=answer: future.done() or future.set_result(answer))


def main() -> None:
    """Execute one order from stdin."""
    channel = _Channel()
    order = json.loads(sys.stdin.readline())
    try:
        task = _load(order["task"], order["args"])
        _check_scorer(task, order["scorer"] or "")
        samples = {str(sample.id): sample for sample in task.dataset}
        if order["do"] == "rows":
            channel.send(rows=[_row(sample) for sample in samples.values()])
            return
        changed = [id for id, content in order["samples"].items() if _content(samples.get(id)) != content]
        if changed:
            channel.send(error=f"sample '{changed[0]}' has changed since the tasks were listed")
            return
        threading.Thread(target=channel.read_answers, daemon=True).start()
        channel.send(log=_evaluate(task, order, samples, channel))
    except (Exception, SystemExit) as error:
        channel.send(error=f"{type(error).__name__}: {error}")


def _load(spec: str, args: dict[str, Any]) -> Any:
    tasks = import_module("inspect_ai._eval.loader").load_tasks([spec], args)
    if len(tasks) != 1:
        raise LookupError(f"'{spec}' names {len(tasks)} tasks; write FILE.py@NAME or PACKAGE/NAME")
    parameters = import_module("inspect_ai._util.registry").registry_params(tasks[0])
    if unknown := sorted(set(args) - set(parameters)):  # Inspect only warns
        raise TypeError(f"the task has no argument '{unknown[0]}'; it has {', '.join(sorted(parameters)) or 'none'}")
    for at, sample in enumerate(tasks[0].dataset):
        if sample.id is None:
            sample.id = at + 1  # as Inspect numbers them
    if len({str(sample.id) for sample in tasks[0].dataset}) < len(tasks[0].dataset):
        raise ValueError("two of its samples have the same id")
    return tasks[0]


def _check_scorer(task: Any, requested: str) -> None:
    """Refuse a wrong scorer before training; Inspect would fail only when its log is read."""
    registry = import_module("inspect_ai._util.registry")
    scorers: list[Any] = task.scorer or []
    names: list[str] = [registry.registry_unqualified_name(scorer) for scorer in scorers]
    name, _, key = requested.partition("/")
    if not names:
        raise LookupError("the task has no scorer")
    if name.rstrip("0123456789") not in names and name not in names if name else len(names) > 1:
        raise LookupError(f"it has scores of {', '.join(names)}. Name one of them as the scorer")
    chosen = scorers[names.index(name)] if name in names else scorers[0]
    values = registry.registry_info(chosen).metadata.get("metrics")
    if isinstance(values, dict) and not key:
        raise LookupError(f"'{name or names[0]}' gives several values. Name one as the scorer, e.g. '{names[0]}/KEY'")


def _row(sample: Any) -> dict[str, Any]:
    plain = isinstance(sample.input, str)
    messages = (
        [{"role": "user", "content": sample.input}] if plain else [read_message(message) for message in sample.input]
    )
    return {"id": str(sample.id), "messages": messages, "target": sample.target, "content": _content(sample)}


def _content(sample: Any) -> str | None:
    if sample is None:
        return None
    content = sample.model_dump_json(include={"input", "target", "choices"}, exclude={"input": {"__all__": {"id"}}})
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _evaluate(task: Any, order: dict[str, Any], samples: dict[str, Any], channel: _Channel) -> str:
    model = import_module("inspect_ai.model")
    model.modelapi(name="evsys_policy")(lambda: partial(policy_api(), ask=channel.ask))
    [log] = import_module("inspect_ai").eval(
        task,
        model=model.get_model(
            f"evsys_policy/{order['model']}", config=model.GenerateConfig(max_connections=order["concurrency"])
        ),
        sample_id=[samples[id].id for id in order["samples"]],
        epochs=order["epochs"],
        max_samples=order["concurrency"],
        time_limit=order["timeout_s"],
        fail_on_error=False,
        display="none",
        log_dir=order["folder"],
        log_format="eval",
    )
    return str(log.location).removeprefix("file://")


if __name__ == "__main__":
    main()
