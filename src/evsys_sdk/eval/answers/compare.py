"""Compare JSON values, with tolerance for numbers, extra keys and lists in another order.

compare = ValueComparison(extra_keys=True)
compare.same({"a": 1, "b": 2}, {"a": 1.0})  # True: actual, expected
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ...data.shapes import is_list, is_object
from .quantity import close


@dataclass(frozen=True, slots=True)
class ValueComparison:
    """Rules for equality of JSON values."""

    relative_tolerance: float = 0.0
    absolute_tolerance: float = 0.0
    extra_keys: bool = False
    """Whether the actual object may have keys that the expected one lacks."""
    ignore_order: bool = False
    """Whether lists match in any order."""
    ignore_case: bool = False

    def same(self, actual: Any, expected: Any) -> bool:
        """Whether `actual` equals `expected` under these rules."""
        if is_object(expected):
            return is_object(actual) and self._same_objects(actual, expected)
        if is_list(expected):
            return is_list(actual) and self._same_lists(actual, expected)
        if is_number(expected) and is_number(actual):
            return self._same_numbers(actual, expected)
        if isinstance(expected, str) and isinstance(actual, str) and self.ignore_case:
            return actual.casefold() == expected.casefold()
        return type(actual) is type(expected) and actual == expected  # true is not 1

    def _same_objects(self, actual: dict[str, Any], expected: dict[str, Any]) -> bool:
        if not self.extra_keys and len(actual) != len(expected):
            return False
        return all(key in actual and self.same(actual[key], value) for key, value in expected.items())

    def _same_lists(self, actual: list[Any], expected: list[Any]) -> bool:
        if len(actual) != len(expected):
            return False
        if self.ignore_order:
            return count_pairs(actual, expected, self.same) == len(expected)
        return all(map(self.same, actual, expected))

    def _same_numbers(self, actual: Any, expected: Any) -> bool:
        if actual == expected:
            return True
        first, second = Decimal(repr(actual)), Decimal(repr(expected))
        if not first.is_finite() or not second.is_finite():
            return False
        return close(first, second, relative=self.relative_tolerance, absolute=self.absolute_tolerance)


def count_pairs[F, W](actual: Sequence[F], expected: Sequence[W], fits: Callable[[F, W], bool]) -> int:
    """Size of the maximum matching between `expected` and `actual`.

    A greedy choice could take the only item that fits another one, with tolerances or extra keys.
    """
    owner: dict[int, int] = {}

    # Kuhn's augmenting paths: an item without a free match tries to move another.
    def place(index: int, tried: set[int]) -> bool:
        fitting = [at for at, item in enumerate(actual) if at not in tried and fits(item, expected[index])]
        tried.update(fitting)
        for at in sorted(fitting, key=owner.__contains__):  # free items first
            if at not in owner or place(owner[at], tried):
                owner[at] = index
                return True
        return False

    return sum(place(index, set()) for index in range(len(expected)))


def longest_common[F, W](actual: Sequence[F], expected: Sequence[W], fits: Callable[[F, W], bool]) -> int:
    """Length of the longest common subsequence."""
    best = [0] * (len(expected) + 1)  # one row of the dynamic programming table
    for item in actual:
        diagonal = 0
        for index, expected_item in enumerate(expected):
            above = best[index + 1]
            best[index + 1] = diagonal + 1 if fits(item, expected_item) else max(above, best[index])
            diagonal = above
    return best[-1]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
