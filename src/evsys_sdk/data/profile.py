"""Statistics of a file of rows, and a suggested `data:` block for training on it.

profile = profile_rows(read_row_file(path), source="tickets.csv", count_tokens=len)
profile.problems     # nulls, duplicates, spellings of a label, prompts with two answers
profile.suggestion   # {"path": ..., "transforms": [...]}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..errors import WorkspaceError
from ..protocols import Row
from .chat import ANSWER_FIELDS, PROMPT_FIELDS, answer_of, first_field, last_index, text_of
from .rows import detect_format
from .shapes import is_object
from .transforms.rows import normalize

_MOST_ROWS = 100_000
_MOST_LABELS = 50
_ROWS_A_LABEL = 4
"""Minimum mean number of rows per distinct value of a label column."""
_SHOWN = 5
_NO_VALUE = frozenset({"null", "none", "nan", "n/a", "na", "nil", "-", "?"})
_SHAREGPT = "conversations"
_NO_COLUMNS = "no two columns hold texts to ask and to answer with"


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """The values of one column."""

    name: str
    filled: int
    """Rows with a value."""
    distinct: int
    labels: Mapping[str, int]
    """Count of each label, spellings merged; empty unless the column has labels."""
    spellings: Mapping[str, Mapping[str, int]]
    """Label -> its other spellings (case, whitespace) with counts."""
    null_words: Mapping[str, int]
    """Texts such as N/A that probably mean null."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Token lengths of prompts or answers."""

    shortest: int
    median: int
    percentile_95: int
    longest: int


@dataclass(frozen=True, slots=True)
class DatasetProfile:
    """Statistics of one file of rows."""

    source: str
    rows: int
    complete: bool
    """Whether all rows were read; of very long files only the first are."""
    format: str
    columns: Sequence[ColumnProfile]
    lengths: Mapping[str, TokenLengths]
    """For `prompt` and `answer`, if their columns are known."""
    examples: Mapping[str, Mapping[str, Any]]
    """`shortest` and `longest`: row number, prompt and answer."""
    problems: Sequence[str]
    suggestion: Mapping[str, Any]
    """The suggested `data:` block."""


def profile_rows(
    rows: Iterable[tuple[int, Row]], *, source: str, count_tokens: Callable[[str], int], unreadable: str = ""
) -> DatasetProfile:
    """The profile of numbered rows; `unreadable` reports the rows that could not be read."""
    numbered = list(islice(rows, _MOST_ROWS + 1))
    complete = len(numbered) <= _MOST_ROWS
    numbered = numbered[:_MOST_ROWS]
    columns = [_column(name, numbered) for name in dict.fromkeys(key for _, row in numbered for key in row)]
    format = detect_format(numbered[0][1]) if numbered else "unknown"
    names = _prompt_and_answer([row for _, row in numbered], columns) if format == "unknown" else None
    sides = [(number, *_sides(row, names)) for number, row in numbered]
    full = [row for row in sides if all(side.strip().casefold() not in ("", *_NO_VALUE) for side in row[1:])]
    sized = sorted((count_tokens(row[1]) + count_tokens(row[2]), *row) for row in full)
    n_tokens = {
        "prompt": [count_tokens(prompt) for _, prompt, _ in full],
        "answer": [count_tokens(answer) for _, _, answer in full],
    }
    ends = {"shortest": sized[0], "longest": sized[-1]} if sized else {}
    repeats = _repeats(numbered)
    problems = [unreadable] if unreadable else []
    if format == "unknown" and names is None and numbered and not {_SHAREGPT, "chosen"} & numbered[0][1].keys():
        problems = [*problems, f"{_NO_COLUMNS}; add `transforms:` to the data block."]
    return DatasetProfile(
        source=source,
        rows=len(numbered),
        complete=complete,
        format=format,
        columns=columns,
        lengths={side: _lengths(sorted(counts)) for side, counts in n_tokens.items() if counts},
        examples={end: {"row": row[1], "prompt": row[2], "answer": row[3]} for end, row in ends.items()},
        problems=[*problems, *_problems(numbered, columns, repeats, sides, names)],
        suggestion={
            "path": source,
            **({"on_bad_row": "skip"} if unreadable else {}),
            "transforms": _transforms(numbered, columns, names, format, bool(repeats)),
        },
    )


