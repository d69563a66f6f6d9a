"""Which names promise a secret, and which values of environment variables are one."""

from __future__ import annotations

import functools
import itertools
import os
import re


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""The words of a name, in snake_case, kebab-case or camelCase."""
_SECRETS = _set(
    "secret secrets password passwords passwd pwd passphrase passphrases passcode credential credentials creds"
    " authorization bearer cookie cookies jwt pat apikey apikeys accesskey privatekey secretkey authtoken"
    " accesstoken"
)
"""Last words of the names of secrets."""
_OWNERS = _set(
    "api access private secret auth signing signature encryption ssh master account service session client admin"
    " deploy webhook storage subscription license hub bot openai anthropic claude gemini google gcp hf huggingface"
    " tinker evsys wandb github gitlab gh aws azure fireworks together groq mistral cohere deepseek openrouter"
    " replicate stripe twilio sendgrid slack xai nvidia perplexity tavily modal comet neptune supabase datadog sentry"
)
"""What stands before `key` or `tokens` in the name of a secret; `sort_key` and `max_tokens` are something else."""
_TEXTS = _set(
    "bos eos pad unk sep cls mask stop start end image think special next first last per new previous prev current"
    " target prefix suffix separator delimiter answer begin top best"
)
"""What stands before `token` where that is a piece of text."""
_LOOKUPS = _set("public primary foreign sort cache group row column dict index join partition hot")
"""What stands before `key` where that is looked up."""
_WEAK_WORDS = ("key", "auth", "tokens", "pass", "dsn", "webhook", "connstr")
"""Names that may hold anything; what stands there has to look like a secret itself."""


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name holds a secret, whatever it is."""
    *_, before, last = ("", "", *split_words(name))
    if last in ("key", "keys", "tokens"):
        return before in _OWNERS
    return (last == "token" and before not in _TEXTS) or last in _SECRETS


@functools.lru_cache(maxsize=4096)
def is_weak_name(name: str) -> bool:
    """Whether a name may be that of a secret and of much else, so that its value has to look like one."""
    *_, before, last = ("", "", *split_words(name))
    if (before, last) in (("webhook", "url"), ("connection", "string"), ("database", "url")):
        return True
    return last in _WEAK_WORDS and before not in _LOOKUPS and (last != "tokens" or not before)


# Secrets among the values of environment variables.

SHORTEST_SECRET = 8
"""Shorter values would also be found in harmless text."""
_ORDINARY = _set(
    "PATH HOME LANG LANGUAGE PWD OLDPWD SHELL TERM USER LOGNAME USERNAME HOSTNAME TZ EDITOR PAGER DISPLAY MAIL SHLVL"
    " PS1 PS2 LS_COLORS COLORTERM TERM_PROGRAM VIRTUAL_ENV MANPATH INFOPATH TMPDIR TEMP TMP SSH_CONNECTION SSH_CLIENT"
    " SSH_TTY PYTEST_CURRENT_TEST PYTEST_XDIST_TESTRUNUID GITHUB_SHA GITHUB_RUN_ID INVOCATION_ID JOURNAL_STREAM"
)
_ORDINARY_PREFIXES = ("LC_", "XDG_", "PYTHON", "CONDA_", "NVIDIA_", "CUDA_", "DBUS_", "GPG_KEY")
_SECRET_VARIABLE = re.compile(
    r"(?i)passw|passphrase|passcode|(?<![a-z])pass(?![a-z])|pwd$|secret|tokens?(?![a-z])|auth(?!or)|cred|jwt|cookie"
    r"|keys?(?![a-z])|webhook|dsn|connection_?str|(?<![a-z])pat$|mnemonic|phrase|recovery|(?<![a-z])pin(?![a-z])"
)
_PIECES = re.compile(r"[^\s\"',;{}()\[\]=&?@:/|<>]+")
_WORD = re.compile(r"[A-Za-z]*\d{0,3}|\d{0,4}[A-Za-z]{0,8}|[A-Za-z]{1,4}\d{1,4}[A-Za-z]{1,2}|\d+")
"""Letters with a short number behind, before or among them: `central1`, `256color`, `Xmx2048m`."""


_PASSWORD = re.compile(r"(?=.*[A-Za-z])(?=.*\d)(?=.*[@!#$%^&*])(?!.+@[\w-]+(\.[\w-]+)+$)[^\s/:,;=]+")
"""Letters, digits and a sign in one piece, and no mail address."""


def find_secrets(name: str, value: str) -> set[str]:
    """The secrets in an environment variable: its value, and the parts of a structured one that look like keys.

    A secret is told by its value, because no list of names is complete: it is no path, number, word or address without
    credentials. Under a name that promises a secret, words are secrets too.
    """
    value = value.strip()
    if len(value) < SHORTEST_SECRET or name in _ORDINARY or name.startswith(_ORDINARY_PREFIXES):
        return set()
    if value.startswith(("~/", "./", "../")) or (value[0] == "/" and _is_path(value)):
        return set()
    parts = {part for part in _PIECES.findall(value) if len(part) >= SHORTEST_SECRET and _is_random(part)}
    is_named = _SECRET_VARIABLE.search(name) is not None and not value.startswith(("http://", "https://"))
    if _PASSWORD.fullmatch(value) and not value.startswith(("$", "%", "-")):
        parts.add(value)
    has_login = re.search(r"://[^/\s]*:([^/\s@]+)@", value)
    if has_login and len(has_login[1]) >= SHORTEST_SECRET:
        parts.add(has_login[1])
    if not (parts or has_login or (is_named and not value.isdigit())):
        return set()
    return {value, *parts}


def _is_path(value: str) -> bool:
    """Whether a value is a path or a list of them; keys in base64 may begin with a slash, and have few."""
    return len(value) < 4096 and (value.count("/") > 2 or os.path.exists(value.partition(os.pathsep)[0]))


def _is_random(part: str) -> bool:
    """Whether a piece of text is no word, number or name made of them, as far as its characters show."""
    if any(_is_random_word(word) for word in re.split(r"[-_.+~]", part)):
        return True
    return len(re.findall(r"[!#$%^&*]", part)) > 0 and not part.startswith(("$", "%", "--"))


def _is_random_word(word: str) -> bool:
    changes = sum(one.islower() and other.isupper() for one, other in itertools.pairwise(word))
    if _WORD.fullmatch(word):
        return changes > 2 and len(word) < 5 * changes  # letters of a key; `CamelCaseNames` change less often
    return len(word) >= SHORTEST_SECRET


def split_words(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return [word.lower() for word in _PARTS.findall(name)]
