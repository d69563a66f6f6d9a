"""`verifiers`: tasks of a taskset of the verifiers library (its `v1` API), run by this SDK's rollout engine.

    path: "verifiers:tasksets/sums.py?split=train&size=500&max_terms=3"

The transcript of a rollout becomes a `vf.Trace`, and the task's own `@vf.reward` methods score it in this process.
Tasks that need more than a chat (a harness program, tools, a container) need `program=true` and the agent `verifiers`,
which runs that program. Images and several agents are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, ValidationError

from ...config.base import Strict
from ...data.chat import text_of
from ...data.types import Message
from ...errors import DataError, EvalError, EvsysError
from ...inference.conversation import split_thinking
from ...paths import project_root
from ...protocols import Row, VerificationResult
from ...settings import import_reference
from ...user_code import default_limit_s, user_code
from ..answers.answer import without_thinking
from ..verifier import BaseVerifier

_SPLITS = ("train", "train", "val", "test")
_TRIES = 20
"""Tasks to read per requested task before an infinite taskset counts as exhausted."""
_BUILT_IN = "verifiers.v1.tasksets"


class VerifiersParams(Strict):
    """The taskset and its tasks; `split`, `size` and `seed` go to the taskset if its config has these fields."""

    subject: str = Field(min_length=1)
    """Module of the taskset: `my_taskset`, or a file `folder/my_taskset.py` of the project."""
    knobs: dict[str, Any] = {}
    """Fields of the taskset's own config; `task.name` is the field `name` of the config of its tasks."""
    split: str | None = Field(default=None, min_length=1)
    """Split of the tasks. If the taskset has no splits: `train`, `val` or `test`, by a hash of the prompt."""
    size: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum number of tasks; all by default."""
    seed: int | None = None
    """Seed for shuffling the tasks; the taskset's own order by default."""
    ignore_thinking: bool = True
    """Whether reasoning in <think>…</think> is separated from the answer, as a chat server does."""
    program: bool = False
    """Whether the library runs the tasks, with a harness program and a runtime; needs `agent: {kind: verifiers}`."""
    data: dict[str, Any] = {}
    """Data of one task, set in each row."""


class Verifiers(BaseVerifier[VerifiersParams]):
    """Take tasks from a taskset of the verifiers library, and score answers with their own rewards."""

    name: ClassVar[str] = "verifiers"
    Config = VerifiersParams

    @property
    def version(self) -> str:
        """Version of the library, and a hash of the taskset's code."""
        return f"{version('verifiers')}-{_load(self.cfg.subject).hash}"

    def make_rows(self) -> Iterator[Row]:
        """Yield the tasks of the split, as rows that can be scored without loading the tasks again."""
        taskset = _load(self.cfg.subject)
        options = {key: value for key in ("split", "size", "seed") if (value := getattr(self.cfg, key)) is not None}
        fields = set(taskset.config_type.model_fields)
        config = taskset.configure(self.cfg.knobs | {key: options.pop(key) for key in tuple(options) if key in fields})
        tasks = self._read_tasks(taskset.cls(config), **options)
        if not tasks:
            raise DataError(
                f"taskset '{self.cfg.subject}' has no task for {options or 'its config'}. Correct the path."
            )
        for reason in taskset.obstacles(config, program=self.cfg.program):
            raise self._refusal(reason)
        seen: Counter[str] = Counter()
        for task in tasks:
            for reason in _obstacles(task, program=self.cfg.program):
                raise self._refusal(f"task {task.data.idx} {reason}")
            key = _key(task.data)
            seen[key] += 1
            yield self._row(task, key if seen[key] == 1 else f"{key}-{seen[key]}")

    async def verify(self, *, completion: str, messages: list[Message]) -> VerificationResult:
        """Return the weighted sum of the task's rewards; `info` holds each reward and metric."""
        if self.cfg.program:
            raise EvalError("a task with program=true is scored where its program ran. Set agent: {kind: verifiers}.")
        task = self._task()
        opening = _opening(task.data)
        answers = messages[len(opening) :] or [{"role": "assistant", "content": completion}]
        trace = _trace(task, opening, [self._answer(message) for message in answers])
        limits = task.data.timeout
        for hook, limit in ((task.setup, limits.setup), (task.finalize, limits.finalize)):
            async with asyncio.timeout(limit):
                await hook(**{name: {"trace": trace}.get(name) for name in inspect.signature(hook).parameters})
        async with asyncio.timeout(limits.scoring):
            await task.score(trace)
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        return VerificationResult(trace.reward, {**trace.metrics, **rewards})

    async def run_program(self, spec: Mapping[str, Any]) -> Any:
        """Run the task's harness program and return its trace; `spec` is the library's config of an agent."""
        vf, taskset = _library(), _load(self.cfg.subject)
        harness = None if spec["harness"] else taskset.harness
        # The library finds only harnesses of installed packages, so replace its harness by the taskset's own.
        agent = vf.Agent(vf.AgentConfig.model_validate({**spec, "harness": spec["harness"] or {"id": "null"}}))
        if harness is not None:
            kind = (
                import_module("verifiers.v1.utils.generic").concrete_type(harness, vf.HarnessConfig) or vf.HarnessConfig
            )
            agent.harness = harness(kind(id=harness.__name__))
        return await agent.run(self._task())

    def _task(self) -> Any:
        return _load(self.cfg.subject).build_task(self.cfg.data, json.dumps(self.cfg.knobs, sort_keys=True))

    def _read_tasks(
        self, taskset: Any, *, size: int | None = None, seed: int | None = None, split: str | None = None
    ) -> list[Any]:
        if split is not None and split not in _SPLITS:
            raise DataError(
                f"taskset '{self.cfg.subject}' has no splits, and split is '{split}'. "
                "Set train, val or test, which divide its tasks by their prompts."
            )
        if not taskset.bounded:
            if size is None:
                raise DataError(f"taskset '{self.cfg.subject}' is infinite. Set a size.")
            taskset = taskset.take(_TRIES * size)
        try:
            with user_code(f"reading the tasks of '{self.cfg.subject}'", limit_s=default_limit_s(600)):
                tasks = iter(taskset if seed is None else taskset.shuffle(seed))
                return list(islice((task for task in tasks if split is None or split == _split(task.data)), size))
        except EvsysError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"taskset '{self.cfg.subject}': reading its tasks failed: {reason}. Correct it.") from error

    def _refusal(self, reason: str) -> DataError:
        return DataError(
            f"taskset '{self.cfg.subject}': {reason}. Here a task is a chat that is scored in this process, or, with "
            "program=true in the path and agent: {kind: verifiers}, one run of a harness program."
        )

    def _row(self, task: Any, task_id: str) -> Row:
        *context, last = _opening(task.data)
        ends_with_user = last["role"] == "user"
        if not ends_with_user:
            context = [*context, last]
        params = self.cfg.model_dump(include={"subject", "knobs", "ignore_thinking", "program"}, exclude_defaults=True)
        params["data"] = task.data.model_dump(mode="json", exclude_defaults=True, exclude={"idx"})
        return {
            "task_id": task_id,
            "instruction": last["content"] if ends_with_user else "",
            "verifier": {"kind": "in_process", "fn_name": self.name, "params": params},
            "metadata": {"taskset": self.cfg.subject, **({"context_messages": context} if context else {})},
        }

    def _answer(self, message: Message) -> Message:
        """Return a message with its reasoning in a separate field."""
        text = text_of(message.get("content") or "")
        if message["role"] != "assistant" or not self.cfg.ignore_thinking:
            return {**message, "content": text}
        thinking = message.get("reasoning_content") or split_thinking(text)[0] or None
        return {**message, "content": without_thinking(text).lstrip("\n"), "reasoning_content": thinking}