def suggest_transforms(rows: Sequence[Row], where: str) -> list[dict[str, Any]]:
    """Suggested transforms from raw rows to conversations; empty for typed rows."""
    if not rows:
        raise WorkspaceError(f"{where}: there are no rows. Check the file.")
    numbered = list(enumerate(rows, 1))
    columns = [_column(name, numbered) for name in dict.fromkeys(key for row in rows for key in row)]
    format = detect_format(rows[0])
    names = _prompt_and_answer(rows, columns) if format == "unknown" else None
    if format == "unknown" and names is None and _SHAREGPT not in rows[0]:
        raise WorkspaceError(f"{where}: {_NO_COLUMNS}. Add `transforms:`.")
    return _transforms(numbered, columns, names, format, False)


def _column(name: str, rows: Sequence[tuple[int, Row]]) -> ColumnProfile:
    values = [row[name] for _, row in rows if not _is_empty(row.get(name))]
    counts = Counter(value if isinstance(value, str) else json.dumps(value, default=str) for value in values)
    null_words = {value: count for value, count in counts.items() if value.strip().casefold() in _NO_VALUE}
    groups: dict[str, Counter[str]] = {}
    for value, count in counts.items():
        if value not in null_words:
            groups.setdefault(normalize(value), Counter())[value] += count
    is_label = all(isinstance(value, str | int) for value in values) and 1 < len(groups) <= _MOST_LABELS
    if not is_label or len(groups) * _ROWS_A_LABEL > len(values):
        return ColumnProfile(name, len(values), len(counts), {}, {}, null_words)
    # The most frequent spelling, preferring one without surrounding spaces.
    best = {max(group, key=lambda text: (group[text], text == text.strip(), text)): group for group in groups.values()}
    labels = {label.strip(): group.total() for label, group in best.items()}
    spellings: dict[str, dict[str, int]] = {}
    for label, group in best.items():
        if others := {spelling: count for spelling, count in group.items() if spelling != label.strip()}:
            spellings[label.strip()] = others
    ordered = dict(sorted(labels.items(), key=lambda item: -item[1]))
    return ColumnProfile(name, len(values), len(counts), ordered, spellings, null_words)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _prompt_and_answer(rows: Sequence[Row], columns: Sequence[ColumnProfile]) -> tuple[str, str] | None:
    """The prompt and answer columns: by name, else the longest text and the labels (or the next text)."""
    if not rows or _SHAREGPT in rows[0]:
        return None
    sample = rows[:200]
    texts = {column.name: column for column in columns if any(isinstance(row.get(column.name), str) for row in sample)}
    lengths = {name: sum(len(str(row.get(name) or "")) for row in sample) for name in texts}
    numbers = (
        column.name for column in columns if any(isinstance(row.get(column.name), int | float) for row in sample)
    )
    prompt = first_field({name: name for name in texts}, PROMPT_FIELDS)
    answer = first_field({name: name for name in [*texts, *numbers]}, (*ANSWER_FIELDS, "chosen"))
    by_length = sorted(texts, key=lambda name: -lengths[name])
    labels = [name for name in texts if texts[name].labels and name != prompt]
    rest = [name for name in by_length if name not in (prompt, answer)]
    prompt = prompt or next((name for name in rest if not texts[name].labels), None) or next(iter(rest), None)
    answer = answer or next((name for name in [*labels, *rest] if name != prompt), None)
    return (prompt, answer) if prompt and answer else None


