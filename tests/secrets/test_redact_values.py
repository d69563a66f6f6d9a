"""Secrets stay out of records, and what only looks like one stays in."""

from __future__ import annotations

import pytest

from evsys_sdk.redact import REDACTED, redact, redact_text


@pytest.mark.parametrize(
    "name", ["api_key", "OPENAI_API_KEY", "apiKey", "token", "hf_token", "password", "client_secret", "Authorization"]
)
def test_values_with_a_secret_name_are_replaced_at_any_depth(name: str) -> None:
    assert redact({"params": [{name: "abc"}]}) == {"params": [{name: REDACTED}]}


def test_everything_below_a_secret_name_is_replaced() -> None:
    assert redact({"credentials": {"user": "me", "pass": ["x"]}}) == {
        "credentials": {"user": REDACTED, "pass": [REDACTED]}
    }


@pytest.mark.parametrize("name", ["max_tokens", "eos_token", "tokenizer", "key", "monkey", "secretary", "pad_token"])
def test_harmless_names_are_left_alone(name: str) -> None:
    assert redact({name: "abc"}) == {name: "abc"}


def test_a_key_of_the_environment_is_found_wherever_it_was_copied_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cr3t-value")
    assert redact({"url": "http://host/?k=s3cr3t-value"}) == {"url": f"http://host/?k={REDACTED}"}


def test_passwords_in_urls_are_replaced() -> None:
    assert (
        redact_text("see https://me:hunter2@host/x and https://host/y")
        == f"see https://{REDACTED}@host/x and https://host/y"
    )


def test_numbers_and_empty_values_stay() -> None:
    config = {"api_key": None, "token": "", "password": 3, "lr": 0.1}
    assert redact(config) == config
