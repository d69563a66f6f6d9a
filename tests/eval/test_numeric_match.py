"""Numbers in the notations of people and models."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.errors import ConfigError, EvalError
from evsys_sdk.eval.answers.quantity import Notation, plain

from .scoring import reward, score


def numbers(text: str, notation: Notation | None = None) -> list[Any]:
    notation = notation or Notation()
    quantities = [notation.read(match) for match in notation.find(plain(text))]
    return [None if quantity is None else quantity.value for quantity in quantities]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"),
        ("-42", "-42"),
        ("+42", "42"),
        ("\N{MINUS SIGN}42", "-42"),
        ("\N{EN DASH}42", "-42"),
        ("3.14", "3.14"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1,234", "1234"),
        ("1,234,567.89", "1234567.89"),
        ("1'234'567", "1234567"),
        ("1_000_000", "1000000"),
        ("1\N{NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567", "1234567"),
        (r"1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("3/4", "0.75"),
        ("-3/4", "-0.75"),
        ("2 1/2", "2.5"),
        ("½", "0.5"),
        ("2½", "2.5"),
        ("-¾", "-0.75"),
        (r"\frac{3}{4}", "0.75"),
        (r"-\dfrac{3}{4}", "-0.75"),
        (r"2\frac{1}{2}", "2.5"),
        (r"\frac12", "0.5"),
        ("1.5e3", "1500"),
        ("1.5E-3", "0.0015"),
        ("1e5m", "100000"),
        ("1.5 x 10^3", "1500"),
        ("1.5 \N{MULTIPLICATION SIGN} 10³", "1500"),
        (r"1.5 \times 10^{-3}", "0.0015"),
        (r"1.5 \cdot 10^3", "1500"),
        ("10^6", "1000000"),
        ("10²", "100"),
        ("2^10", "1024"),
        ("2**10", "1024"),
        ("$7", "7"),
        ("-$7.50", "-7.5"),
        ("€1,000", "1000"),
        ("\uff11\uff12\uff13\uff0e\uff15", "123.5"),
        ("\u0663\u066b\u0665", "3.5"),
        ("**42**", "42"),
        ("(42)", "42"),
        ("x=-5", "-5"),
        ("5km", "5"),
        ("9" * 50, "9" * 50),
        ("1e999999999", "1e999999999"),
        ("1e-99999999999999", "0"),
    ],
)
def test_one_number_is_read(text: str, value: str) -> None:
    assert numbers(text) == [Decimal(value)]


@pytest.mark.parametrize("text", ["", "none", "x2", "CO2", "NaN", "inf", "Infinity", "a^2", "-", ".", "½x"[1:], "🎲"])
def test_there_is_no_number(text: str) -> None:
    assert numbers(text) == []


@pytest.mark.parametrize("text", ["1/0", "0/0", "1e99999999999999", "0^-1", "1e" + "9" * 5000, "9^999999999999"])
def test_what_has_no_value_is_no_number(text: str) -> None:
    assert numbers(text) == [None]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3-5", [3, 5]),
        ("- 5 apples", [5]),
        ("from 3 to 5", [3, 5]),
        ("1, 2, 3", [1, 2, 3]),
        ("100 200 300", [100, 200, 300]),
        ("3:4", [3, 4]),
        ("version 1.2.3", [Decimal("1.2")]),
        ("The answer is 5. Or 6.", [5, 6]),
    ],
)
def test_several_numbers_are_distinguished(text: str, values: list[Any]) -> None:
    assert numbers(text) == values


def test_a_decimal_comma_is_read_where_it_is_meant() -> None:
    comma = Notation(decimal_mark="comma")
    assert numbers("1.234.567,89", comma) == [Decimal("1234567.89")]
    assert numbers("3,5", comma) == [Decimal("3.5")]
    assert numbers(",5", comma) == [Decimal("0.5")]
    assert numbers("1 000 000", Notation(group_by_spaces=True)) == [1000000]


@given(st.integers(-(10**40), 10**40))
def test_every_integer_is_read_exactly_with_and_without_separators(value: int) -> None:
    assert numbers(str(value)) == numbers(f"{value:,}") == numbers(f"{value:_}") == [Decimal(value)]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_as_it_prints(value: float) -> None:
    assert [float(number) for number in numbers(repr(value))] == [value]


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_every_fraction_is_read(top: int, bottom: int) -> None:
    expected = float(Fraction(top, bottom))
    for text in (f"{top}/{bottom}", rf"\frac{{{top}}}{{{bottom}}}"):
        assert math.isclose(float(numbers(text)[0]), expected, rel_tol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *("1 " * 100_000, "1,111" * 50_000, "9" * 500_000, "1" + " " * 300_000 + "/", "1/" * 100_000, "1." * 100_000),
        *(
            "{" * 200_000,
            "½" * 50_000,
            r"\text{" * 50_000,
            r"\frac" * 50_000,
            "$" * 200_000,
            "²" * 100_000,
            "-" * 300_000,
        ),
    ],
    ids=lambda text: repr(text[:6]),
)
def test_endless_digits_and_signs_are_read_in_passing(text: str) -> None:
    assert isinstance(numbers(text), list)


@pytest.mark.parametrize(
    ("completion", "expected", "params", "earned"),
    [
        ("The answer is 1,234.50 euros.", 1234.5, {}, 1.0),
        ("first 3, then 4", 4, {}, 1.0),
        ("first 3, then 4", 3, {"which": "first"}, 1.0),
        ("first 3, then 4", 4, {"which": "only"}, 0.0),
        ("4", 4, {"which": "only"}, 1.0),
        ("<answer>7</answer> from 9", 7, {}, 1.0),
        (r"so \boxed{\frac{3}{4}} of 100", "3/4", {}, 1.0),
        (r"so \boxed{3} of 100", 100, {"boxed": False}, 1.0),
        ("0.75", "3/4", {}, 1.0),
        ("0.333", "1/3", {}, 0.0),
        ("0.333", "1/3", {"relative_tolerance": 0.01}, 1.0),
        ("101", 100, {"absolute_tolerance": 1}, 1.0),
        ("102", 100, {"absolute_tolerance": 1}, 0.0),
        ("0.1000000001", 0, {"absolute_tolerance": 0.1}, 0.0),
        ("10000000000000001", 10000000000000000, {"relative_tolerance": 0.0}, 0.0),
        ("0.30000000000000004", 0.3, {}, 1.0),
        ("50%", 50, {}, 1.0),
        ("50%", 0.5, {}, 0.0),
        ("50%", 0.5, {"percent": "fraction"}, 1.0),
        ("50%", 50, {"percent": "fraction"}, 0.0),
        ("50%", 50, {"percent": "either"}, 1.0),
        ("0.5", "50%", {"percent": "either"}, 1.0),
        ("0.5", "50%", {"percent": "fraction"}, 1.0),
        ("5 km", 5000, {"units": {"km": 1000, "m": 1}}, 1.0),
        ("5000 m", "5 km", {"units": {"km": 1000, "m": 1}}, 1.0),
        ("5 km", 5, {}, 1.0),
        ("5 km^2", 5000, {"units": {"km": 1000}}, 0.0),
        (r"5\text{ km}", 5000, {"units": {"km": 1000}}, 1.0),
        ("1.234,5", "1234,5", {"decimal_mark": "comma"}, 1.0),
        ("8", [7, 8], {}, 1.0),
        ("no idea", 4, {}, 0.0),
        ("NaN", 4, {}, 0.0),
        ("1/0", 4, {}, 0.0),
        ("4", 4, {"require_answer_tag": True}, 0.0),
        ("#### 42", "#### 42", {}, 1.0),
        ("0", 0, {}, 1.0),
        ("-0.0", 0, {}, 1.0),
        ("1e999999998", "1e999999999", {"relative_tolerance": 1.0}, 1.0),
    ],
)
async def test_numeric_match(completion: str, expected: Any, params: dict[str, Any], earned: float) -> None:
    assert await reward("numeric_match", completion, expected, **params) == earned


async def test_the_number_that_was_read_is_reported() -> None:
    assert (await score("numeric_match", "it is 1,234", 1)).info == {"number": "1234"}


async def test_an_expected_answer_without_a_number_is_an_error_of_the_task() -> None:
    with pytest.raises(EvalError, match="there is no number in the expected answer 'four'"):
        await reward("numeric_match", "4", "four")


@pytest.mark.parametrize("params", [{"relative_tolerance": -1}, {"relative_tolerance": math.nan}, {"which": "middle"}])
async def test_params_without_meaning_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="verifier 'numeric_match': params"):
        await reward("numeric_match", "4", 4, **params)
