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

    def same(self, found: Any, wanted: Any) -> bool:
        """Whether `found` equals `wanted` under these rules."""
        if is_object(wanted):
            return is_object(found) and self._same_objects(found, wanted)
        if is_list(wanted):
            return is_list(found) and self._same_lists(found, wanted)
        if is_number(wanted) and is_number(found):
            return self._same_numbers(found, wanted)
        if isinstance(wanted, str) and isinstance(found, str) and self.ignore_case:
            return found.casefold() == wanted.casefold()
        return type(found) is type(wanted) and found == wanted  # true is not 1

    def _same_objects(self, found: dict[str, Any], wanted: dict[str, Any]) -> bool:
        if not self.extra_keys and len(found) != len(wanted):
            return False
        return all(key in found and self.same(found[key], value) for key, value in wanted.items())

    def _same_lists(self, found: list[Any], wanted: list[Any]) -> bool:
        if len(found) != len(wanted):
            return False
        if self.ignore_order:
            return most_pairs(found, wanted, self.same) == len(wanted)
        return all(map(self.same, found, wanted))

    def _same_numbers(self, found: Any, wanted: Any) -> bool:
        if found == wanted:
            return True
        one, other = Decimal(repr(found)), Decimal(repr(wanted))
        if not one.is_finite() or not other.is_finite():
            return False
        return close(one, other, relative=self.relative_tolerance, absolute=self.absolute_tolerance)


def most_pairs[F, W](found: Sequence[F], wanted: Sequence[W], fits: Callable[[F, W], bool]) -> int:
    """Size of the maximum matching between `wanted` and `found`.

    A greedy choice could take the only item that fits another one, with tolerances or extra keys.
    """
    owner: dict[int, int] = {}

    # Kuhn's augmenting paths: an item without a free match tries to move another.
    def place(index: int, tried: set[int]) -> bool:
        fitting = [at for at, item in enumerate(found) if at not in tried and fits(item, wanted[index])]
        tried.update(fitting)
        for at in sorted(fitting, key=owner.__contains__):  # free items first
            if at not in owner or place(owner[at], tried):
                owner[at] = index
                return True
        return False

    return sum(place(index, set()) for index in range(len(wanted)))


def longest_common[F, W](found: Sequence[F], wanted: Sequence[W], fits: Callable[[F, W], bool]) -> int:
    """Length of the longest common subsequence."""
    best = [0] * (len(wanted) + 1)  # one row of the dynamic programming table
    for item in found:
        diagonal = 0
        for index, wanted_item in enumerate(wanted):
            above = best[index + 1]
            best[index + 1] = diagonal + 1 if fits(item, wanted_item) else max(above, best[index])
            diagonal = above
    return best[-1]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
