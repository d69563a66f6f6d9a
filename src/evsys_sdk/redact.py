"""Removal of secrets from records, logs and printed text.

Records, log files and terminal output are stored and shared, and exceptions may quote anything: a rejected key, the URL
of a database, a whole environment. So all output is redacted in the same way. Redacted are

- values whose name indicates a secret: `api_key`, `openaiApiKey`, `password`, everything below `credentials`;
- text with the format of a key: `sk-...`, `ghp_...`, a JWT, a private key, the value of `Authorization:`;
- passwords and tokens in URLs;
- values of environment variables, except paths, numbers, words and plain URLs; also in base64, and escaped for a URL,
  JSON, `repr` or HTML, once or repeatedly.

Colour codes and invisible characters do not prevent a match. Most lines contain no secret, so a fast search for a few
fragments comes first.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from string import ascii_lowercase, ascii_uppercase
from typing import Any, TextIO, cast

from .secret_names import (
    SHORTEST_SECRET,
    find_secrets,
    is_password_name,
    is_secret_name,
    is_weak_name,
    name_below,
    name_of_items,
    strip_hidden,
)

REDACTED = "[redacted]"

_compile = functools.cache(re.compile)
"""Compiles a pattern on first use, because compiling all of them dominates the run time of short commands."""

_MARK = r"<[^<>]{1,40}>|\[[^\[\]]{1,40}\]|\$\{\w+\}"
"""A special token, e.g. `assistant_token: <|assistant|>`, or a variable, e.g. `api_key: ${NAME}`."""
_NO_SECRET = (
    r"[A-Za-z_]+[-_./]\d+|[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-fA-F-]{36}|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
)
"""Values that are not secrets: a word and a number, a hash, a UUID, a dotted name."""
_LITERAL = r"(?![$%])[\w.$%!@#^*+/=~?-]{6,}"
"""A quoted value that is not a placeholder."""

_PLACEHOLDER = r"^\$|\$\{\w+\}|^<[^<>]*>$|\[redacted\]"
"""A placeholder for a secret: a variable or a remark."""

_STARTS = r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
"""The start of a word, also after an escaped line end or character."""
_SHAPES = {
    prefix: rest
    for prefixes, rest in (
        ("sk- glpat- tml- xapp- nvapi- pplx- xai- tvly- pypi-", r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"),
        ("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs-", r"(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{16,}"),
        ("hf_ ghp_ gho_ ghu_ ghs_ ghr_ fw_ gsk_ r8_ npm_ e2b_ shpat_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}"),
        ("dop_v1_ whsec_ lin_api_ sntrys_ secret_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}"),
        ("sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,}"),
        ("AKIA ASIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])"),
        ("evk_ github_pat_ hvs. ya29. AIza", r"[A-Za-z0-9_-]{16,}"),
        ("SG.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
        ("eyJ", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    )
    for prefix in prefixes.split()
}
"""Prefix of keys -> pattern of the rest; `evk_` are keys of evsys."""
_SHAPE = (
    rf"{_STARTS}(?:{'|'.join(re.escape(prefix) + rest for prefix, rest in _SHAPES.items())})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^\"']{0,20000}?-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\]*)"
)
_BEARER = r"(?i)\b(bearer\s+)(?=[^\s\"']*[0-9]|[^\s\"']{20})([A-Za-z0-9._~+/=-]{8,})"
_COOKIE = r"(?i)(\bcookie\\*[\"']?\s{0,3}[:=]\s{0,3}\\*[\"']?)([\w.-]+=[^\"'\r\n\\]{6,})"
_LOGIN = r"(://)(?:[^/\s:@\"'?#\\<>]*:[^/\s\"'?#\\<>]+|(?=[^/\s:@]*[0-9])[A-Za-z0-9_.~-]{16,})(?=@)"
_NAME = (
    r"(?:(--[A-Za-z][\w-]*+)\s|(?:(?<=<)|(?<=&lt;)|(?<=u003[cC]))([A-Za-z_][\w.:-]*+)(?:\s[^<>]{0,200})?"
    r"(?:>|&gt;|\\+u003[eE])\s{0,40}(?:<!\[CDATA\[)?|([A-Za-z_][A-Za-z0-9_.-]*+)(\\*[\"']?)[\])*`]{0,3}(?:\s{0,40}"
    r"(?::=|[=-]>|[:=]|%(?:25)*3D)\s{0,40}|[\s,]{1,3}\\*[\"']?value\\*[\"']?[\s:=]{1,3}|(?<=[\"']),\s{0,3}(?=b?\\*[\"'])))"
)
"""A name with a value: `--name ...` of a command line, `<name>...`, `name=...`, `"name": ...`, `name%3D...`,
`"name", "value": ...` and `("name", "...")`."""
_WORD = r"[A-Za-z0-9_.-]*+"
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")
_SMALL = str.maketrans(ascii_uppercase, ascii_lowercase)
_SCHEME = r"(?i)\\*[\"']?(?:basic|bearer|token|digest|apikey)\s+"
_VALUE = r"(?:[bBrRuU]{1,2}(?=\\*[\"']))?(\\*[\"']?)([^\s\"'\\,;&<>(){}\[\]|`]{4,4000}+)(?![(\[])"
"""The value of a name; calls and subscripts are code, not values."""
_CONTAINER = functools.reduce(lambda inner, _: rf"[{{\[](?:[^{{}}\[\]]|{inner})*+[}}\]]", range(5), "(?!)")
"""A list or mapping, nested up to five levels."""
_TEXTS = r"[\[(]\s{0,3}(?:[bru]?\\*[\"'][^\"'\\]*+\\*[\"']\s{0,3},?\s{0,3})++[\])]"
"""A list or tuple of texts."""
_TEXT_INSIDE = r"[:=\[]\s{0,3}\\*[\"']"

_NAME_SPOTS = (
    r"k(?:ey|(?<=tok)en|(?<=cook)ie)", r"secret", r"pa(?:ss[wpc]|t[\"'=:\\])", r"w(?:d(?<=pwd)|t(?<=jwt))",
    r"u(?<=au)th", r"cred", r"b(?=earer)", r"sig(?=(?:nature)?(?:=|%3d))",
)  # fmt: skip
"""Patterns in lower-case text that may be part of a secret's name."""


