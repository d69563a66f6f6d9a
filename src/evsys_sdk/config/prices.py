"""Prices of tokens and GPU hours in US dollars, for backends and hosted models.

Set them in `budget.prices`, by the name of the model or by the kind of backend or inference client:

    prices:
      Qwen/Qwen3-4B: { train: 0.22, input: 0.07, output: 0.22 }
      my_backend: { gpu_hour: 2.5 }
      long-model: [{ input: 1.25, output: 10, up_to: 200000 }, { input: 2.5, output: 15 }]

Built-in prices are those of free backends and the public list prices of hosted models at `AS_OF`. Prices of hosted
training change often and differ by contract. A model without a price has an unknown cost: None, never 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import AliasChoices, Field, model_validator

from .base import MisplacedValue, Strict

if TYPE_CHECKING:
    from .experiment import Budget
    from .run import RunConfig

AS_OF = "2026-10"
"""Year and month of the built-in list prices."""
FREE_BACKENDS = ("mock", "local")
"""Backends and inference clients that run on this machine and cost nothing."""

_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
"""Suffix of a dated version of a model."""


class TokenUsage(NamedTuple):
    """Tokens of one request; None if the server did not report them."""

    input_tokens: int | None = None
    """Prompt tokens, cached or not."""
    output_tokens: int | None = None
    """Generated tokens, with thinking."""
    cached_tokens: int = 0
    """Input tokens that were read from a cache."""
    cache_write_tokens: int = 0
    """Input tokens that were written to a cache for five minutes."""
    cache_write_1h_tokens: int = 0
    """Input tokens that were written to a cache for an hour."""
    trained_tokens: int = 0
    """Tokens that were trained on, in addition to input and output."""

    @property
    def total(self) -> int | None:
        """Input plus output tokens; None if either is unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class Price(Strict):
    """Prices of a model in US dollars per million tokens."""

    train: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("train", "train_per_million"))
    """Trained tokens."""
    input: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("input", "prefill", "prefill_per_million"))
    """Input tokens: prompts, and text that a teacher or reference model scores."""
    output: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("output", "sample", "sample_per_million"))
    """Generated tokens, with thinking."""
    cached: float | None = Field(default=None, ge=0)
    """Input tokens that are read from a cache; by default as `input`."""
    cache_write: float | None = Field(default=None, ge=0)
    """Input tokens that are written to a cache for five minutes; by default as `input`."""
    cache_write_1h: float | None = Field(default=None, ge=0)
    """Input tokens that are written to a cache for an hour; by default as `input`."""
    gpu_hour: float = Field(default=0.0, ge=0)
    """An hour of one GPU that an arm holds."""
    up_to: int | None = Field(default=None, ge=1)
    """Longest prompt, in tokens, for this price; by default any."""

    @model_validator(mode="after")
    def _prices_answers(self) -> Self:
        if "input" in self.model_fields_set and "output" not in self.model_fields_set:
            raise MisplacedValue("the key 'output' is missing. Add it; 0 if answers cost nothing.", "output")
        return self

    def of(self, usage: TokenUsage) -> Decimal | None:
        """Exact cost of a request in US dollars; None if its tokens are unknown."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None if self.input or self.output else Decimal(0)
        special = [
            (usage.cached_tokens, self.cached),
            (usage.cache_write_tokens, self.cache_write),
            (usage.cache_write_1h_tokens, self.cache_write_1h),
        ]
        plain = usage.input_tokens - sum(tokens for tokens, _ in special)
        parts = [(max(plain, 0), self.input), (usage.output_tokens, self.output), (usage.trained_tokens, self.train)]
        parts += [(tokens, self.input if price is None else price) for tokens, price in special]
        # `str`, so that 0.1 is exactly a tenth and the costs of many requests add up.
        return sum((tokens * Decimal(str(price)) for tokens, price in parts), Decimal(0)) / 1_000_000


type Prices = Mapping[str, Price | list[Price]]
"""Model, backend or inference client -> its price, or its prices by prompt length."""


class Tariff(NamedTuple):
    """The prices of one model on a backend, by prompt length; free without tiers."""

    tiers: Sequence[Price] = ()

    @property
    def gpu_hour(self) -> float:
        return self.tiers[0].gpu_hour if self.tiers else 0.0

    def of(self, usage: TokenUsage) -> Decimal | None:
        """Cost of a request; None if its tokens are unknown, or no price covers its prompt length."""
        if not self.tiers:
            return Decimal(0)
        prompt = usage.input_tokens or 0
        tier = next((price for price in self.tiers if price.up_to is None or prompt <= price.up_to), None)
        return tier.of(usage) if tier else None


def find_tariff(kind: str, model: str, *tables: Prices) -> Tariff | None:
    """The price of a model on a backend or of an inference client, from the first table that has it.

    In each table the price of the model precedes that of its kind. Local backends are free unless a table has a price;
    None if the price is unknown.
    """
    for table in tables:
        # The dated name first, because some dated versions have another price than their family.
        for name in (model, _SNAPSHOT.sub("", model), kind):
            if (price := table.get(name)) is not None:
                return Tariff(price if isinstance(price, list) else (price,))
    return Tariff() if kind in FREE_BACKENDS else None


def price_of(run: RunConfig, budget: Budget) -> Tariff | None:
    """The price of a run's model on its backend; None if it is unknown."""
    return find_tariff(backend_of(run), run.model.name, budget.prices)


