"""Recognition of secrets by their names, and of secrets among environment variables."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence


def split_set(words: str) -> frozenset[str]:
    """Return the set of words of a text."""
    return frozenset(words.split())


_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_HIDDEN = re.compile(
    rf"(?:\x1b|\\+(?:u00|x)1[bB])(?:\[[0-9;:?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))|{_INVISIBLE.pattern}"
)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""The words of a name, in snake_case, kebab-case or camelCase."""
_SECRETS = split_set(
    "secret secrets password passwords passwd pwd passphrase passphrases passcode credential credentials creds"
    " authorization bearer cookie cookies jwt pat apikey apikeys accesskey privatekey secretkey authtoken"
    " accesstoken"
)
"""Last words of secret names."""
_OWNERS = split_set(
    "api access private secret auth signing signature encryption ssh master account service session client admin"
    " deploy webhook storage subscription license hub bot openai anthropic claude gemini google gcp hf huggingface"
    " tinker evsys wandb github gitlab gh aws azure fireworks together groq mistral cohere deepseek openrouter"
    " replicate stripe twilio sendgrid slack xai nvidia perplexity tavily modal comet neptune supabase datadog sentry"
)
"""Words before `key` or `tokens` in secret names, unlike in `sort_key` and `max_tokens`."""
_TEXTS = split_set(
    "bos eos pad unk sep cls mask stop start end image think special next first last per new previous prev current"
    " target prefix suffix separator delimiter answer begin top best"
)
"""Words before `token` in names of text tokens, which are not secrets."""
_LOOKUPS = split_set("public primary foreign sort cache group row column dict index join partition hot")
"""Words before `key` in names of lookup keys, which are not secrets."""
_WEAK_WORDS = ("key", "auth", "tokens", "pass", "dsn", "webhook", "connstr")
"""Last words of ambiguous names, whose values are secrets only if they look like one."""


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether any value of a field or variable with this name is a secret."""
    *_, before, last = ("", "", *split_words(name))
    if last in ("key", "keys", "tokens"):
        return before in _OWNERS
    return (last == "token" and before not in _TEXTS) or last in _SECRETS


def strip_hidden(text: str) -> str:
    """Return `text` without colour codes, links and invisible characters; the same object if it has none."""
    if "\x1b" in text or ("\\" in text and "1b[" in text.lower()) or (not text.isascii() and _INVISIBLE.search(text)):
        return _HIDDEN.sub("", text)
    return text


def is_password_name(name: str) -> bool:
    """Whether the name is that of a password, so that words and numbers are secrets too."""
    return is_secret_name(name) and re.search(r"(?i)passw|passphrase|passcode|pwd$", name) is not None


def name_below(name: str, key: str) -> str:
    """Return the name to check a nested value with: everything below a secret name is a secret."""
    return name if is_secret_name(name) or split_words(name) == ["tokens"] else key


def name_of_items(name: str, items: Sequence[object]) -> str:
    """Return the name to check list items with: a list under `auth` holds a user and a password."""
    return "password" if len(items) > 1 and split_words(name)[-1:] == ["auth"] else name


@functools.lru_cache(maxsize=4096)
def is_weak_name(name: str) -> bool:
    """Whether a name is ambiguous, so that its value is a secret only if it looks like one."""
    *_, before, last = ("", "", *split_words(name))
    if (before, last) in (("webhook", "url"), ("connection", "string"), ("database", "url")):
        return True
    return last in _WEAK_WORDS and before not in _LOOKUPS and (last != "tokens" or not before)


# Secrets in environment variables.

SHORTEST_SECRET = 8
"""Shorter values would match harmless text."""
_ORDINARY = split_set(
    "PATH HOME LANG LANGUAGE PWD OLDPWD SHELL TERM USER LOGNAME USERNAME HOSTNAME TZ EDITOR PAGER DISPLAY MAIL SHLVL"
    " PS1 PS2 LS_COLORS COLORTERM TERM_PROGRAM VIRTUAL_ENV MANPATH INFOPATH TMPDIR TEMP TMP SSH_CONNECTION SSH_CLIENT"
    " SSH_TTY PYTEST_CURRENT_TEST PYTEST_XDIST_TESTRUNUID GITHUB_SHA GITHUB_RUN_ID INVOCATION_ID JOURNAL_STREAM MODEL"
    " MODEL_NAME BASE_MODEL EVSYS_PROJECT_ID"
)
_ORDINARY_PREFIXES = ("LC_", "XDG_", "PYTHON", "CONDA_", "NVIDIA_", "CUDA_", "DBUS_", "GPG_KEY")
_SECRET_VARIABLE = re.compile(
    r"passw|passphrase|passcode|(?<![a-z])pass(?![a-z])|(?<![a-z])pw(?![a-z])|pwd$|secret|tokens?(?![a-z])|auth(?!or)|cred|jwt|cookie"
    r"|keys?(?![a-z])|webhook|dsn|connection_?str|(?<![a-z])pat$|mnemonic|phrase|recovery|(?<![a-z])pin(?![a-z])"
)
_PIECES = re.compile(r"[^\s\"',;{}()\[\]=&?@:/|<>]+")
_LOGIN = re.compile(r"://([^/\s]*:([^/\s@]+))@")
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})")
_SHORT_PASSWORD = re.compile(r"(?=.*\d)(?=.*[A-Za-z])\S{4,}")
"""A short password in a URL, which is redacted only as a whole word."""
_PHRASE = re.compile(
    r"[A-Za-z]+(?:\s+[A-Za-z0-9][\w'-]*){2,}[.!?]?|[A-Za-z]{3,}(?:[-_, ]+[A-Za-z]{3,}){3,}|(?:[A-Z][a-z]{2,}){4,}"
)
"""A passphrase: three or more words, or four joined words. Fewer words would match ordinary text. Dots do not join
words, because host names use them."""
_BETWEEN_WORDS = re.compile(r"[-_.+~/:=,\s]+|@(?=[\w-]+\.|\d{1,2}$)")
_WORD = re.compile(
    r"(?![A-Za-z]*(?i:[b-df-hj-np-tv-xz]{6}))(?:"  # no word has this many consecutive consonants
    r"(?:[A-Z]?[a-z]+|[A-Z]{2,4})(?:A?[A-Z][a-z]{2,})*(?:[A-Z]{2,4})?\d{0,3}|[A-Z]+\d{0,3}"
    r"|\d*[A-Za-z]{0,2}|\d{1,3}[a-z]{3,5}|\d+[A-Za-z]\d+[A-Za-z]?|[A-Za-z]{1,3}\d{1,4}[A-Za-z]{0,2})"
)
"""`word`, `SomeName`, `OpenBLAS`, `BUILD12`, short texts, and quantities: `135M`, `256color`, `8x7B`, `Xmx2048m`."""


def find_secrets(name: str, value: str) -> set[str]:
    """Return the secrets in an environment variable: its value, and parts of a structured value that look like keys.

    A secret is recognized by its value, because no list of names is complete: not a path, not a URL without
    credentials, and not made of words and numbers. If the name indicates a secret, words are secrets too.
    """
    value = value.strip()
    if len(value) < SHORTEST_SECRET or name in _ORDINARY or name.startswith(_ORDINARY_PREFIXES):
        return set()
    if value.startswith(("~/", "./", "../")) or (value[0] == "/" and _is_path(value)):
        return set()
    secrets = {piece for piece in (value, *_PIECES.findall(value)) if not _is_ordinary(piece)}
    logins = {part for login in _LOGIN.findall(value) for part in (*login, _PERCENT.sub(_decode, login[1]))}
    logins = {part for part in logins if len(part) >= SHORTEST_SECRET or _SHORT_PASSWORD.fullmatch(part)}
    secrets |= logins
    is_named = (
        _SECRET_VARIABLE.search(name.lower()) and not value.startswith(("http://", "https://")) and not value.isdigit()
    )
    if secrets or is_named or (_PHRASE.fullmatch(value) and not name.endswith("NAME")):
        secrets.add(value)
    return {piece for piece in secrets if len(piece) >= SHORTEST_SECRET or piece in logins}


def _decode(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def _is_path(value: str) -> bool:
    """Whether a value is a path or a list of paths, unlike a base64 key, which may start with a slash but has few."""
    return len(value) < 4096 and (value.count("/") > 2 or os.path.exists(value.partition(os.pathsep)[0]))


def _is_ordinary(text: str) -> bool:
    """Whether a text consists of words and numbers, judged by its characters."""
    return all(_WORD.fullmatch(word) for word in _BETWEEN_WORDS.split(text))


@functools.lru_cache(maxsize=4096)
def split_words(name: str) -> list[str]:
    """Return the words of a name in lower case."""
    return [word.lower() for word in _PARTS.findall(_HIDDEN.sub("", name))]
