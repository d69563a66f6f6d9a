"""Secrets are found by their name, their shape, their place and the environment; ordinary text stays as it is."""

from __future__ import annotations

import base64
import json
import logging
import random
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsys_sdk.log import configure_logger, get_logger
from evsys_sdk.redact import REDACTED, is_secret_name, redact, redact_text

from . import planted


@pytest.mark.parametrize("shape", planted.SHAPES)
@pytest.mark.parametrize("around", ["{}", "it says '{}'.", "x={}&y", '{{"a": "{}"}}', "Error(\\n{})", "%3D{}", "({})"])
def test_a_key_is_known_by_its_shape_wherever_it_stands(shape: str, around: str) -> None:
    secret = planted.SHAPES[shape]()
    redacted = redact_text(around.format(secret))
    assert secret not in redacted
    assert REDACTED in redacted
    for piece in secret.split("\n")[1:-1]:
        assert piece not in redacted


def test_a_private_key_ends_where_it_ends() -> None:
    key = planted.SHAPES["pem"]()
    assert redact_text(f"read {key} and went on. Fine.") == f"read {REDACTED} and went on. Fine."
    assert redact_text(json.dumps([key, "after"])) == json.dumps([REDACTED, "after"])
    cut_off = key[: key.index("-----END")]
    assert redact_text(f"{cut_off}... (120 more)") == f"{REDACTED}... (120 more)"


@pytest.mark.parametrize("name", planted.NAMES)
def test_a_value_is_known_by_its_name(name: str) -> None:
    assert redact({"params": {name: "a8f-k39x21"}}) == {"params": {name: REDACTED}}
    assert redact([{"name": "API_KEY", "value": "plain words"}]) == [{"name": "API_KEY", "value": REDACTED}]


HARMLESS = (
    "max_tokens", "tokenizer", "keys", "monkey", "keyboard", "author", "authors", "tokens_trained", "n_tokens",
    "sort_key", "primary_key", "public_key", "breakdown_keys", "secretary", "pattern", "path", "patience",
    "api_key_env", "token_ids", "pad_token", "eos_token", "stop_token", "cookbook", "api_keyboard", "password_file",
)  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_only_sound_like_one_mean_nothing(name: str) -> None:
    assert not is_secret_name(name)
    assert redact({name: "a8f-k39x21"}) == {name: "a8f-k39x21"}


@pytest.mark.parametrize("value", ["difficulty", "item_0012", "the answer", "0" * 64, str(uuid.UUID(int=5)), "abc"])
def test_a_key_that_something_is_looked_up_by_stays(value: str) -> None:
    assert redact({"key": value, "auth": "basic"}) == {"key": value, "auth": "basic"}


def test_pieces_of_text_and_their_probabilities_stay() -> None:
    marks = {"assistant_token": "<|assistant|>", "audio_token": 151_655, "password_length": 4096}
    row = {"top": [{"token": " a7b", "logprob": -0.5}], "tokens": [1, 2], "tokens_sampled": 5} | marks
    assert redact(row) == row
    limits = {"tokens": {"limit": 90_000, "needed": 31_589, "ends_at": "sft"}, "api_keys": {"used": 2}}
    assert redact(limits) == limits
    assert redact_text(json.dumps([row, limits])) == json.dumps([row, limits])


@pytest.mark.parametrize("address", planted.ADDRESSES)
def test_addresses_lose_their_secrets_and_nothing_else(address: str) -> None:
    secret = planted.ADDRESSES[address]
    redacted = redact_text(f"cannot reach {address} at the moment")
    assert secret not in redacted
    assert redacted.startswith(f"cannot reach {address.partition('://')[0]}://")
    assert redacted.endswith(" at the moment")


@pytest.mark.parametrize("line", planted.HEADERS)
def test_headers_and_arguments_lose_their_secrets(line: str) -> None:
    redacted = redact_text(line)
    assert planted.HEADERS[line] not in redacted
    assert REDACTED in redacted


def _dumps_twice(data: object) -> str:
    return json.dumps(json.dumps(data))


@pytest.mark.parametrize("name", ["credentials", "api_keys", "cookies"])
@pytest.mark.parametrize("show", [str, json.dumps, _dumps_twice])
def test_everything_below_a_secret_name_is_hidden_in_printed_data(name: str, show: Callable[[object], str]) -> None:
    redacted = redact_text(
        f"got {show({'a': 1, name: {'user': 'alpha', 'more': [{'b': 'beta'}, 'gamma']}, 'z': 'omega'})}"
    )
    assert not any(word in redacted for word in ("alpha", "beta", "gamma"))
    assert "omega" in redacted
    hidden = show({"a": 1, name: REDACTED, "z": "omega"})
    assert redacted == f"got {hidden}"


@pytest.mark.parametrize("name", planted.VARIABLES)
def test_a_value_of_the_environment_is_found_in_every_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = planted.ENVIRONMENT[name]
    monkeypatch.setenv(name, value)
    for quoted, left in planted.encoded(value).items():
        assert left not in redact_text(f"refused: {quoted}!"), quoted
        assert left not in json.dumps(redact({"error": [quoted]}))


