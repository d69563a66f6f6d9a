"""What tokens and GPU hours cost, in US dollars: one price for every backend and every hosted model.

`budget.prices` is the place to set them, by the name of the model or by the kind of backend or inference client:

    prices:
      Qwen/Qwen3-4B: { train: 0.22, input: 0.07, output: 0.22 }
      my_backend: { gpu_hour: 2.5 }
      long-model: [{ input: 1.25, output: 10, up_to: 200000 }, { input: 2.5, output: 15 }]

Built in are what costs nothing and the public list prices of hosted models as they stood at `AS_OF`. Those of hosted
training change often and differ by contract. What has no price has no known cost: None, never 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Self

from pydantic import AliasChoices, Field, model_validator

from .base import MisplacedValue, Strict

if TYPE_CHECKING:
    from .experiment import Budget
    from .run import RunConfig

AS_OF = "2026-10"
"""Year and month in which the built-in prices were last compared with the providers' pages."""
FREE_BACKENDS = ("mock", "local")
"""Backends and inference clients that run on the machine at hand and bill no one."""

_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
"""What a dated version of a model has after its name."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request; None where the server did not say."""

    input_tokens: int | None = None
    """Everything that was read, cached or not."""
    output_tokens: int | None = None
    """Everything that was written, thinking included."""
    cached_tokens: int = 0
    """The part of the input that was read from a cache."""
    cache_write_tokens: int = 0
    """The part of the input that was written to a cache for five minutes."""
    cache_write_1h_tokens: int = 0
    """The part of the input that was written to a cache for an hour."""
    trained_tokens: int = 0
    """Everything that was trained on, which is neither input nor output."""

    @property
    def total(self) -> int | None:
        """Input and output together."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class Price(Strict):
    """What a model costs, in US dollars for a million tokens."""

    train: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("train", "train_per_million"))
    """Tokens that are trained on."""
    input: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("input", "prefill", "prefill_per_million"))
    """Tokens that are only read: prompts, and what a teacher or reference model looks at."""
    output: float = Field(default=0.0, ge=0, validation_alias=AliasChoices("output", "sample", "sample_per_million"))
    """Tokens that are written, thinking included."""
    cached: float | None = Field(default=None, ge=0)
    """Tokens that are read from a cache; by default they cost as much as others."""
    cache_write: float | None = Field(default=None, ge=0)
    """Tokens that are written to a cache for five minutes; by default they cost as much as others."""
    cache_write_1h: float | None = Field(default=None, ge=0)
    """Tokens that are written to a cache for an hour; by default they cost as much as others."""
    gpu_hour: float = Field(default=0.0, ge=0)
    """An hour of one GPU, for as long as an arm holds it."""
    up_to: int | None = Field(default=None, ge=1)
    """The longest prompt, in tokens, that this price holds for; by default all."""

    @model_validator(mode="after")
    def _says_what_answers_cost(self) -> Self:
        if "input" in self.model_fields_set and "output" not in self.model_fields_set:
            raise MisplacedValue("the key 'output' is missing. Add it; 0 where answers cost nothing.", "output")
        return self

    def of(self, usage: TokenUsage) -> Decimal | None:
        """Cost of a request in US dollars, exactly; None where its tokens are not known."""
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
        # By its digits: the float 0.1 is not a tenth, and small sums of many requests must add up.
        return sum((tokens * Decimal(str(price)) for tokens, price in parts), Decimal(0)) / 1_000_000


type Prices = Mapping[str, Price | list[Price]]
"""Model, backend or inference client -> its price, or its prices for prompts of growing length."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """The price of one model where it runs; without tiers it costs nothing."""

    tiers: Sequence[Price] = ()

    @property
    def gpu_hour(self) -> float:
        return self.tiers[0].gpu_hour if self.tiers else 0.0

    def of(self, usage: TokenUsage) -> Decimal | None:
        """Cost of a request; None where its tokens are not known, or no price is for a prompt of this length."""
        if not self.tiers:
            return Decimal(0)
        prompt = usage.input_tokens or 0
        tier = next((price for price in self.tiers if price.up_to is None or prompt <= price.up_to), None)
        return tier.of(usage) if tier else None


def find_tariff(kind: str, model: str, *tables: Prices) -> Tariff | None:
    """What a model costs on a backend or behind an inference client, by the first table that knows it.

    In each table a price of the model itself comes before that of its kind. What runs on this machine is free unless a
    table says otherwise; None where nothing is known.
    """
    for table in tables:
        # Its own dated name first: some dated versions do not cost what their family does.
        for name in (model, _SNAPSHOT.sub("", model), kind):
            if (found := table.get(name)) is not None:
                return Tariff(found if isinstance(found, list) else (found,))
    return Tariff() if kind in FREE_BACKENDS else None


def price_of(run: RunConfig, budget: Budget) -> Tariff | None:
    """What the model of a run costs on its backend; None where that is not known."""
    return find_tariff(backend_of(run), run.model.name, budget.prices)


def backend_of(run: RunConfig) -> str:
    """The backend that a run really trains on: its own, or the one its recipe insists on."""
    from ..registry import get_algorithm

    return getattr(get_algorithm(run.algorithm.kind), "pinned_backend", None) or run.backend.kind


def list_prices(kind: str) -> Prices:
    """Public list prices of the provider behind an inference client; none for other kinds."""
    return {"openai": _openai, "claude": _claude, "gemini": _gemini}.get(kind, dict[str, Price])()


def _price(input: float, cached: float, output: float, up_to: int | None = None) -> Price:
    return Price(input=input, cached=cached, output=output, up_to=up_to)


def _claude_price(input: float, cached: float, output: float, up_to: int | None = None) -> Price:
    # Keeping a prompt costs a quarter more than reading it; keeping it for an hour costs twice as much.
    writes = {"cache_write": input * 1.25, "cache_write_1h": input * 2}
    return Price(input=input, cached=cached, output=output, up_to=up_to, **writes)


# The tables are made when they are first asked for: most commands price nothing, and models take time to validate.
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
        "gpt-4o-2024-05-13": _price(5.0, 5.0, 15.0),  # the one dated version that costs more than its family
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
