"""Fit sections of statements, the most valuable first, into a token budget.

The shares of the sections decide which statements stay; unused shares go to other sections. Each section states how
many statements it omits. The result is deterministic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_PIECES = re.compile(r"[A-Za-z]+|[^\S ]|[^\sA-Za-z]")


def count_tokens(text: str) -> int:
    """An upper bound of the number of tokens, for any tokenizer.

    Each digit, sign and newline counts as one token, a non-ASCII character as its number of bytes, and a word as one
    token up to five letters, two up to seven, and two per five letters beyond. The tokenizers of Claude, GPT-2, GPT-4,
    GPT-4o and Qwen need 1 to 31 % less on digests, configs, JSON, and prose in English, German and French. Random
    letters may need more.
    """
    count = 0
    for piece in _PIECES.findall(text):
        if piece.isascii():
            size = len(piece)
            count += 1 if size <= 5 else 2 if size <= 7 else -(-size * 2 // 5)
        else:
            count += len(piece.encode("utf-8", "surrogatepass"))
    return count


@dataclass(frozen=True, slots=True)
class Item:
    """One statement, as text and as data."""

    text: str
    data: Any
    kind: str = ""
    """The kind of the statement, if a section holds several."""


@dataclass(frozen=True, slots=True)
class Section:
    """Statements of one kind or about one question, the most valuable first."""

    key: str
    title: str
    items: Sequence[Item]
    share: float
    """Share of the budget that it may use before it is cut."""
    command: str
    """The command that shows all statements; empty without one."""
    total: int | None = None
    """The number of all statements, if `items` are only the first."""
    head: dict[str, Any] | None = None
    """The title as data; sections with it are listed under the same key."""

    @property
    def n_total(self) -> int:
        return len(self.items) if self.total is None else max(self.total, len(self.items))


@dataclass(slots=True)
class Digest:
    """Sections cut to a budget."""

    sections: Sequence[Section]
    budget_tokens: int
    kept: list[int] = field(default_factory=list[int])
    """Number of shown items of each section."""

    def fit(self, style: str) -> str:
        """The digest as `text`, `markdown` or `json`, no longer than the budget."""
        self.kept = [len(section.items) for section in self.sections]
        costs = [[_cost(item, style) for item in section.items] for section in self.sections]
        # The costs of statements are estimates, because headings and lines about omitted statements change with them.
        # So the digest is rendered and counted until it fits.
        while (over := self._excess(style)) > 0 and any(self.kept):
            self._shrink(costs, over=over)
        self._fill(style)
        return self._render(style)

    def _excess(self, style: str) -> int:
        return count_tokens(self._render(style)) - self.budget_tokens

    def _shrink(self, costs: Sequence[Sequence[int]], *, over: int) -> None:
        """Remove the last items of the sections that exceed their share most.

        The first item of each section stays as long as possible; then whole sections are removed from the end.
        """
        while over > 0 and any(self.kept):
            excess = {
                place: sum(costs[place][: self.kept[place]]) - section.share * self.budget_tokens
                for place, section in enumerate(self.sections)
                if self.kept[place] > 1
            }
            last = max(place for place, kept in enumerate(self.kept) if kept)
            place = max(excess, key=lambda index: excess[index]) if excess else last
            self.kept[place] -= 1
            over -= costs[place][self.kept[place]]

    def _fill(self, style: str) -> None:
        """Add items again that still fit, first the first items of sections."""
        for least in (1, None):
            for place, section in enumerate(self.sections):
                most = len(section.items) if least is None else min(least, len(section.items))
                while self.kept[place] < most:
                    self.kept[place] += 1
                    if self._excess(style) > 0:
                        self.kept[place] -= 1
                        break

    def _render(self, style: str) -> str:
        if style == "json":
            return _json(self.to_dict())
        pairs = list(zip(self.sections, self.kept, strict=True))
        parts = [_section_text(section, kept, style) for section, kept in pairs if kept]
        omitted = [section for section, kept in pairs if section.items and not kept]
        if omitted:
            counts: dict[str, int] = {}
            for section in omitted:
                counts[section.key] = counts.get(section.key, 0) + (section.n_total if section.head is None else 1)
            names = ", ".join(f"{key} ({count:,})" for key, count in counts.items())
            parts.append(f"Left out: {names}. Raise --budget-tokens, or see: evsys history")
        return "\n".join(parts).rstrip() + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the kept statements, and the number of omitted ones per section."""
        sections: dict[str, Any] = {}
        omitted: dict[str, int] = {}
        for section, kept in zip(self.sections, self.kept, strict=True):
            shown = section.items[:kept]
            if section.head is None:
                sections[section.key] = [item.data for item in shown]
            else:
                entry: dict[str, Any] = dict(section.head)
                for item in shown:
                    entry.setdefault(item.kind, []).append(item.data)
                sections.setdefault(section.key, []).extend([entry] if shown else [])
            if section.n_total > kept:
                omitted[section.key] = omitted.get(section.key, 0) + section.n_total - kept
        return {**sections, "left_out": omitted, "budget_tokens": self.budget_tokens}


def _section_text(section: Section, kept: int, style: str) -> str:
    head = f"## {section.title}" if style == "markdown" else section.title
    lines = [head, *(f"- {item.text}" for item in section.items[:kept])]
    if omitted := section.n_total - kept:
        command = f"`{section.command}`" if style == "markdown" and section.command else section.command
        lines.append(f"- ... {omitted:,} more" + (f": {command}" if command else ""))
    return "\n".join([*lines, ""])


def _cost(item: Item, style: str) -> int:
    return count_tokens(_json(item.data) if style == "json" else item.text) + 2  # with its dash and newline


def _json(value: Any) -> str:
    """Compact JSON, because white space costs tokens."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