def test_the_environment_may_change_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "words firstvalue1 secondvalue2"
    assert redact_text(text) == text
    monkeypatch.setenv("A_SECRET", "firstvalue1")
    assert "firstvalue1" not in redact_text(text)
    monkeypatch.setenv("A_SECRET", "secondvalue2")
    assert redact_text(text) == f"words firstvalue1 {REDACTED}"
    monkeypatch.setenv("HARMLESS", "x")
    monkeypatch.delenv("HARMLESS")
    monkeypatch.setenv("B_SECRET", "firstvalue1")
    assert redact_text(text) == f"words {REDACTED} {REDACTED}"
    monkeypatch.delenv("A_SECRET")
    monkeypatch.delenv("B_SECRET")
    assert redact_text(text) == text


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner)
    )
)
def test_redacting_twice_changes_nothing_more(value: object) -> None:
    once = redact(value)
    assert redact(once) == once


def test_text_stays_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", 'quo"ted\\value')
    texts = [*planted.by_shape(), *planted.ADDRESSES, *planted.HEADERS, 'quo"ted\\value']
    redacted = redact_text(json.dumps({f"k{number}": text for number, text in enumerate(texts)}, indent=2))
    assert set(json.loads(redacted)) == {f"k{number}" for number in range(len(texts))}


def test_ordinary_lines_stay_as_they_are() -> None:
    """Code, prose, logs, hashes, UUIDs, images and references: fewer than one line in a thousand may be touched."""
    lines = [*_code_and_prose(), *_made_up()]
    assert len(lines) > 10_000
    changed = [line for line in lines if redact_text(line) != line]
    assert len(changed) < len(lines) / 1000, changed[:20]


def _code_and_prose() -> list[str]:
    root = Path(__file__).parents[2]
    files = [*root.glob("src/**/*.py"), *root.glob("docs/**/*.md"), *Path(json.__file__).parents[1].glob("*.py")]
    own = {root / "src" / "evsys_sdk" / "redact.py"}
    return [line for file in files if file not in own for line in file.read_text("utf-8", "replace").splitlines()]


def _made_up() -> list[str]:
    chance = random.Random(1)
    texts: list[str] = []
    for number in range(500):
        raw = chance.randbytes(60)
        texts += [
            f"commit {raw[:20].hex()} by someone <someone@example.com>",
            f"sha256:{raw[:32].hex()}  dataset/train-{number:05d}.parquet",
            f"run {uuid.UUID(bytes=raw[:16])} took {chance.random():.3f} s at step {number}",
            f"data:image/png;base64,{base64.b64encode(raw).decode()}",
            f"tinker://{uuid.UUID(bytes=raw[:16])}:train:0/sampler_weights/step{number:06d}",
            f'{{"step": {number}, "loss": {chance.random()}, "tokens": {number * 7}, "time/tokens_per_s": 51.5}}',
            f"12:00:{number % 60:02d} INFO    tokens={number} max_tokens=256 key=train/loss lr=1e-4",
            f"GET https://huggingface.co/org/model-{number}/resolve/main/tokenizer.json?download=true 200",
            f"Which key opens door {number}? The answer is <answer>{chance.randint(0, 999)}</answer>.",
            f"Installing collected packages: tokenizers-0.2{number % 9}, secretstorage-3.{number % 9}",
        ]
    return texts


def test_log_lines_hold_no_secret(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "wordsofvalue")
    logger = configure_logger("INFO")
    try:
        raise ValueError("refused wordsofvalue at https://me:opensesame@host")
    except ValueError:
        get_logger("test").exception("it failed with %s", "sk-7abcdefghijklmnopqrstuv")
    finally:
        configure_logger("WARNING")
        logging.getLogger("evsys_sdk").handlers.clear()
        logger.propagate = True
    err = capsys.readouterr().err
    assert "it failed with" in err
    assert "Traceback" in err
    for secret in ("wordsofvalue", "opensesame", "sk-7abcdefghijklmnopqrstuv"):
        assert secret not in err


def test_what_anyone_prints_during_a_command_holds_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evsys_sdk.redact import redact_output

    monkeypatch.setenv("SOME_TOKEN", "wordsofvalue")
    before = redact_output()
    try:
        print("out wordsofvalue")
        print("err wordsofvalue", file=sys.stderr)
        sys.stdout.writelines(["and wordsofvalue\n"])
    finally:
        sys.stdout, sys.stderr = before
    out, err = capsys.readouterr()
    assert (out, err) == (f"out {REDACTED}\nand {REDACTED}\n", f"err {REDACTED}\n")


@pytest.mark.parametrize(
    "text", ["https://x.y/?password=hunter2secret&x=1", "Cookie: session=abcdef123456", "token: abcdef123456"]
)
def test_redacting_again_changes_nothing(text: str) -> None:
    """A stored line is redacted again when it is hashed."""
    once = redact_text(text)
    assert once != text
    assert redact_text(once) == once