def _letters(letters: Iterable[str]) -> str:
    return f"[{''.join(sorted(set(letters)))}]"


_SHAPE_SPOTS = (
    *(
        rf"{end}(?:(?<={''.join(_letters(prefix[at] for prefix in prefixes) for at in (-3, -2))}{end})"
        r"(?=[A-Za-z0-9_-]{16})"
        rf"(?:{'|'.join(f'(?<={re.escape(prefix)})' for prefix in prefixes)}){more})"
        for end, more in (("-", "|----BEGIN"), ("_", ""), (r"\.", ""))
        if (prefixes := [prefix for prefix in _SHAPES if prefix.endswith(end[-1])])
    ),
    *("A(?:KIA|SIA|Iza)", "J(?<=eyJ)"),
)
"""Patterns of text that may be a key. Each starts with a literal character: such a search is ten times as fast as one
that starts with an alternative, and three times as fast as a search for each prefix."""
_BEFORE_SPOT = 16
"""Maximum distance from the start of a key to its match in `_SHAPE_SPOTS`."""


def redact(value: Any, name: str = "") -> Any:
    """Return a copy of JSON-like data without secrets."""
    if isinstance(value, str):
        named = is_secret_name(name) or (is_weak_name(name) and _looks_secret(value))
        if named and value and not _compile(_MARK).fullmatch(value):
            return REDACTED
        return redact_text(value)
    if isinstance(value, list | tuple):
        name = name_of_items(name, cast(list[Any], value))
        return [redact(inner, name) for inner in cast(list[Any], value)]
    if isinstance(value, dict) or isinstance(value, Mapping):  # the second takes ten times as long  # noqa: SIM101
        return _redact_mapping(cast(Mapping[Any, Any], value), name)
    if isinstance(value, int) and abs(value) > 999 and is_password_name(name):
        return REDACTED  # a password of digits, which YAML parses as a number
    return value


def redact_text(text: str) -> str:
    """Redact secrets in a text, found by their format, their name or the environment."""
    secrets = _environment_secrets()
    for hint in secrets:
        if hint in text:
            for secret in secrets[hint]:
                text = _compile_secret(secret).sub(REDACTED, text)
    lower = text.lower()
    names, shapes = _find_spots(text, lower)
    if names or shapes or "://" in lower:
        text = _substitute(text, lower, names, shapes)
    visible = strip_hidden(text)
    return text if visible is text or (redacted := redact_text(visible)) == visible else redacted


def is_literal_secret(text: str, name: str) -> bool:
    """Whether the whole text under a name is a secret, by its format or by its name."""
    if not text or _compile(_PLACEHOLDER).search(text):
        return False
    if is_secret_name(name) or is_weak_name(name):
        is_address = "://" in text
        secrets = find_secrets("", text) if is_address or text.isalnum() or is_secret_name(name) else ()
        if secrets or (_looks_secret(text) and not is_address) or (is_password_name(name) and len(text) > 3):
            return True
    return len(text.split()) <= 3 and redact_text(text) != text  # in a longer text, only the secret is redacted


