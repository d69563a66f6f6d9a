"""Values of environment variables are redacted for what they are, whatever they are called; ordinary ones stay."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from evsys_sdk.config import load_yaml
from evsys_sdk.errors import ConfigError
from evsys_sdk.redact import REDACTED, redact, redact_text

from .planted import noise

ORDINARY = (
    """
true|false|1|0|mock|local|production|development|staging|en_US.UTF-8|C.UTF-8|de_DE.UTF-8|UTC|Europe/Berlin|xterm-256color
/usr/bin:/bin:/usr/local/bin|/opt/someone/things|~/.cache/things|./outputs|../data/rows.jsonl|/var/lib/app/state.db|vim|less|bash
12345678|3.14159265|2026-11-16|2026-11-16 20:22:01|0,1,2,3,4,5,6,7|1e-05|100000000|localhost:8080|127.0.0.1:8000
http://localhost:8000/v1|https://example.com/docs/index.html|http://proxy.example.com:3128|https://example.com
tiny-router|Qwen3-0.6B-Instruct|meta-llama/Llama-3.2-1B|smollm2-135m|x86_64-linux-gnu|aarch64|linux-gnu|python3.12
us-central1-a|europe-west4|eu-north-1|build-and-test|continuous-integration|pull_request|refs/heads/main|feature/own-code
MyProjectName|ThisIsACamelCaseName|SOME_CONSTANT_NAME|snake_case_name|kebab-case-name|dotted.module.name|package.module:Class
--max-old-space-size=4096|-Xmx2048m|expandable_segments|backend:native|cuda12|sm_90a|node17.cluster.local|gpu-node-3
the quick brown fox|yes please|evaluation tasks|a plain sentence of words.|application/json|text/html|utf-8|ISO-8859-1
rows.jsonl|config.yaml|main.py|README.md|Makefile|pyproject.toml|answers.csv|model.safetensors|tokenizer.json|.venv|origin
dumb|screen.xterm-256color|en_GB.UTF-8|America/New_York|info|debug|INFO|always|never|on|off|4|16|0.5|8080|float32|bfloat16
interactive|noninteractive|disabled|enabled|automatic|everything|nothing|websocket|training|benchmark|quickstart|warning
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

SECRET = {
    "PGPASSWORD": "correcthorsebattery",
    "SMTP_PASS": "hunter2hunter2",
    "MYSQL_PWD": "letmeinplease",
    "DOCKER_AUTH_CONFIG": '{"auths": {"r.example.com": {"auth": "dXNlcjpwYXNzd29yZDEyMw=="}}}',
    "SLACK_HOOK": f"https://hooks.example.com/services/T{noise(9)}/B{noise(9)}/{noise(24)}",
    "DATABASE_URL": f"postgres://someone:{noise(12)}@db.example.com/things",
    "SQL_SERVER": f"Server=db;User=sa;Password={noise(14)};",
    "SENTRY_DSN": f"https://{noise(32)}@o1.example.com/2",
    "OUR_OWN": f"evk_ab12cd34_{noise(40)}",
    "NPM_CONFIG__AUTH": "wordsonlyhere",
    "PLAIN": noise(20),
    "HEXADECIMAL": noise(32, "0123456789abcdef"),
    "LETTERS": "aXbQzRtYpLmNkWvC",
    "SYMBOLS": "Tr0ub4dor&3zebra",
    "WITH_DASHES": f"{noise(8)}-{noise(8)}-{noise(8)}",
    "BASE64": base64.b64encode(bytes(range(60, 90))).decode(),
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRET.items():
        monkeypatch.setenv(name, value)


def test_ordinary_values_change_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(ORDINARY) >= 100
    for number, value in enumerate(ORDINARY):
        monkeypatch.setenv(f"VARIABLE_{number}", value)
    for value in ORDINARY:
        text = f"the value {value} in a sentence"
        assert redact_text(text) == text


FORMS = {
    "as it is": lambda value: f"failed with {value}!",
    "JSON": lambda value: json.dumps({"note": value}),
    "repr": lambda value: repr([value]),
    "percent": lambda value: f"https://example.com/?x={quote(value, safe='')}",
    "base64": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
}


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SECRET)
def test_a_secret_value_is_found_in_every_form(name: str, form: str) -> None:
    value = SECRET[name]
    left = redact_text(FORMS[form](value))
    assert REDACTED in left
    assert FORMS[form](value).strip('"[]') not in left
    assert value not in left


@pytest.mark.usefixtures("planted")
def test_the_secret_part_of_a_structured_value_is_found_alone() -> None:
    assert redact({"note": "dXNlcjpwYXNzd29yZDEyMw=="}) == {"note": f"{REDACTED}=="}


def test_a_variable_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "ordinary-words")
    monkeypatch.setenv("ANOTHER", "more-words-here")
    assert redact_text("ordinary-words") == "ordinary-words"
    monkeypatch.setenv("SOMETHING", "9fK2mQ7xWz41")
    assert redact_text("got 9fK2mQ7xWz41") == f"got {REDACTED}"


CREDENTIALS = {
    "pass": "hunter2hunter2",
    "dsn": "https://9d1f2e3a4b5c@o1.example.com/2",
    "webhook_url": "https://hooks.example.com/services/T01/B02/x9YzAbCdEf12",
    "connection_string": "Server=db;Password=Zx81Spectrum99;",
    "api_key": "abc123def456",
    "password": "s3cret99x",
    "anything": "sk-proj-9fK2mQ7xWz41abcdEFGH",
    "url": "postgres://someone:s3cretpw@db/things",
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_literal_credential_is_refused_and_not_repeated(tmp_path: Path, name: str) -> None:
    config = f"""
name: refused
run:
  name: a
  data: {{path: rows.jsonl}}
  model: {{name: tiny}}
  algorithm: {{kind: sft}}
  backend: {{kind: mock}}
callbacks:
  - {{kind: own, params: {{{name}: "{CREDENTIALS[name]}"}}}}
"""
    (tmp_path / "c.yaml").write_text(config, encoding="utf-8")
    with pytest.raises(ConfigError, match="environment variable") as caught:
        load_yaml(tmp_path / "c.yaml")
    assert CREDENTIALS[name] not in str(caught.value)
    (tmp_path / "c.yaml").write_text(config.replace(CREDENTIALS[name], "${SOME_VARIABLE}"), encoding="utf-8")
    assert load_yaml(tmp_path / "c.yaml").name == "refused"
