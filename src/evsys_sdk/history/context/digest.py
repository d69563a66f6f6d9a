"""A text that must fit a budget: sections of statements, the most valuable first, each saying what was left out.

Which statements stay is decided by the shares of the sections; what a section does not use is free for the others. The
result depends on nothing but its input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_PIECES = re.compile(r"[A-Za-z]+|[^\S ]|[^\sA-Za-z]")


def count_tokens(text: str) -> int:
    """How many tokens a model reads at most, whichever its tokenizer.

    Each digit, each sign and each line end counts as one, whatever is not ASCII as many as it has bytes, and a word as
    one up to five letters, two up to seven, and two for every five letters beyond. Of the tokenizers of Claude, GPT-2,
    GPT-4, GPT-4o and Qwen, the one that needs most stays 1 to 31 % below that on digests, configs, JSON, and prose in
    English, German and French. Random letters need more than is counted, but those are no part of a digest.
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
    """What it is about, where a section holds several kinds."""


@dataclass(frozen=True, slots=True)
class Section:
    """Statements of one kind, or about one question, the most valuable first."""

    key: str
    title: str
    items: Sequence[Item]
    share: float
    """How much of the budget it may use before it has to give way."""
    command: str
    """What shows all of them, where one command does."""
    total: int | None = None
    """How many there are, where `items` are only the first."""
    head: dict[str, Any] | None = None
    """What the title says, as data; sections that have it are listed under the same key."""

    @property
    def n_total(self) -> int:
        return len(self.items) if self.total is None else max(self.total, len(self.items))


@dataclass(slots=True)
class Digest:
    """Sections cut to a budget."""

    sections: Sequence[Section]
    budget_tokens: int
    kept: list[int] = field(default_factory=list[int])
    """How many items of each section are shown."""

    def fit(self, style: str) -> str:
        """The digest as `text`, `markdown` or `json`, no longer than the budget."""
        self.kept = [len(section.items) for section in self.sections]
        costs = [[_cost(item, style) for item in section.items] for section in self.sections]
        # What single statements take is a guess at what the whole does: headings, and lines that say what was left
        # out, come and go with them. So it is written and counted again until it fits.
        while (over := self._excess(style)) > 0 and any(self.kept):
            self._shrink(costs, over=over)
        self._fill(style)
        return self._render(style)

    def _excess(self, style: str) -> int:
        return count_tokens(self._render(style)) - self.budget_tokens

    def _shrink(self, costs: Sequence[Sequence[int]], *, over: int) -> None:
        """Take the last items away from the sections that are furthest beyond their share.

        The first item of a section is worth more than the second of another; when only first ones are left, the last
        section gives way.
        """
        while over > 0 and any(self.kept):
            excess = {
                place: sum(costs[place][: self.kept[place]]) - section.share * self.budget_tokens
                for place, section in enumerate(self.sections)
                if self.kept[place] > 1
            }
            last = max(place for place, kept in enumerate(self.kept) if kept)
            place = max(excess, key=lambda one: excess[one]) if excess else last
            self.kept[place] -= 1
            over -= costs[place][self.kept[place]]

    def _fill(self, style: str) -> None:
        """Put back what still fits, first statements first: long ones leave room behind that short ones can use."""
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
        gone = [section for section, kept in pairs if section.items and not kept]
        if gone:
            counts: dict[str, int] = {}
            for section in gone:
                counts[section.key] = counts.get(section.key, 0) + (section.n_total if section.head is None else 1)
            names = ", ".join(f"{key} ({count:,})" for key, count in counts.items())
            parts.append(f"No room for: {names}. Raise --budget-tokens, or see: evsys history")
        return "\n".join(parts).rstrip() + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what is kept, and of which section how many statements were left out."""
        found: dict[str, Any] = {}
        left: dict[str, int] = {}
        for section, kept in zip(self.sections, self.kept, strict=True):
            shown = section.items[:kept]
            if section.head is None:
                found[section.key] = [item.data for item in shown]
            else:
                one: dict[str, Any] = dict(section.head)
                for item in shown:
                    one.setdefault(item.kind, []).append(item.data)
                found.setdefault(section.key, []).extend([one] if shown else [])
            if section.n_total > kept:
                left[section.key] = left.get(section.key, 0) + section.n_total - kept
        return {**found, "left_out": left, "budget_tokens": self.budget_tokens}


def _section_text(section: Section, kept: int, style: str) -> str:
    head = f"## {section.title}" if style == "markdown" else section.title
    lines = [head, *(f"- {item.text}" for item in section.items[:kept])]
    if left := section.n_total - kept:
        command = f"`{section.command}`" if style == "markdown" and section.command else section.command
        lines.append(f"- ... {left:,} more" + (f": {command}" if command else ""))
    return "\n".join([*lines, ""])


def _cost(item: Item, style: str) -> int:
    return count_tokens(_json(item.data) if style == "json" else item.text) + 2  # with its dash and line end


def _json(value: Any) -> str:
    """Without white space, which costs tokens and says nothing."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
