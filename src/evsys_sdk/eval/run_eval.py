"""`run.eval`: score a run on rows with known targets.

Each row's conversation up to its last assistant turn is the prompt, that turn is the target; without one, the target is
the row's `answer` or `tool_slug`. Where texts hold `<answer>...</answer>`, only what stands inside is compared.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ..backends.client import SamplingParams
from ..config import ContinualStage, DataConfig, EvalConfig, InferenceSpec, MetricSpec
from ..data import ChatMessagesRow, TargetFormat, parse_rows
from ..errors import DataError, EvalError
from ..inference.adapter import as_chat_client
from ..inference.conversation import message_text
from ..inference.renderer import Renderer, row_messages
from ..log import get_logger
from ..protocols import Metric, Row
from ..registry import get_inference, get_metric
from ..training.callback import EvalRecord, Observers
from .answer import extract_answer

if TYPE_CHECKING:
    from ..backends.client import Sample, SamplingClient, TrainingClient
    from ..backends.future import Operation

ROOM_FOR_ANSWER = 256
"""Tokens the model may use where the target is shorter; a longer target gets twice its own length."""


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One prompt and the text that would be right."""

    prompt: list[dict[str, Any]]
    target: str


@dataclass(slots=True)
class RunEvaluator:
    """Scores the live model of one run."""

    config: EvalConfig
    client: TrainingClient
    renderer: Renderer
    observers: Observers
    load_rows: Callable[[DataConfig], Sequence[Row]]
    train_rows: Sequence[Row]
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """Why scores are missing, by what could not be scored."""
    _items: list[EvalItem] | None = None

    @property
    def failure(self) -> str | None:
        """Why scores are missing, as one text; None when none are."""
        return "; ".join(self.failures.values()) or None

    @property
    def wanted(self) -> bool:
        """Whether the run itself is to be scored; a continual one is, stage by stage, in any case."""
        return self.scores_stages and (self.config.eval_data is not None or bool(self.train_rows))

    @property
    def scores_stages(self) -> bool:
        """Whether the config names any metric at all."""
        return self.config.enabled and bool(self.config.metrics)

    @property
    def keys(self) -> list[str]:
        """The metrics a scoring yields."""
        return [f"{self.prefix}/{label}" for label in _labels(self.config.metrics)]

    @property
    def prefix(self) -> str:
        """`eval` for held-out rows; scores on training rows are called what they are."""
        return "eval" if self.config.eval_data is not None else "train_fit"

    @property
    def selection_metric(self) -> str | None:
        """The metric that may choose a checkpoint: never one measured on training rows, or on another model."""
        return self.keys[0] if self.wanted and self.config.eval_data and not self.config.inference else None

    async def __call__(self, step: int) -> Mapping[str, float]:
        """Score a frozen copy of the live model after `step`."""
        scores = await self._guarded(self._run_items, step=step, name=self.prefix, split=self.prefix)
        return {f"{self.prefix}/{label}": value for label, value in scores.items()}

    async def score_stage(self, stage: ContinualStage, step: int) -> Mapping[str, float]:
        """Score the live model on the held-out rows of one stage of a continual run."""
        held_out = stage.eval_data
        assert held_out is not None
        return await self._guarded(lambda: self._items_of(held_out), step=step, name=stage.name, split="eval")

    async def _guarded(
        self, load: Callable[[], Sequence[EvalItem]], *, step: int, name: str, split: str
    ) -> Mapping[str, float]:
        """Scores, or nothing: a failure must not undo the training, and must not vanish, so it is logged and kept."""
        what = f"{split}/{name}"
        try:
            scores = await self._score(load(), step=step, name=name, split=split)
        except Exception as error:
            self.failures[what] = f"{type(error).__name__}: {error}"
            get_logger(__name__).error("the evaluation after step %d failed: %s", step, self.failures[what])
            return {}
        self.failures.pop(what, None)
        return scores

    async def _score(self, items: Sequence[EvalItem], *, step: int, name: str, split: str) -> Mapping[str, float]:
        """Generate for every item and compute the configured metrics."""
        longest_target = max(len(self.client.tokenizer.encode(item.target)) for item in items)
        room = max(2 * longest_target, ROOM_FOR_ANSWER)
        if self.config.inference is not None:
            predictions = await ask(self.config.inference, items, room)
        else:
            predictions = await self._sample(await self.client.sampler(), items, room)
        answers = [extract_answer(text) for text in predictions]
        targets = [extract_answer(item.target) for item in items]
        computed: dict[str, float] = {}
        for label, spec in zip(_labels(self.config.metrics), self.config.metrics, strict=True):
            computed[label] = float(_metric(spec).compute(predictions=answers, targets=targets))
            if not math.isfinite(computed[label]):
                raise EvalError(f"metric '{spec.kind}' gave {computed[label]}, which is no score.")
        shown = [
            {"prompt": item.prompt, "prediction": text, "target": item.target}
            for item, text in zip(items, predictions, strict=True)
        ]
        self.observers.on_eval(EvalRecord(name, split, step, computed, shown))
        return computed

    async def _sample(self, sampler: SamplingClient, items: Sequence[EvalItem], room: int) -> list[str]:
        """The live model's most probable answers."""
        pending: list[Operation[list[Sample]]] = []
        for number, item in enumerate(items, start=1):
            prompt = self.renderer.prompt(item.prompt)
            free = self.client.capabilities.context_length - len(prompt)
            if free < 1:
                raise DataError(f"eval row {number}: its prompt of {len(prompt)} tokens leaves no room for an answer.")
            # A seed of its own, so that scoring does not change what the run samples afterwards.
            params = SamplingParams(min(room, free), temperature=0.0, seed=0, stop=self.renderer.stop)
            pending.append(sampler.sample(prompt, 1, params))
        return [str(self.renderer.parse((await operation)[0].tokens)["content"]) for operation in pending]

    def _run_items(self) -> list[EvalItem]:
        if self._items is None:
            self._items = self._load_items()
        return self._items

    def _load_items(self) -> list[EvalItem]:
        if self.config.eval_data is None:
            get_logger(__name__).warning(
                "eval has no eval_data: the training rows are scored and reported as train_fit/..., which says nothing "
                "about new rows. Add eval.eval_data."
            )
            return eval_items(self.train_rows[: self.config.n_samples])
        return self._items_of(self.config.eval_data)

    def _items_of(self, data: DataConfig) -> list[EvalItem]:
        return eval_items(self.load_rows(data)[: self.config.n_samples])