def is_suspicious(text: str) -> bool:
    """Whether a text may contain a secret; a fast check with false positives."""
    lower = text.lower()
    if any((*_find_spots(text, lower), "://" in lower)) or any(hint in text for hint in _environment_secrets()):
        return True
    return strip_hidden(text) is not text


def without_secrets(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return recorded JSON without secrets; the same object if it contains none."""
    from json import dumps

    return redact(recorded) if is_suspicious(dumps(recorded)) else recorded


type _Finder = Callable[[str], Iterator[re.Match[str]]]


@functools.cache
def _compile_spots() -> list[list[tuple[Callable[[str], object], _Finder]]]:
    """Return `search` and `finditer` of the patterns of names (for lower-case text) and of key formats."""
    compiled = (map(re.compile, spots) for spots in (_NAME_SPOTS, _SHAPE_SPOTS))
    return [[(pattern.search, pattern.finditer) for pattern in patterns] for patterns in compiled]


def _find_spots(text: str, lower: str) -> tuple[list[_Finder], list[_Finder]]:
    """Return the finders of the names and key formats that occur in the text; most lines have none."""
    names, shapes = _compile_spots()
    return [find for search, find in names if search(lower)], [find for search, find in shapes if search(text)]


class RedactedStream:
    """An output stream that redacts secrets in what is written."""

    def __init__(self, stream: TextIO) -> None:
        self.unredacted = stream

    def write(self, text: str) -> int:
        self.unredacted.write(redact_text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unredacted, name)


def redact_output() -> tuple[TextIO, TextIO]:
    """Redact secrets in stdout and stderr of this process; return the previous streams."""
    before = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (
        stream if isinstance(stream, RedactedStream) else cast(TextIO, RedactedStream(stream)) for stream in before
    )
    return before


def hand_over(secret_text: str) -> None:
    """Print a newly created key for the user without redaction."""
    stream = getattr(sys.stdout, "unredacted", sys.stdout)
    stream.write(secret_text + "\n")
    stream.flush()


def hide(text: str, secret: str | None) -> str:
    """Replace a known secret in a text, because a server may quote a rejected key."""
    return text.replace(secret, REDACTED) if secret else text


def _redact_mapping(value: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    named = value.get("name")
    if isinstance(named, str) and "value" in value and is_secret_name(named):  # {name: API_KEY, value: ...}
        return {key: redact(inner, named if key == "value" else str(key)) for key, inner in value.items()}
    redacted: dict[Any, Any] = {}
    for key, inner in value.items():
        label = name_below(name, str(key))
        if key == "token" and "logprob" in value:  # a sampled token with its log-probability
            label = ""
        redacted[redact_text(key) if isinstance(key, str) else key] = redact(inner, label)
    return redacted


def _looks_secret(value: str) -> bool:
    """Whether a text may be a key: letters and digits without white space, but not a value of `_NO_SECRET`."""
    if len(value) < 6 or _compile(_NO_SECRET).fullmatch(value) or any(character.isspace() for character in value):
        return False
    return any(character.isdigit() for character in value) and any(character.isalpha() for character in value)


def _substitute(text: str, lower: str, names: list[_Finder], shapes: list[_Finder]) -> str:
    before = text
    if shapes:
        begin = max(0, min(next(find(text)).start() for find in shapes) - _BEFORE_SPOT)
        text = text[:begin] + _compile(_SHAPE).sub(REDACTED, text[begin:])
    for hint, pattern in (("://", _LOGIN), ("bearer", _BEARER), ("cookie", _COOKIE)):
        if hint in lower:
            text = _compile(pattern).sub(rf"\1{REDACTED}", text)
    return _redact_named(text, lower if text is before else text.lower(), names)


def _redact_named(text: str, lower: str, names: list[_Finder]) -> str:
    """Redact the values of secret names: `api_key=...`, `'auth': '...'`, `"credentials": {...}`."""
    if len(lower) != len(text):  # some characters become two in lower case
        lower = text.translate(_SMALL)
    parts: list[str] = []
    done = past = 0
    for start in sorted({spot.start() for find in names for spot in find(lower)}):
        if start < past:  # part of a name that is already handled
            continue
        while start > past and lower[start - 1] in _NAME_LETTERS:
            start -= 1
        escape = text[start - 1 : start]
        start += {"\\": {"u": 5, "x": 3}.get(text[start], text[start] in "nrtbf"), "%": 2}.get(escape, 0)
        match = _compile(_NAME).match(text, start)
        past = match.end() if match else _compile(_WORD).match(text, start).end()
        if match and (secret := _find_value(text, match[1] or match[2] or match[3], match)):
            parts += [text[done : secret[0]], secret[2]]
            done = past = secret[1]
    return "".join([*parts, text[done:]])


def _find_value(text: str, name: str, name_match: re.Match[str]) -> tuple[int, int, str] | None:
    """Return start, end and replacement of the secret value of a name; None if the value is code or no secret."""
    is_secret, at = is_secret_name(name), name_match.end()
    texts = _compile(_TEXTS).match(text, at) if is_secret_name(name_of_items(name, "xx")) else None
    container: re.Match[str] | None = texts or (_compile(_CONTAINER).match(text, at) if is_secret else None)
    if container is not None:
        # A container without quoted text is code or numbers.
        has_text = texts or _compile(_TEXT_INSIDE).search(container[0])
        return (at, container.end(), f"{name_match[4] or ''}{REDACTED}{name_match[4] or ''}") if has_text else None
    scheme = _compile(_SCHEME).match(text, at)
    value_match = _compile(_VALUE).match(text, scheme.end() if scheme else at)
    if value_match is None:
        return None
    quoted = bool(value_match[1] or scheme or name_match[2]) and not name_match[0].rstrip().endswith(",")
    start, value = value_match.start(2), value_match[2]
    if text[max(0, name_match.start() - 1)] in "?&;" or text[max(0, name_match.start() - 3)] == "%":  # a URL parameter
        value = value.partition("#")[0]
        may_be_secret = is_weak_name(name) or name.lower() in ("sig", "signature")
        hidden = is_secret or (may_be_secret and (len(value) >= 16 or _looks_secret(value)))
    elif is_secret:
        hidden = _looks_secret(value) or (quoted and _compile(_LITERAL).fullmatch(value) is not None)
    else:
        hidden = is_weak_name(name) and (quoted or (len(value) >= 12 and value.isalnum())) and _looks_secret(value)
    return (start, start + len(value), REDACTED) if hidden else None


_secrets_cache: tuple[Any, dict[str, list[str]]] | None = None


def _environment_secrets() -> dict[str, list[str]]:
    """Return the secrets in the environment, longest first, grouped by a piece that is never escaped."""
    global _secrets_cache
    raw: Any = getattr(os.environ, "_data", os.environ)  # a plain dict, because this runs for every line
    if _secrets_cache is None or _secrets_cache[0] != raw:
        pieces = {piece for name, value in os.environ.items() for piece in find_secrets(name, value)}
        _secrets_cache = (raw.copy(), {})
        for form in sorted({form for piece in pieces for form in (piece, *_encode(piece))}, key=len, reverse=True):
            hint = max(_compile(r"[A-Za-z0-9_-]*").findall(form), key=len)
            _secrets_cache[1].setdefault(hint, []).append(form)
    return _secrets_cache[1]


def _encode(value: str) -> set[str]:
    """Return the base64 forms of a value: inside other data, it has three possible alignments."""
    from binascii import b2a_base64  # importing `base64` takes longer than most commands run

    data = value.encode("utf-8", "surrogateescape")
    texts = [b2a_base64(b"\0" * offset + data, newline=False).decode() for offset in range(3)]
    # Only the characters that do not depend on adjacent bytes.
    return {text[(0, 2, 3)[offset] : (offset + len(data)) * 8 // 6] for offset, text in enumerate(texts)}


_ESCAPE = r"(?:\\+(?:[uUx][0-9A-Fa-f]{2,8}|[nrtbf]))+|(?:%[0-9A-Fa-f]{2,})+|&(?:amp;)*#?\w+;"
"""Escape sequences that encoders write for a character."""


@functools.lru_cache(maxsize=256)
def _compile_secret(secret: str) -> re.Pattern[str]:
    """Return a pattern for a secret that also matches its forms escaped for JSON, `repr`, URLs or HTML, repeatedly."""
    pattern = _compile(r"[^\w-]|[^\x00-\x7f]").sub(_may_be_escaped, secret)
    return re.compile(pattern if len(secret) >= SHORTEST_SECRET else rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])")


def _may_be_escaped(match: re.Match[str]) -> str:
    other = r"|\s+|\+" if match[0].isspace() else {"+": "|-", "/": "|_"}.get(match[0], "")
    return rf"(?:\\*{re.escape(match[0])}|{_ESCAPE}{other})"