class _Taskset:
    """A taskset's class with the types of its config and tasks."""

    def __init__(self, subject: str) -> None:
        vf = _library()
        with user_code(f"importing '{subject}'", limit_s=default_limit_s()):
            module = import_reference(_module_name(subject), project_root())
        exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
        self.exported = [value for value in exported if isinstance(value, type)]
        tasksets = [kind for kind in self.exported if issubclass(kind, vf.Taskset)]
        if len(tasksets) != 1:
            names = ", ".join(kind.__name__ for kind in tasksets) or "none"
            raise DataError(f"'{subject}' exports {names} as a taskset. Name exactly one vf.Taskset in its __all__.")
        self.subject, self.file = subject, Path(str(module.__file__))
        self.cls: Any = tasksets[0]
        concrete_type = import_module("verifiers.v1.utils.generic").concrete_type
        self.config_type: Any = concrete_type(self.cls, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
        self.task_type: Any = self.cls.task_type()

    @property
    def hash(self) -> str:
        """Hash of the taskset's file, or of all Python files if it is a package."""
        files = sorted(self.file.parent.rglob("*.py")) if self.file.name == "__init__.py" else [self.file]
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def configure(self, knobs: Mapping[str, Any]) -> Any:
        nested: dict[str, Any] = {"id": self.cls.__module__}
        for key, value in knobs.items():
            *path, last = key.split(".")
            place = nested
            for part in path:
                place = place.setdefault(part, {})
            place[last] = value
        try:
            return self.config_type.model_validate(nested)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            names = ", ".join(name for name in self.config_type.model_fields if name != "id")
            raise DataError(f"taskset '{self.subject}': {field}: {first['msg']}. Its config has {names}.") from error

    def build_task(self, data: dict[str, Any], knobs: str) -> Any:
        return self.task_type(self.task_type.data_type().model_validate(data), _configured(self, knobs).task)

    @property
    def harness(self) -> Any:
        """The harness that the taskset exports; None if it has none."""
        return next((kind for kind in self.exported if issubclass(kind, _library().Harness)), None)

    def obstacles(self, config: Any, *, program: bool) -> Iterator[str]:
        """Yield the reasons why the taskset cannot run; a `program` runs in the library, which supports more."""
        if any(issubclass(kind, _library().Env) for kind in self.exported):
            yield "it has its own environment, with agents and branches beyond one chat"
        if program:
            return
        if self.harness is not None:
            yield "it has its own harness program"
        if self.cls.toolsets(config) or self.task_type.toolsets(config.task):
            yield "it offers tools of a tool server"


def _load(subject: str) -> _Taskset:
    return _load_from(Path.cwd(), subject)


@lru_cache(maxsize=64)
def _load_from(_: Path, subject: str) -> _Taskset:
    return _Taskset(subject)


@lru_cache(maxsize=64)
def _configured(taskset: _Taskset, knobs: str) -> Any:
    return taskset.configure(json.loads(knobs))


def _library() -> Any:
    return import_module("verifiers.v1")


def _module_name(subject: str) -> str:
    """Return the module to import: a file of the project, a built-in taskset of the library, or an installed module."""
    if subject.endswith(".py"):
        return subject
    name = subject.rpartition("/")[2].replace("-", "_")
    return f"{_BUILT_IN}.{name}" if find_spec(f"{_BUILT_IN}.{name}") else name


def _obstacles(task: Any, *, program: bool) -> Iterator[str]:
    """Yield the reasons why a task cannot run."""
    data, base = task.data, _library().Task
    if data.prompt is None:
        yield "has no prompt, because a simulated user opens the conversation"
    elif any(
        not isinstance(part, str) and part.type != "text"
        for message in _messages(data.prompt)
        for part in message.content or ()
    ):
        yield "has images in its prompt"
    if not task.hooks("reward"):
        yield "has no reward"
    if task.config.judges:
        yield "is scored by a judge model, whose cost would not be counted"
    if program:
        return
    if task.NEEDS_CONTAINER or data.image or data.skills or data.artifacts:
        yield "needs a container, skills or artifacts"
    if import_module("verifiers.v1.utils.decorators").discover_decorated(task, "intercept"):
        yield "changes what is sent to the model"
    own_hooks = [getattr(task, name) for name in ("setup", "finalize")]
    hooks = [hook for hook in own_hooks if hook.__func__ is not getattr(base, hook.__name__)]
    for hook in (*hooks, *task.hooks("reward"), *task.hooks("metric")):
        needed = inspect.signature(hook).parameters.get("runtime")
        if needed is not None and needed.default is inspect.Parameter.empty:
            yield f"needs a runtime for '{hook.__name__}'"


def _messages(prompt: Any) -> list[Any]:
    return [] if isinstance(prompt, str) else list(prompt or ())


def _opening(data: Any) -> list[Message]:
    """Return the initial messages of a task."""
    messages: list[Message] = [message.model_dump(mode="json", exclude_none=True) for message in _messages(data.prompt)]
    if isinstance(data.prompt, str):
        messages = [{"role": "user", "content": data.prompt}]
    if data.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    return [{**message, "content": text_of(message.get("content") or "")} for message in messages]


def _key(data: Any) -> str:
    """Return a task's own id, or a hash of its content without its position."""
    content = data.model_dump(mode="json", exclude_none=True, exclude={"idx"})
    return data.id or hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _split(data: Any) -> str:
    """Return the split of a task, by a hash of its prompt."""
    key = hashlib.sha256(json.dumps(_opening(data), sort_keys=True).encode()).hexdigest()
    return _SPLITS[int(key[:8], 16) % len(_SPLITS)]


def _trace(task: Any, opening: list[Message], answers: list[Message]) -> Any:
    """Build the library's trace of a chat, which has a single branch."""
    vf = _library()
    trace_module, state = import_module("verifiers.v1.trace"), import_module("verifiers.v1.state").state_cls(type(task))
    messages = [(message, False) for message in opening] + [
        (message, message["role"] == "assistant") for message in answers
    ]
    nodes = [
        {"parent": at - 1 if at else None, "message": _message(message), "sampled": sampled}
        for at, (message, sampled) in enumerate(messages)
    ]
    trace = vf.Trace(
        task=trace_module.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=_agent(),
        state=state(),
        nodes=nodes,
        calls=[{"node": at} for at, (_, sampled) in enumerate(messages) if sampled],
        ok=True,
    )
    trace.stop("agent_completed")
    return trace


def _message(message: Message) -> dict[str, Any]:
    """Convert a message to the library's format, in which tool calls have no nested `function`."""
    fields = ("role", "content", "reasoning_content", "tool_call_id", "name")
    calls: list[dict[str, Any]] = [{**call, **call["function"]} for call in message.get("tool_calls") or ()]
    for at, call in enumerate(calls):
        call.setdefault("id", str(at))
        if not isinstance(call["arguments"], str):
            call["arguments"] = json.dumps(call["arguments"])
    return {key: message[key] for key in fields if key in message} | ({"tool_calls": calls} if calls else {})


@lru_cache(maxsize=1)
def _agent() -> Any:
    return import_module("verifiers.v1.trace").AgentInfo(config=_library().AgentConfig())
