"""Costs are exact, and what is not known is None and never 0."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import ValidationError

from evsys_sdk.config.prices import Price, Prices, TokenUsage, find_tariff, list_prices
from evsys_sdk.inference.client import Totals

TABLE: Prices = {"m": Price(input=3.0, output=15.0, cached=0.3, cache_write=3.75, cache_write_1h=6.0)}
OPENAI, CLAUDE, GEMINI = list_prices("openai"), list_prices("claude"), list_prices("gemini")


def cost_of(model: str, usage: TokenUsage, *tables: Prices) -> Decimal | None:
    tariff = find_tariff("hosted", model, *tables)
    return None if tariff is None else tariff.of(usage)


def test_each_kind_of_token_has_its_price() -> None:
    usage = TokenUsage(1000, 100, cached_tokens=200, cache_write_tokens=300, cache_write_1h_tokens=400)
    expected = Decimal(100 * 3 + 300 * 4 - 300 * 4 + 100 * 15) + Decimal("60") + Decimal("1125") + Decimal("2400")
    assert cost_of("m", usage, TABLE) == expected / 1_000_000


def test_costs_add_up_without_rounding() -> None:
    price, usage, totals = Price(input=0.1, output=0.3), TokenUsage(1, 1), Totals()
    for _ in range(30_000):
        totals.add(usage, price.of(usage))
    assert totals.cost_usd == 0.012  # summed as floats it would be 0.01199999...


def test_without_a_special_price_special_tokens_cost_the_usual() -> None:
    price = Price(input=1.0, output=2.0)
    assert price.of(TokenUsage(1000, 0, cached_tokens=400, cache_write_tokens=100)) == Decimal("0.001")


@pytest.mark.parametrize("usage", [TokenUsage(), TokenUsage(5, None), TokenUsage(None, 5)])
def test_unknown_tokens_have_no_cost(usage: TokenUsage) -> None:
    assert cost_of("m", usage, TABLE) is None
    assert usage.total is None


@pytest.mark.parametrize("model", ["m2", "gpt-5.9", "gpt-4", "claude-opus-9", "", "gpt-4.1-turbo"])
def test_an_unknown_model_has_no_cost(model: str) -> None:
    tables = (TABLE, OPENAI, CLAUDE, GEMINI)
    assert cost_of(model, TokenUsage(10, 10), *tables) is None


@pytest.mark.parametrize(
    ("model", "dollars"),
    [
        ("gpt-4.1", 10.0),
        ("gpt-4.1-2025-04-14", 10.0),
        ("gpt-4o-2024-08-06", 12.5),
        ("gpt-4o-2024-05-13", 20.0),
    ],
)
def test_a_dated_version_costs_what_its_family_costs_unless_it_has_its_own_price(model: str, dollars: float) -> None:
    million = TokenUsage(1_000_000, 1_000_000)
    assert cost_of(model, million, OPENAI) == Decimal(str(dollars))


def test_claude_versions_are_dated_without_dashes() -> None:
    usage = TokenUsage(100_000, 0)
    assert cost_of("claude-haiku-4-5-20251001", usage, CLAUDE) == Decimal("0.1")


def test_long_prompts_have_another_price() -> None:
    short, long = TokenUsage(200_000, 0), TokenUsage(200_001, 0)
    assert cost_of("gemini-2.5-pro", short, GEMINI) == Decimal("0.25")
    assert cost_of("gemini-2.5-pro", long, GEMINI) == Decimal("0.5000025")


def test_beyond_the_longest_known_prompt_there_is_no_cost() -> None:
    assert cost_of("gpt-5.4", TokenUsage(270_001, 1), OPENAI) is None


def test_the_first_table_wins() -> None:
    mine: Prices = {"gpt-4.1": Price(input=1.0, output=1.0)}
    assert cost_of("gpt-4.1", TokenUsage(1_000_000, 0), mine, OPENAI) == 1
    assert cost_of("gpt-4.1-2025-04-14", TokenUsage(1_000_000, 0), mine, OPENAI) == 1


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ValidationError):
        Price(input=-1.0, output=1.0)


def test_cached_tokens_never_cost_more_than_read_ones() -> None:
    tables = (OPENAI, CLAUDE, GEMINI)
    prices = [
        price
        for table in tables
        for entry in table.values()
        for price in (entry if isinstance(entry, list) else [entry])
    ]
    assert prices
    assert all(price.cached is not None and price.cached <= price.input < price.output for price in prices)


def test_one_unknown_cost_makes_the_total_unknown_but_keeps_the_lower_bound() -> None:
    totals = Totals()
    totals.add(TokenUsage(10, 5), Decimal("0.5"))
    assert totals.cost_usd == 0.5
    totals.add(TokenUsage(), None)
    assert totals.cost_usd is None
    assert totals.to_dict() == {
        "requests": 0, "completions": 2, "failures": 0, "input_tokens": 10, "output_tokens": 5,
        "unpriced": 1, "cost_usd": None,
    }  # fmt: skip


def test_a_price_of_the_model_comes_before_that_of_its_kind_and_both_before_the_list() -> None:
    mine: Prices = {"openai": Price(input=1.0, output=1.0), "gpt-4o": Price(input=2.0, output=2.0)}
    tariffs = {model: find_tariff("openai", model, mine, OPENAI) for model in ("gpt-4.1", "gpt-4o", "gpt-99")}
    costs = {model: tariff.of(TokenUsage(1_000_000, 0)) for model, tariff in tariffs.items() if tariff}
    assert costs == {"gpt-4.1": 1, "gpt-4o": 2, "gpt-99": 1}


def test_what_runs_on_this_machine_is_free_unless_a_price_says_otherwise() -> None:
    free, priced = find_tariff("local", "m"), find_tariff("local", "m", {"local": Price(gpu_hour=2.0)})
    assert free is not None
    assert (free.of(TokenUsage()), free.gpu_hour) == (0, 0.0)
    assert priced is not None
    assert (priced.of(TokenUsage()), priced.gpu_hour) == (0, 2.0)


@pytest.mark.parametrize(
    "written",
    [
        {"train": 2.0, "input": 1.0, "output": 4.0},
        {"train": 2.0, "prefill": 1.0, "sample": 4.0},
        {"train_per_million": 2.0, "prefill_per_million": 1.0, "sample_per_million": 4.0},
    ],
)
def test_earlier_spellings_of_a_price_mean_the_same(written: dict[str, float]) -> None:
    price = Price.model_validate(written)
    assert price.of(TokenUsage(1_000_000, 1_000_000, trained_tokens=1_000_000)) == 7
    assert price.model_dump(exclude_defaults=True) == {"train": 2.0, "input": 1.0, "output": 4.0}


def test_a_price_for_questions_says_what_answers_cost() -> None:
    with pytest.raises(ValidationError, match="the key 'output' is missing"):
        Price(input=1.0)
