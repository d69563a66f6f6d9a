"""Names of secrets: which fields and variables hold one, whatever their value."""

from __future__ import annotations

import functools
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
_WEAK_WORDS = ("key", "auth", "tokens")
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
    return last in _WEAK_WORDS and before not in _LOOKUPS and (last != "tokens" or not before)


@functools.lru_cache(maxsize=4096)
def is_secret_variable(name: str) -> bool:
    """In the environment names are terser: whatever ends in KEY or AUTH is a secret, too."""
    *_, before, last = ("", "", *split_words(name))
    terse = last in ("key", "keys", "auth", "tokens") and before not in _LOOKUPS
    return name != "PWD" and (terse or is_secret_name(name))  # the folder one is in


def split_words(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return [word.lower() for word in _PARTS.findall(name)]
