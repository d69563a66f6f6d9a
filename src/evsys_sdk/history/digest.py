"""A text that must fit a budget: sections of items, most valuable first, each saying what was left out.

A token is taken to be four characters. Which items stay is decided by the shares of the sections; what a section does
not use is free for the others. The result depends on nothing but its input.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CHARACTERS_PER_TOKEN = 4
_LEFT_OUT = "... {count} more: {command}"


@dataclass(frozen=True, slots=True)
class Item:
    """One statement, as text and as data."""

    text: str
    data: Any


@dataclass(frozen=True, slots=True)
class Section:
    """Statements of one kind, the most valuable first."""

    key: str
    title: str
    items: Sequence[Item]
    share: float
    """How much of the budget it may use before it has to give way."""
    command: str
    """What shows all of them."""
    total: int | None = None
    """How many there are, where `items` are only the first."""

    @property
    def n_total(self) -> int:
        return len(self.items) if self.total is None else max(self.total, len(self.items))


@dataclass(slots=True)
class Digest:
    """Sections cut to a budget."""

    sections: Sequence[Section]
    budget_tokens: int
    kept: dict[str, int] = field(default_factory=dict[str, int])
    """Section -> how many of its items are shown."""

    def fit(self, style: str) -> str:
        """The digest as `text`, `markdown` or `json`, no longer than the budget."""
        most = self.budget_tokens * CHARACTERS_PER_TOKEN
        self.kept = {section.key: len(section.items) for section in self.sections}
        costs = {section.key: [_cost(item, style) for item in section.items] for section in self.sections}
        shown = self._render(style)
        while len(shown) > most and any(self.kept.values()):
            self._shrink(costs, most, over=len(shown) - most)
            shown = self._render(style)
        return shown if style == "json" else shown[:most]

    def _shrink(self, costs: dict[str, list[int]], most: int, *, over: int) -> None:
        """Take the last items away from the sections that are furthest beyond their share."""
        while over > 0 and any(self.kept.values()):
            excess = {
                section.key: sum(costs[section.key][: self.kept[section.key]]) - section.share * most
                for section in self.sections
                if self.kept[section.key]
            }
            key = max(excess, key=lambda name: excess[name])
            self.kept[key] -= 1
            over -= costs[key][self.kept[key]]

    def _render(self, style: str) -> str:
        if style == "json":
            return _json(self.to_dict())
        parts = [self._section(section, style) for section in self.sections if self.kept[section.key]]
        gone = [section for section in self.sections if section.items and not self.kept[section.key]]
        if gone:
            names = ", ".join(f"{section.title.split(' (')[0].lower()} ({section.n_total:,})" for section in gone)
            parts.append(f"No room for: {names}. Raise --budget-tokens, or see: evsys history")
        return "\n".join(parts).rstrip() + "\n"

    def _section(self, section: Section, style: str) -> str:
        kept = self.kept[section.key]
        head = f"## {section.title}" if style == "markdown" else section.title
        bullet = "- " if style == "markdown" or section.n_total > 1 else "  "
        lines = [head, *(f"{bullet}{item.text}" for item in section.items[:kept])]
        if left := section.n_total - kept:
            command = f"`{section.command}`" if style == "markdown" else section.command
            lines.append(bullet + _LEFT_OUT.format(count=f"{left:,}", command=command))
        return "\n".join([*lines, ""])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what is kept, and for each section what was left out."""
        found: dict[str, Any] = {
            section.key: [item.data for item in section.items[: self.kept[section.key]]] for section in self.sections
        }
        left = {
            section.key: {"count": section.n_total - self.kept[section.key], "command": section.command}
            for section in self.sections
            if section.n_total > self.kept[section.key]
        }
        return {**found, "left_out": left, "budget_tokens": self.budget_tokens}


def _cost(item: Item, style: str) -> int:
    return len(_json(item.data)) + 1 if style == "json" else len(item.text) + 3


def _json(value: Any) -> str:
    """Without white space, which costs tokens and says nothing."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
