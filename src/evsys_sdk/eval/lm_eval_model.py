"""An lm-eval model over one of our samplers: log-likelihoods of continuations and texts, and greedy generation.

    lm = open_lm(sampler, context_length=2048)
    lm_eval.simple_evaluate(lm, tasks=["hellaswag"])

Tokenisation follows lm-eval's `HFLM`, so multiple-choice scores agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..backends.client import SamplingClient, SamplingParams
from ..backends.future import Operation
from ..inference.client import cut_at_stop
from ..inference.renderer import decode
from ..user_code import report_progress

_AT_ONCE = 64
"""Requests submitted before the first result is awaited."""


def open_lm(sampler: SamplingClient, context_length: int, *, max_tokens: int = 256, greedy: bool = True) -> Any:
    """The lm-eval model of a sampler. Without `greedy`, no continuation counts as the most probable one."""
    return _lm_class()(sampler, context_length, max_tokens, greedy)


class SamplerLM:
    """lm-eval's model methods over a sampler; `_lm_class` adds lm-eval's base class."""

    def __init__(self, sampler: SamplingClient, context_length: int, max_tokens: int, greedy: bool) -> None:
        super().__init__()
        self.tokenizer = sampler.tokenizer
        self.max_length, self._max_tokens = context_length, max_tokens
        self._sampler, self._greedy = sampler, greedy

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        first = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if first is None else int(first)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        if add_special_tokens is None:
            return list(self.tokenizer.encode(string))
        return list(self.tokenizer.encode(string, add_special_tokens=add_special_tokens))

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        results: list[tuple[float, bool]] = []
        for at in range(0, len(requests), _AT_ONCE):
            parts = [
                self._cut(list(context), list(continuation))
                for _, context, continuation in requests[at : at + _AT_ONCE]
            ]
            scored = [self._sampler.logprobs(context + continuation) for context, continuation in parts]
            chosen = [self._choose(context, len(continuation)) for context, continuation in parts]
            for (context, continuation), values, most_probable in zip(parts, scored, chosen, strict=True):
                total = math.fsum(values.result()[len(context) :].tolist())
                results.append((total, most_probable is not None and most_probable.result()[0].tokens == continuation))
            report_progress()
        return results

    def _cut(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """The last tokens of the context that fit the model next to the continuation."""
        room = max(self.max_length - len(continuation), 1)
        return context[-room:], continuation[: self.max_length - 1]

    def _choose(self, context: list[int], length: int) -> Operation[Any] | None:
        params = SamplingParams(length, temperature=0.0, stop=[], seed=0)
        return self._sampler.sample(context, 1, params) if self._greedy else None

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        utils = import_module("lm_eval.utils")
        results: list[float] = []
        for request in requests:
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            pairs = [(None, *utils.make_disjoint_window(window)) for window in windows]
            results.append(math.fsum(value for value, _ in self._loglikelihood_tokens(pairs)))
        return results

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        texts: list[str] = []
        for at in range(0, len(requests), _AT_ONCE):
            inputs = [(request.args[0], dict(request.args[1])) for request in requests[at : at + _AT_ONCE]]
            operations = [self._generate(text, options) for text, options in inputs]
            for (_text, options), operation in zip(inputs, operations, strict=True):
                text = decode(self.tokenizer, operation.result()[0].tokens, skip_special_tokens=True)
                texts.append(cut_at_stop(text, _stops(options))[0])
            report_progress()
        return texts

    def _generate(self, text: str, options: dict[str, Any]) -> Operation[Any]:
        length = int(options.get("max_gen_toks") or self._max_tokens)
        end = decode(self.tokenizer, [self.eot_token_id])
        temperature = float(options.get("temperature") or 0.0) if options.get("do_sample") else 0.0
        params = SamplingParams(length, temperature, stop=[*_stops(options), end], seed=0)
        prompt = self.tok_encode(text)[-max(self.max_length - length, 1) :]
        return self._sampler.sample(prompt, 1, params)


@lru_cache(maxsize=1)
def _lm_class() -> Any:
    """The class with lm-eval's base, defined on first use because it needs lm-eval."""
    return type("EvsysLM", (SamplerLM, import_module("lm_eval.api.model").TemplateLM), {})


def _stops(options: dict[str, Any]) -> list[str]:
    until: Any = options.get("until") or ()
    return [until] if isinstance(until, str) else list(until)
