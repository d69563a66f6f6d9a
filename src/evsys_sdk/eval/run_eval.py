"""`run.eval`: score a run on rows with known targets.

Each row's conversation up to its last assistant turn is the prompt, that turn is the target. Where texts hold
`<answer>...</answer>`, only what stands inside is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backends.client import SamplingParams
from ..config import ContinualStage, DataConfig, EvalConfig, MetricSpec
from ..data import ChatMessagesRow, TargetFormat, parse_rows
from ..errors import DataError
from ..inference.renderer import Renderer, row_messages
from ..log import get_logger
from ..protocols import Metric, Row
from ..registry import get_metric
from ..training.callback import EvalRecord, Observers

if TYPE_CHECKING:
    from ..backends.client import SamplingClient, TrainingClient

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MAX_TOKENS = 256


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
    failure: str | None = None
    """Why the last scoring failed; None when it did not."""
    _items: list[EvalItem] | None = None

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
        return [f"{self.prefix}/{spec.kind}" for spec in self.config.metrics]

    @property
    def prefix(self) -> str:
        """`eval` for held-out rows; scores on training rows are called what they are."""
        return "eval" if self.config.eval_data is not None else "train_fit"

    @property
    def selection_metric(self) -> str | None:
        """The metric that may choose a checkpoint: never one measured on training rows."""
        return self.keys[0] if self.wanted and self.config.eval_data else None

    async def __call__(self, step: int) -> Mapping[str, float]:
        """Score a frozen copy of the live model after `step`.

        A failure must not undo the training and must not vanish: it is logged and kept in `failure`.
        """
        self.failure = None
        try:
            if self._items is None:
                self._items = self._load_items()
            scores = await self.score(self._items, step=step, name=self.prefix)
            return {f"{self.prefix}/{kind}": value for kind, value in scores.items()}
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            get_logger(__name__).error("the evaluation after step %d failed: %s", step, self.failure)
            return {}

    async def score_stage(self, stage: ContinualStage, step: int) -> Mapping[str, float]:
        """Score the live model on the held-out rows of one stage of a continual run."""
        assert stage.eval_data is not None
        return await self.score(eval_items(self.load_rows(stage.eval_data)), step=step, name=stage.name)

    async def score(self, items: Sequence[EvalItem], *, step: int, name: str) -> dict[str, float]:
        """Generate for every item and compute the configured metrics."""
        sampler = await self.client.sampler()
        predictions = await self._predict(sampler, items)
        answers = [extract_answer(text) for text in predictions]
        targets = [extract_answer(item.target) for item in items]
        computed = {
            spec.kind: float(_metric(spec).compute(predictions=answers, targets=targets))
            for spec in self.config.metrics
        }
        shown = [
            {"prompt": item.prompt, "prediction": text, "target": item.target}
            for item, text in zip(items, predictions, strict=True)
        ]
        self.observers.on_eval(EvalRecord(name, self.prefix, step, computed, shown))
        return computed

    async def _predict(self, sampler: SamplingClient, items: Sequence[EvalItem]) -> list[str]:
        params = SamplingParams(max_tokens=_MAX_TOKENS, temperature=0.0, stop=self.renderer.stop)
        pending = [sampler.sample(self.renderer.prompt(item.prompt), 1, params) for item in items]
        return [str(self.renderer.parse((await operation)[0].tokens)["content"]) for operation in pending]

    def _load_items(self) -> list[EvalItem]:
        if self.config.eval_data is None:
            get_logger(__name__).warning(
                "eval has no eval_data: the training rows are scored and reported as train_fit/..., which says nothing "
                "about new rows. Add eval.eval_data."
            )
        rows = self.load_rows(self.config.eval_data) if self.config.eval_data else self.train_rows
        return eval_items(rows[: self.config.n_samples])


def eval_items(rows: Sequence[Row]) -> list[EvalItem]:
    """Prompts and targets of chat rows."""
    items = [_item(chat, number) for number, chat in enumerate(parse_rows(rows, TargetFormat.CHAT_MESSAGES), start=1)]
    if not items:
        raise DataError("there are no rows to score. Check eval.eval_data and its transforms.")
    return items


def extract_answer(text: str) -> str:
    """What stands inside `<answer>...</answer>`, or the whole text."""
    match = _ANSWER.search(text)
    return (match[1] if match else text).strip()


def _item(chat: ChatMessagesRow, number: int) -> EvalItem:
    messages = row_messages(chat)
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=None)
    if last is not None and last > 0:
        return EvalItem(messages[:last], str(messages[last]["content"]))
    target = next((chat.metadata[key] for key in ("answer", "tool_slug") if key in chat.metadata), None)
    if target is None:
        raise DataError(
            f"eval row {number} has no assistant turn, 'answer' or 'tool_slug' to compare with. Add one of them."
        )
    return EvalItem(messages, str(target))


def _metric(spec: MetricSpec) -> Metric:
    return get_metric(spec.kind)(**spec.params)
