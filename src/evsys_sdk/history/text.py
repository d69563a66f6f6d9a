"""Format numbers, dates and tables as text, fitted to the terminal."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence

WIDE = 140
"""Width of output to a file or another program."""


def terminal_width() -> int:
    """The number of columns; the variable COLUMNS has precedence."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(40, int(columns))
    try:
        return max(40, os.get_terminal_size(sys.__stdout__.fileno()).columns)  # pyright: ignore[reportOptionalMemberAccess]
    except (OSError, ValueError, AttributeError):  # a file, or another program
        return WIDE


def is_unicode() -> bool:
    """Whether the output has a Unicode encoding."""
    return (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "").startswith("utf")


def printable(text: str) -> str:
    """`text` with unprintable characters and escape sequences replaced by question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not text.isprintable():  # an escape sequence in a note could clear the screen
        text = "".join(
            char if (char >= " " and not "\x7f" <= char <= "\x9f") or char in "\n\t" else "?" for char in text
        )
    return text.encode(encoding, "replace").decode(encoding, "replace")


def printable_json(text: str) -> str:
    """JSON with characters that the output cannot show as JSON escapes."""
    if is_unicode():
        return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate becomes \\ud8xx
    import json

    return json.dumps(json.loads(text), indent=2 if "\n" in text else None)


def text_or_json(value: object) -> str:
    """Text unchanged, other values as JSON on one line."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def clip(text: str, width: int) -> str:
    """One line of at most `width` characters; a name is cut in the middle, because its end distinguishes it."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    dots = "…" if is_unicode() else "..."
    room = max(0, width - len(dots))
    end = room // 2 if len(line.rpartition(" ")[2]) > width // 2 else 0
    return f"{line[: room - end].rstrip()}{dots}{line[len(line) - end :]}"[:width]


def score_text(value: float | None) -> str:
    """A score with four digits, or `-`."""
    return "-" if value is None else f"{value:.4g}"


def interval_text(low: float | None, high: float | None, covers: str = "") -> str:
    """`[0.41, 0.53]`, marked if it covers tasks only; empty without an interval."""
    only = " (tasks only)" if covers == "tasks" else ""
    return "" if low is None or high is None else f"[{low:.3g}, {high:.3g}]{only}"


def difference_text(value: float, low: float | None, high: float | None) -> str:
    """`+0.12 [+0.05, +0.19]`, or the difference alone without an interval."""
    return f"{value:+.3g}" if low is None or high is None else f"{value:+.3g} [{low:+.3g}, {high:+.3g}]"


def date_text(at: float | None) -> str:
    """Local time with minutes, or `-`."""
    if at is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "-"


def duration_text(seconds: float | None) -> str:
    """`42s`, `3m 05s`, `2h 10m`, `3d 4h`."""
    if seconds is None or seconds < 0:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f}s" if seconds >= 10 else f"{seconds:.2g}s"
    minutes, hours = divmod(int(seconds), 60), divmod(int(seconds) // 60, 60)
    if seconds < 3600:
        return f"{minutes[0]}m {minutes[1]:02d}s"
    return f"{hours[0]}h {hours[1]:02d}m" if hours[0] < 48 else f"{hours[0] // 24}d {hours[0] % 24}h"


def count_text(value: float) -> str:
    """`950`, `12.3k`, `4.5M`, `1.2B`."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.0f}"


def usd_text(value: float) -> str:
    """Dollars and cents; amounts below a cent with two digits."""
    return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.2g}"


def spend_text(spend: Mapping[str, float]) -> str:
    """A spend as one line, without zero amounts."""
    parts: list[str] = []
    if spend.get("usd"):
        parts.append(usd_text(spend["usd"]))
    if spend.get("tokens_trained"):
        parts.append(f"{count_text(spend['tokens_trained'])} tokens trained")
    if spend.get("tokens_sampled"):
        parts.append(f"{count_text(spend['tokens_sampled'])} tokens sampled")
    if spend.get("wall_s"):
        parts.append(duration_text(spend["wall_s"]))
    if spend.get("gpu_s"):
        parts.append(f"{duration_text(spend['gpu_s'])} of GPU")
    return ", ".join(parts)


def short_spend_text(spend: Mapping[str, float]) -> str:
    """A spend for a narrow column."""
    tokens = spend.get("tokens_trained", 0.0) + spend.get("tokens_sampled", 0.0)
    parts = [usd_text(spend["usd"])] if spend.get("usd") else []
    parts += [f"{count_text(tokens)} tokens"] if tokens else []
    parts += [duration_text(spend["wall_s"])] if spend.get("wall_s") else []
    return ", ".join(parts)


class TextPage:
    """A page for a terminal."""

    def __init__(self) -> None:
        self.width, self._parts = terminal_width(), list[str]()

    def add(self, *texts: str) -> None:
        """Add lines unchanged."""
        self._parts += texts

    def heading(self, text: str) -> None:
        self.add(f"\n{text}")

    def paragraph(self, text: str) -> None:
        """Add wrapped text; an item of a list begins with `- `."""
        text, is_item = " ".join(text.split()), text.startswith("- ")
        self.add(textwrap.fill(text, width=min(self.width, 110), subsequent_indent="  " if is_item else ""))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], flexible: Sequence[int]) -> None:
        self.add(fit_table(headers, rows, width=self.width, flexible=flexible))

    def quote(self, parts: Mapping[str, str | None]) -> None:
        """Add named texts below an item of a list, a line for each that is not None."""
        self.add(
            *(f"  {name + ':':<9} {clip(part, self.width - 14)}" for name, part in parts.items() if part is not None)
        )

    def __str__(self) -> str:
        return "\n".join(self._parts).replace("\n\n\n", "\n\n")


def fit_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, flexible: Sequence[int]) -> str:
    """Aligned columns no wider than `width`; the widest of the flexible columns are cut first."""
    cells = [[" ".join(cell.split()) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    least = [max(8, len(header)) for header in headers]
    for columns, floors in ((flexible, least), (range(len(headers)), [4] * len(headers))):
        while (
            sum(widths) + 2 * (len(widths) - 1) > width
        ):  # by one character, so that the widest columns become equally wide
            widest = max(columns, key=lambda column: widths[column])
            if widths[widest] <= floors[widest]:
                break
            widths[widest] -= 1
    columns = [_clip_cells([row[at] for row in cells], size) for at, size in enumerate(widths)]
    lines = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    return "\n".join([lines[0], "  ".join("-" * size for size in widths), *lines[1:]])


def _clip_cells(cells: Sequence[str], width: int) -> list[str]:
    """The cells of a column, cut; different cells that would look the same lose their common beginning instead."""
    clipped = [clip(cell, width) for cell in cells]
    alike: dict[str, set[str]] = {}
    for cell, short in zip(cells, clipped, strict=True):
        alike.setdefault(short, set()).add(cell)
    same = [cell for group in alike.values() if len(group) > 1 for cell in group]
    if not same:
        return clipped
    pairs = enumerate(zip(min(same), max(same), strict=False))
    start = next((at for at, (one, other) in pairs if one != other), 0)
    dots = "…" if is_unicode() else "..."
    return [
        clip(dots + cell[start:], width) if cell != short and cell[:start] == same[0][:start] else short
        for cell, short in zip(cells, clipped, strict=True)
    ]


def write_markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars and newlines in cells are escaped."""
    lines = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in (headers, *rows)]
    texts = [f"| {' | '.join(row)} |" for row in lines]
    return "\n".join([texts[0], "|" + "---|" * len(headers), *texts[1:]])