async def ask(inference: InferenceSpec, items: Sequence[EvalItem], room: int) -> list[str]:
    """The answers of an inference client, which is asked instead of the live model."""
    client = as_chat_client(get_inference(inference.kind)(**inference.params))
    places = asyncio.Semaphore(client.concurrency)

    async def answer(item: EvalItem) -> str:
        async with places:
            [completion] = await client.complete(item.prompt, max_tokens=room, temperature=0.0)
            return completion.text

    try:
        return list(await asyncio.gather(*map(answer, items)))
    finally:
        client.close()


def eval_items(rows: Sequence[Row]) -> list[EvalItem]:
    """Prompts and targets of chat rows, and of rows that have a `prompt`."""
    chats = parse_rows((_as_chat(row) for row in rows), TargetFormat.CHAT_MESSAGES)
    items = [_item(chat, number) for number, chat in enumerate(chats, start=1)]
    if not items:
        raise DataError("there are no rows to score. Check eval.eval_data and its transforms.")
    return items


def _as_chat(row: Row) -> Row:
    if "prompt" not in row or "messages" in row:
        return row
    prompt = row["prompt"]
    messages = cast("list[Any]", prompt) if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return {"messages": messages, **{key: value for key, value in row.items() if key != "prompt"}}


def _item(chat: ChatMessagesRow, number: int) -> EvalItem:
    messages = row_messages(chat)
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    target = next((chat.metadata[key] for key in ("answer", "tool_slug") if key in chat.metadata), None)
    if last and (target is None or last == len(messages) - 1):
        return EvalItem(messages[:last], message_text(messages[last], last))
    if target is None:
        raise DataError(
            f"eval row {number} has no assistant turn, 'answer' or 'tool_slug' to compare with. Add one of them."
        )
    return EvalItem(messages, str(target))


def _labels(metrics: Sequence[MetricSpec]) -> list[str]:
    """What each metric is called in the record: its kind, numbered where the same kind stands there again."""
    kinds = [spec.kind for spec in metrics]
    return [
        kind if (before := kinds[:at].count(kind)) == 0 else f"{kind}-{before + 1}" for at, kind in enumerate(kinds)
    ]


def _metric(spec: MetricSpec) -> Metric:
    return get_metric(spec.kind)(**spec.params)
