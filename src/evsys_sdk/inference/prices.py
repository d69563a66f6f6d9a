"""What tokens cost, in US dollars per million, and what a request therefore cost.

The table holds the public list prices of the providers' own addresses as they stood at `AS_OF`. A model that is not in
it has no price, and then a cost is None, never 0. Params can add models and replace prices:

    prices: { my-model: { input: 0.5, output: 1.5 } }
    prices: { long-model: [{ input: 1.25, output: 10, up_to: 200000 }, { input: 2.5, output: 15 }] }
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pydantic import Field

from ..config.base import Strict

AS_OF = "2026-10"
"""Year and month in which the built-in prices were last compared with the providers' pages."""

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

    @property
    def total(self) -> int | None:
        """Input and output together."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens


class Price(Strict):
    """Price of a model in US dollars per million tokens."""

    input: float = Field(ge=0)
    """Tokens that are read."""
    output: float = Field(ge=0)
    """Tokens that are written, thinking included."""
    cached: float | None = Field(default=None, ge=0)
    """Tokens that are read from a cache; by default they cost as much as others."""
    cache_write: float | None = Field(default=None, ge=0)
    """Tokens that are written to a cache for five minutes; by default they cost as much as others."""
    cache_write_1h: float | None = Field(default=None, ge=0)
    """Tokens that are written to a cache for an hour; by default they cost as much as others."""
    up_to: int | None = Field(default=None, ge=1)
    """The longest prompt, in tokens, that this price holds for; by default all."""

    def of(self, usage: TokenUsage) -> Decimal | None:
        """Cost of a request in US dollars, exactly; None where its tokens are not known."""
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        special = [
            (usage.cached_tokens, self.cached),
            (usage.cache_write_tokens, self.cache_write),
            (usage.cache_write_1h_tokens, self.cache_write_1h),
        ]
        plain = usage.input_tokens - sum(tokens for tokens, _ in special)
        parts = [(max(plain, 0), self.input), (usage.output_tokens, self.output)]
        parts += [(tokens, self.input if price is None else price) for tokens, price in special]
        return sum((tokens * Decimal(str(price)) for tokens, price in parts), Decimal(0)) / 1_000_000


type Prices = Mapping[str, Price | list[Price]]
"""Model -> its price, or its prices for prompts of growing length."""


def cost_of(model: str, usage: TokenUsage, *tables: Prices) -> Decimal | None:
    """Cost of a request by the first table that knows the model; None when none does."""
    for name in (model, _SNAPSHOT.sub("", model)):
        for table in tables:
            if name in table:
                return _cost(table[name], usage)
    return None


def _cost(prices: Price | list[Price], usage: TokenUsage) -> Decimal | None:
    tiers = prices if isinstance(prices, list) else [prices]
    prompt = usage.input_tokens or 0
    tier = next((price for price in tiers if price.up_to is None or prompt <= price.up_to), None)
    return tier.of(usage) if tier else None


def _price(input: float, cached: float, output: float, up_to: int | None = None) -> Price:
    return Price(input=input, cached=cached, output=output, up_to=up_to)


def _claude(input: float, cached: float, output: float, up_to: int | None = None) -> Price:
    writes = {"cache_write": input * 1.25, "cache_write_1h": input * 2}
    return Price(input=input, cached=cached, output=output, up_to=up_to, **writes)


@functools.cache
def openai_prices() -> Prices:
    """List prices of OpenAI."""
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
def claude_prices() -> Prices:
    """List prices of Anthropic."""
    return {
        "claude-fable-5-1": _claude(10.0, 0.25, 50.0),
        "claude-fable-5": _claude(10.0, 1.0, 50.0),
        "claude-opus-5-5": _claude(4.0, 0.2, 20.0),
        "claude-opus-5": _claude(5.0, 0.5, 25.0),
        "claude-opus-4-8": _claude(5.0, 0.5, 25.0),
        "claude-opus-4-7": _claude(5.0, 0.5, 25.0),
        "claude-opus-4-6": _claude(5.0, 0.5, 25.0),
        "claude-opus-4-5": _claude(5.0, 0.5, 25.0),
        "claude-opus-4-1": _claude(15.0, 1.5, 75.0),
        "claude-sonnet-5-5": _claude(2.0, 0.2, 10.0),
        "claude-sonnet-5": _claude(2.0, 0.2, 10.0),
        "claude-sonnet-4-6": _claude(3.0, 0.3, 15.0),
        "claude-sonnet-4-5": _claude(3.0, 0.3, 15.0, up_to=200_000),
        "claude-haiku-4-5": _claude(1.0, 0.1, 5.0),
    }


@functools.cache
def gemini_prices() -> Prices:
    """List prices of Google."""
    return {
        "gemini-3.5-flash": _price(1.5, 0.15, 9.0),
        "gemini-3.1-pro-preview": [_price(2.0, 0.2, 12.0, up_to=200_000), _price(4.0, 0.4, 18.0)],
        "gemini-3-flash-preview": _price(0.5, 0.05, 3.0),
        "gemini-2.5-pro": [_price(1.25, 0.125, 10.0, up_to=200_000), _price(2.5, 0.25, 15.0)],
        "gemini-2.5-flash": _price(0.3, 0.03, 2.5),
        "gemini-2.5-flash-lite": _price(0.1, 0.01, 0.4),
    }