def backend_of(run: RunConfig) -> str:
    """The backend that a run trains on: the one that its recipe pins, else its own."""
    from ..registry import get_algorithm

    return getattr(get_algorithm(run.algorithm.kind), "pinned_backend", None) or run.backend.kind


def list_prices(kind: str) -> Prices:
    """Public list prices of an inference client's provider; empty for other kinds."""
    return {"openai": _openai, "claude": _claude, "gemini": _gemini}.get(kind, dict[str, Price])()


def _price(input: float, cached: float, output: float, up_to: int | None = None) -> Price:
    return Price(input=input, cached=cached, output=output, up_to=up_to)


def _claude_price(input: float, cached: float, output: float, up_to: int | None = None) -> Price:
    # Writing a prompt to the cache costs 1.25 times the input price; for an hour, twice the input price.
    writes = {"cache_write": input * 1.25, "cache_write_1h": input * 2}
    return Price(input=input, cached=cached, output=output, up_to=up_to, **writes)


# The tables are built on first use, because most commands need no prices.
@functools.cache
def _openai() -> Prices:
    return {
        "gpt-5.5": _price(5.0, 0.5, 30.0, up_to=270_000),
        "gpt-5.4": _price(2.5, 0.25, 15.0, up_to=270_000),
        "gpt-5.4-mini": _price(0.75, 0.075, 4.5),
        "gpt-5.4-nano": _price(0.2, 0.02, 1.25),
        "gpt-5.2": _price(1.75, 0.175, 14.0),
        "gpt-5.1": _price(1.25, 0.125, 10.0),
        "gpt-5": _price(1.25, 0.125, 10.0),
        "gpt-5-mini": _price(0.25, 0.025, 2.0),
        "gpt-5-nano": _price(0.05, 0.005, 0.4),
        "gpt-4.1": _price(2.0, 0.5, 8.0),
        "gpt-4.1-mini": _price(0.4, 0.1, 1.6),
        "gpt-4.1-nano": _price(0.1, 0.025, 0.4),
        "gpt-4o": _price(2.5, 1.25, 10.0),
        "gpt-4o-2024-05-13": _price(5.0, 5.0, 15.0),  # the only dated version that costs more than its family
        "gpt-4o-mini": _price(0.15, 0.075, 0.6),
        "o3": _price(2.0, 0.5, 8.0),
        "o4-mini": _price(1.1, 0.275, 4.4),
    }


@functools.cache
def _claude() -> Prices:
    return {
        "claude-fable-5-1": _claude_price(10.0, 0.25, 50.0),
        "claude-fable-5": _claude_price(10.0, 1.0, 50.0),
        "claude-opus-5-5": _claude_price(4.0, 0.2, 20.0),
        "claude-opus-5": _claude_price(5.0, 0.5, 25.0),
        "claude-opus-4-8": _claude_price(5.0, 0.5, 25.0),
        "claude-opus-4-7": _claude_price(5.0, 0.5, 25.0),
        "claude-opus-4-6": _claude_price(5.0, 0.5, 25.0),
        "claude-opus-4-5": _claude_price(5.0, 0.5, 25.0),
        "claude-opus-4-1": _claude_price(15.0, 1.5, 75.0),
        "claude-sonnet-5-5": _claude_price(2.0, 0.2, 10.0),
        "claude-sonnet-5": _claude_price(2.0, 0.2, 10.0),
        "claude-sonnet-4-6": _claude_price(3.0, 0.3, 15.0),
        "claude-sonnet-4-5": _claude_price(3.0, 0.3, 15.0, up_to=200_000),
        "claude-haiku-4-5": _claude_price(1.0, 0.1, 5.0),
    }


@functools.cache
def _gemini() -> Prices:
    return {
        "gemini-3.5-flash": _price(1.5, 0.15, 9.0),
        "gemini-3.1-pro-preview": [_price(2.0, 0.2, 12.0, up_to=200_000), _price(4.0, 0.4, 18.0)],
        "gemini-3-flash-preview": _price(0.5, 0.05, 3.0),
        "gemini-2.5-pro": [_price(1.25, 0.125, 10.0, up_to=200_000), _price(2.5, 0.25, 15.0)],
        "gemini-2.5-flash": _price(0.3, 0.03, 2.5),
        "gemini-2.5-flash-lite": _price(0.1, 0.01, 0.4),
    }
