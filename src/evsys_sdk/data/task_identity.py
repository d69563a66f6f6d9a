"""The two identities of a task: `task_id` for exact content, `task_key` for the question as a reader understands it.

    task_id(task)               "5f0c..."  pairing and caching: any change of the row gives another id
    task_key(task)              "which queue answers this ticket"  contamination and claim families
    task_key("<b>Which</b> QUEUE  answers this ticket?")           the same key

`task_key` ignores what does not change a question: Unicode forms, accents, look-alike letters, invisible characters,
markup, case, whitespace and the punctuation around words. It is text, so it can be searched for in other text that was
normalised in the same way.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from .chat import text_of
from .rows import to_dict
from .shapes import is_list, is_object
from .types import HarborTask

_LOOK_ALIKES = str.maketrans(
    "\u0430\u0410\u0412\u0432\u0441\u0421\u0501\u0435\u0415\u04bb\u041d\u043d\u0456\u0406\u0458\u0408\u041a\u043a"
    "\u04cf\u041c\u043c\u043e\u041e\u0440\u0420\u051b\u0455\u0405\u0422\u0442\u0475\u051d\u0445\u0425\u0443\u0423"
    "\u04af\u04ae\u03b1\u0391\u0392\u03b2\u0395\u03b5\u0397\u03b7\u0399\u03b9\u039a\u03ba\u039c\u039d\u03bd\u039f"
    "\u03bf\u03a1\u03c1\u03a4\u03c4\u03c5\u03a5\u03a7\u03c7\u0396\u03b6\u0251\u0261\u0131\u0269"
    "\u1d00\u0299\u1d04\u1d05\u1d07\ua730\u0262\u029c\u026a\u1d0a\u1d0b\u029f\u1d0d\u0274\u1d0f\u1d18\u0280\ua731\u1d1b"
    "\u1d1c\u1d20\u1d21\u028f\u1d22\u0585\u0570\u057d\u0581\u0578\u0575\u0584",
    "aABbcCdeEhHhiIjJKklMmoOpPqsSTtvwxXyYyYaABbEeHhIiKkMNvOoPpTtuYXxZzagiiabcdefghijklmnoprstuvwyzohugnjp",
)
"""Cyrillic, Greek, Armenian and rare Latin letters that look like a letter of a to z in upper or lower case."""
_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Invisible characters outside the category Cf and the variation selectors."""

_ACCENT = re.compile(r"[\u0300-\u0337\u0339-\u036f]")
"""Combining marks, except the stroke of signs such as \"not equal\"."""

_MARKED = re.compile(r"[<*_`]|\]\(")
_INLINE_TAG = re.compile(
    r"</?(?:a|b|code|em|font|i|kbd|mark|s|small|span|strong|sub|sup|u|wbr)(?:\s[^<>]*)?/?>|<!--.*?-->", re.I | re.S
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|`{1,3})(?=\S)([^*_`\n]+?)(?<=\S)\1(?![\w*])")
_LINK = re.compile(r"\[([^\[\]\n]+)\]\([^()\s]*\)")
_CONTROL = re.compile(r"\x1b\[[\d;]*m|[\x00-\x08\x0e-\x1b\x7f]")
"""Control characters and ANSI colour codes."""
_ESCAPED_TIMES = 3
"""Maximum number of nested HTML escapes."""
_PUNCTUATION = re.compile(
    r"""(?:[.,;:?"'\u00ab\u00bb\u2018-\u201f\u2026]|(?<=[^\W\d])!)+(?=\s|$)|(?<!\S)["'\u00ab\u00bb\u2018-\u201f]+"""
)
_TEXTLESS_KEYS = frozenset({"role", "task_id", "id", "tool_call_id", "metadata", "kind", "fn_name", "type"})


def task_id(task: HarborTask, *, judged: bool = True) -> str:
    """Hash of a task's exact content, expected answer and verifier; without `judged`, of what the model sees only."""
    content = to_dict(task) if judged else [task.instruction, task.metadata.get("context_messages")]
    return hashlib.sha256(_json(content)).hexdigest()[:16]


def task_list_id(tasks: Iterable[HarborTask]) -> str:
    """Hash of the exact content of tasks in their order: `n_tasks` scores the first ones, so the order matters."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(_json(to_dict(task)) + b"\n")
    return digest.hexdigest()


def task_key(task: HarborTask | str) -> str:
    """The normalised question of a task, or the normalised form of any text."""
    if isinstance(task, HarborTask):
        # The conversation before the instruction is part of the question.
        task = "\n".join(row_texts([task.metadata.get("context_messages"), task.instruction]))
    return " ".join(_PUNCTUATION.sub(" ", visible_text(task)).casefold().split())


def duplicate_key(task: HarborTask) -> str:
    """A key that is equal for tasks with the same normalised question and verifier."""
    return task_key(task) + "\0" + task_key(json.dumps(to_dict(task.verifier), ensure_ascii=False, default=str))


def visible_text(text: str) -> str:
    """A text without markup, accents and invisible characters, in one Unicode form; case and whitespace are kept."""
    if "&" in text:
        from html import unescape  # here, because its table takes 5 ms to import

        for _ in range(_ESCAPED_TIMES):
            text = unescape(text)
    text = _CONTROL.sub("", text)
    if not text.isascii():
        table = _character_table()  # also before NFKC: invisible characters separate accents from letters
        text = _ACCENT.sub("", unicodedata.normalize("NFKD", text.translate(table)))
        text = unicodedata.normalize("NFKC", text).translate(table)
    if _MARKED.search(text) is None:
        return text
    return _EMPHASIS.sub(r"\2", _TAG.sub(" ", _INLINE_TAG.sub("", _LINK.sub(r"\1", text))))


def row_texts(row: Any) -> list[str]:
    """The texts of a row, whatever its shape: message contents, instructions, answers."""
    texts: list[str] = []
    _collect(row, texts)
    return texts


def _collect(value: Any, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if key not in _TEXTLESS_KEYS:
                _collect(inner, texts)
    elif is_list(value) and value and all(is_object(block) and block.get("type") == "text" for block in value):
        texts.append(text_of(value))  # the parts of one message
    elif isinstance(value, list | tuple):
        for inner in cast("Sequence[Any]", value):
            _collect(inner, texts)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        texts.append(str(value))


@cache
def _character_table() -> dict[int, str | None]:
    """Special character -> replacement, or None to remove it. Built on first use, because it scans Unicode."""
    planes = (range(0x3000), range(0xFE00, 0x10000), range(0xE0000, 0xE0200), range(0x1D000, 0x1D200))
    hidden = [code for plane in planes for code in plane if unicodedata.category(chr(code)) == "Cf"]
    hidden += [*map(ord, _INVISIBLE), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E)]
    return {**dict.fromkeys(hidden), **{code: chr(latin) for code, latin in _LOOK_ALIKES.items()}}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