def _sides(row: Row, names: tuple[str, str] | None) -> tuple[str, str]:
    """The prompt and the answer of a row."""
    if names is not None:
        return _text(row.get(names[0])), _text(row.get(names[1]))
    if detect_format(row) == "chat_messages":
        messages: list[Row] = row["messages"]
        index = last_index(messages, "user")
        return "" if index is None else text_of(messages[index].get("content")), _text(answer_of(row))
    verifier: Any = row.get("verifier")
    return text_of(row.get("instruction")), _text(verifier.get("expected") if is_object(verifier) else None)


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _lengths(counts: list[int]) -> TokenLengths:
    return TokenLengths(counts[0], counts[len(counts) // 2], counts[len(counts) * 95 // 100], counts[-1])


def _repeats(rows: Sequence[tuple[int, Row]]) -> list[int]:
    """Numbers of rows that equal an earlier one, ignoring case and whitespace."""
    seen: set[str] = set()
    numbers: list[int] = []
    for number, row in rows:
        same = {key: normalize(value) for key, value in row.items() if key != "id"}  # a new id makes no new row
        text = json.dumps(same, sort_keys=True, default=str)
        numbers += [number] if text in seen else []
        seen.add(text)
    return numbers


def _problems(
    rows: Sequence[tuple[int, Row]],
    columns: Sequence[ColumnProfile],
    repeats: Sequence[int],
    sides: Sequence[tuple[int, str, str]],
    names: tuple[str, str] | None,
) -> list[str]:
    problems: list[str] = []
    for column in columns:
        without = [number for number, row in rows if _is_empty(row.get(column.name))]
        if without:
            problems.append(f"{len(without)} of {len(rows)} rows have no `{column.name}`: {_some(without)}.")
        if column.null_words:
            words = ", ".join(f"{json.dumps(word)} {count}x" for word, count in column.null_words.items())
            problems.append(f"`{column.name}` holds texts that probably mean null: {words}.")
        for label, others in column.spellings.items():
            written = ", ".join(f"{json.dumps(text, ensure_ascii=False)} {count}x" for text, count in others.items())
            problems.append(f"`{column.name}` {json.dumps(label, ensure_ascii=False)} is also written {written}.")
    if repeats:
        problems.append(f"{len(repeats)} of {len(rows)} rows repeat an earlier one: {_some(repeats)}.")
    answers: dict[str, set[str]] = {}
    for _, prompt, answer in sides:
        if prompt.strip() and answer.strip():
            answers.setdefault(normalize(prompt), set()).add(normalize(answer))
    n_ambiguous = sum(len(texts) > 1 for texts in answers.values())
    if n_ambiguous:
        what = f"`{names[0]}`" if names else "prompt"
        problems.append(f"{n_ambiguous} of {len(answers)} different {what} values have several answers: decide which.")
    return problems


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if numbers[_SHOWN:] else ""
    return f"row{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_SHOWN]))}{more}"


def _transforms(
    rows: Sequence[tuple[int, Row]],
    columns: Sequence[ColumnProfile],
    names: tuple[str, str] | None,
    format: str,
    has_repeats: bool,
) -> list[dict[str, Any]]:
    """Merge spellings, drop rows without a value and duplicates, and convert the rest to conversations."""
    if rows and "chosen" in rows[0][1] and "rejected" in rows[0][1]:
        return []  # preference rows for `dpo` need no transforms
    if names is None:
        return [{"kind": "sharegpt_to_chat"}] if format == "unknown" and rows and _SHAREGPT in rows[0][1] else []
    used = [column for column in columns if column.name in names]
    # Template placeholders allow letters, digits and underscores.
    new = {name: re.sub(r"\W+", "_", name).strip("_").lower() or "column" for name in names if not name.isidentifier()}
    steps: list[dict[str, Any]] = [{"kind": "rename_fields", "params": {"fields": new}}] if new else []
    used = [replace(column, name=new.get(column.name, column.name)) for column in used]
    names = (new.get(names[0], names[0]), new.get(names[1], names[1]))
    for column in used:
        values: dict[str, Any] = {text: label for label, others in column.spellings.items() for text in others}
        values |= dict.fromkeys(column.null_words)
        if values:
            steps.append({"kind": "map_values", "params": {"field": column.name, "values": values}})
    gaps = [column.name for column in used if column.filled < len(rows) or column.null_words]
    if gaps:
        conditions = [{"field": name, "operator": "ne", "value": None} for name in gaps]
        steps.append({"kind": "filter", "params": {"conditions": conditions}})
    if has_repeats:
        steps.append({"kind": "dedupe", "params": {"key": list(names), "mode": "normalized"}})
    params = {"user_template": f"{{{names[0]}}}", "assistant_template": f"{{{names[1]}}}"}
    return [*steps, {"kind": "jsonl_to_chat", "params": params}]
