"""Values of environment variables are redacted for what they are, whatever they are called; ordinary ones stay."""

from __future__ import annotations

import base64
import contextlib
import html
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from pydantic import ValidationError

from evsys_sdk import ExperimentConfig
from evsys_sdk.cli.main import main
from evsys_sdk.config import load_yaml
from evsys_sdk.config.specs import CallbackSpec, TransformSpec
from evsys_sdk.errors import ConfigError
from evsys_sdk.redact import REDACTED, is_suspicious, redact, redact_text

from .planted import ORDINARY, noise

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
    "MNEMONIC": "legal winner thank year wave sausage worth useful",
    "GREETING": "correct horse battery staple",
    "MOTTO": "Never gonna give you up!",
    "BACKUP_TEXT": "purple Monkey 42 dishwasher",
    "DICE": "clay-husk-dime-flux-mood-zone",
    "UNDERSCORES": "velvet_otter_harbor_lamp",
    "COMMAS": "crimson, falcon, meadow, anchor",
    "HUMPS": "VelvetOtterHarborLamp",
    "APP_LETTERS": "qzxvkjwpmbtr",
    "APP_CAPITALS": "QZXVKJWPMBTR",
    "MY_PW": "tulipsss",
    "RECOVERY_CODES": "abcd-efgh-ijkl-mnop",
    "ROOT_PIN": "anothersecretword",
    "SIGN_AND_DIGIT": "P@ssw0rd",
    "DIGIT_AND_SIGN": "summer20!!",
    "LDAP": "cn=admin,dc=example:S3cr3tLdap99",
    "MAIL_SERVER": f"smtp://me%40example.org:{noise(10)}%21@mail.example.org:587",
    "ODBC": f"Driver={{x}};Server=s;Uid=a;Pwd={noise(13)};",
    "OTP": "otpauth://totp/x?secret=JBSWY3DPEHPK3PXP",
    "HTPASSWD": "admin:$apr1$abcd1234$1234567890abcdef",
    "WIREGUARD": "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=",
    "SHORT": "NqVwYS81",
    "GROUPS": "8b8V-w2zb-JYAx-yL1a",
    "SIGNS": "a!b@c#d$e%",
    "TABBED": "9iMfw0\t5Qaygu",
    "CAPITALS": "OrUbmkLCNPloWR",
    "KEY_OF_LINES": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{noise(64)}\n{noise(64)}\n-----END OPENSSH PRIVATE KEY-----",
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


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: f"failed with {value}!",
    "JSON": lambda value: json.dumps({"note": value}),
    "JSON in JSON": lambda value: json.dumps(json.dumps({"note": value})),
    "JSON in JSON in repr": lambda value: repr([json.dumps(json.dumps(json.dumps(value)))]),
    "JSON for a page": lambda value: json.dumps(value).replace("&", r"\u0026").replace("/", r"\/"),
    "repr": lambda value: repr([value]),
    "repr of bytes": lambda value: repr([value.encode()]),
    "percent": lambda value: f"https://example.com/?x={quote(value, safe='')}",
    "percent twice": lambda value: f"https://example.com/?x={quote(quote(value, safe=''), safe='')}",
    "HTML": lambda value: f"<b>{html.escape(value)}</b>",
    "wrapped lines": lambda value: f"> {value.replace(' ', chr(10) + '  ')}",
    "colours": lambda value: f"\x1b[1m{value[:5]}\x1b[0m\x1b[31m{value[5:]}\x1b[0m",
    "colours in JSON": lambda value: json.dumps({"note": f"\x1b[1m{value[:5]}\x1b[0m{value[5:]}"}),
    "invisible characters": lambda value: f"{value[:4]}\u200b{value[4:]}",
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
    assert is_suspicious(FORMS[form](value))


@pytest.mark.usefixtures("planted")
def test_the_secret_part_of_a_structured_value_is_found_alone() -> None:
    assert redact({"note": "dXNlcjpwYXNzd29yZDEyMw=="}) == {"note": f"{REDACTED}=="}


def test_a_name_of_several_words_is_no_passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPERIMENT_NAME", "grpo-without-kl-penalty")
    monkeypatch.setenv("SLURM_JOB_NAME", "learn_to_route_support_tickets")
    text = "ran grpo-without-kl-penalty as learn_to_route_support_tickets"
    assert redact_text(text) == text


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


def test_a_short_password_of_an_address_is_found_as_a_whole_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE", "amqp://worker:tok7x@mq.example/1")
    monkeypatch.setenv("CACHE", "redis://cache:tok@redis.example/1")
    text = "login cache:tok@redis.example and worker with password tok7x (not stok7xs, tok): d29ya2VyOnRvazd4"
    redacted = "login [redacted]@redis.example and worker with password [redacted] (not stok7xs, tok): [redacted]"
    assert redact_text(text).removesuffix("4") == redacted


TEXTS = {
    "<api_key>{}</api_key>": "XML",
    '<api-key scope="all">\n  {}\n</api-key>': "XML with an attribute",
    r"\u003cpassword\u003e{}\u003c/password\u003e": "XML in JSON for a page",
    "api_\x1b[31mkey\x1b[0m={}": "colours in the name",
    "\x1b[1mapi_key\x1b[0m\x1b[2m:\x1b[0m {}": "colours after the name",
    r"api_\u001b[31mkey\u001b[0m: {}": "escaped colours",
    "pass\u200bword: {}": "an invisible character in the name",
    "api_key            : {}": "aligned columns",
    "api_key -> {}": "an arrow",
    "{{:api_key => '{}'}}": "Ruby",
    "password := {}": "Go",
    "**api_key**: {}": "Markdown",
    'os.environ["API_KEY"] = "{}"': "an assignment in code",
    "password=b'{}'": "bytes",
    "headers=[(b'x-api-key', b'{}')]": "a pair of bytes",
    '("authorization", "{}")': "a pair",
    '{{"name": "API_KEY", "value": "{}"}}': "a name and a value",
    '<add key="x" name="api_key" value="{}"/>': "XML attributes",
    "auth=('someone', '{}')": "a login",
    "auth: ['someone', '{}']": "a login in YAML",
}


@pytest.mark.parametrize("text", TEXTS, ids=TEXTS.values())
def test_a_name_is_found_however_it_is_written(text: str) -> None:
    secret = noise(12)
    redacted = redact_text(f"sent {text.format(secret)} to the server")
    assert secret not in redacted
    assert REDACTED in redacted
    assert redacted.endswith(" to the server")


LITERAL_PARAMS = (
    "tokens: [abc123def9, uvw456xyz7]", "tokens: [aXbQzRtYpLmNkWvC]", "tokens: {first: abc123def9}",
    "auth: [user, p4ss]", "auth: [a, b, 1, c]", "auth: [[user, correcthorse]]", "password: correcthorse",
    '"api_\\e[31mkey\\e[0m": abc123def9', '"pass\\u200bword": abc123def9', 'body: "<api_key>abc123def9</api_key>"',
    'headers: {Authorization: "Bearer abc123def456"}', 'headers: ["x-api-key: abc123def456"]',
    'command: "tool --api-key abc123def456"', "url: https://h.example/v1?api_key=abc123def456",
    "url: postgres://user:tok@host.example/db", "credentials: {user: abc123def9}", "api_keys: [correct-horse9]",
)  # fmt: skip
PLAIN_PARAMS = (
    "tokens: [yes, no]", "tokens: [<think>, </think>]", "tokens: 4096", "stop_token: </s>", "auth: basic",
    "key: level_2", "key: metadata.difficulty", "api_key: EMPTY", "api_key_env: MY_KEY", "auth: [basic]",
    "webhook: http://localhost:8080/hook", 'template: "Say <answer>{a}</answer>."', "dsn: sqlite:///runs.db",
    "password: ${DB_PASSWORD}", "auth: ['${SOME_USER}', '${SOME_PASSWORD}']", "keys: [a1, b2, c3]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("params", "refused"), [*((param, True) for param in LITERAL_PARAMS), *((param, False) for param in PLAIN_PARAMS)]
)
def test_params_hold_no_literal_credential(params: str, refused: bool) -> None:
    with pytest.raises(ValidationError, match="environment variable") if refused else contextlib.nullcontext():
        CallbackSpec(kind="own", params=yaml.safe_load(params))


def test_a_config_of_a_program_holds_no_literal_credential_either() -> None:
    callback = {"kind": "own", "params": {"nested": [{"api_key": "abc123def456"}]}}
    run = {"name": "a", "data": {"path": "rows.jsonl"}, "model": {"name": "tiny"}, "algorithm": {"kind": "sft"}}
    with pytest.raises(ValidationError, match="environment variable") as caught:
        ExperimentConfig.model_validate({"name": "x", "callbacks": [callback], "run": run})
    assert "abc123def456" not in str(caught.value)


def test_a_variable_is_expanded_for_the_class_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CallbackSpec(kind="own", params={"headers": ["Bearer ${OWN_KEY}"], "port": 3})
    with pytest.raises(ConfigError, match="the environment variable 'OWN_KEY' is not set"):
        _ = spec.arguments
    monkeypatch.setenv("OWN_KEY", "9fK2mQ7xWz41")
    assert spec.arguments == {"headers": ["Bearer 9fK2mQ7xWz41"], "port": 3}
    assert spec.model_dump(mode="json")["params"] == {"headers": ["Bearer ${OWN_KEY}"], "port": 3}
    assert redact({"api_key": "${OWN_KEY}"}) == {"api_key": "${OWN_KEY}"}
    template = TransformSpec(kind="jsonl_to_chat", params={"user_template": "It costs ${OWN_KEY}"})
    assert template.arguments == template.params


KEYED = """
import os
from pathlib import Path
from evsys_sdk import Callback, register_callback
@register_callback("keyed")
class Keyed(Callback):
    def __init__(self, key):
        self.key = key
    def on_step(self, step, metrics):
        Path("seen.txt").write_text(str(self.key == os.environ["OWN_KEY"]))
"""


def test_what_a_variable_holds_is_in_no_record_and_no_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    run = {
        "name": "a",
        "data": {"rows": [chat], "source_kind": "in_memory"},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 1}},
        "backend": {"kind": "mock"},
    }
    callbacks = [{"kind": "keyed", "params": {"key": "${OWN_KEY}"}}]
    config = {"name": "keyed", "output_dir": "outputs", "callbacks": callbacks, "run": run}
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "keyed.py").write_text(KEYED, encoding="utf-8")
    hashes: set[str] = set()
    for value in ("9fK2mQ7xWz41", "7xWz419fK2mQ"):
        monkeypatch.setenv("OWN_KEY", value)
        assert main(["plan", "c.json", "--json", "--import", "keyed.py"]) == 0
        hashes.add(json.loads(capsys.readouterr().out)["hash"])
    assert len(hashes) == 1
    assert main(["run", "c.json", "--quiet", "--import", "keyed.py"]) == 0, capsys.readouterr().err
    assert (tmp_path / "seen.txt").read_text(encoding="utf-8") == "True"
    record = [path for path in (tmp_path / "outputs").rglob("*") if path.is_file()]
    assert not [path for path in record if b"7xWz419fK2mQ" in path.read_bytes()]
    assert "${OWN_KEY}" in (tmp_path / "outputs/keyed/config.json").read_text(encoding="utf-8")


def run_example(config: Path, examples: Path, folder: Path, environment: dict[str, str]) -> dict[str, bytes]:
    """The files of the record of an example, by name."""
    folder.mkdir()
    command = [sys.executable, "-m", "evsys_sdk", "run", str(config), "--quiet", "--steps", "8"]
    shutil.copytree(examples / "examples", folder / "examples", ignore=shutil.ignore_patterns("record", "outputs"))
    (folder / ".evsys").mkdir()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = [path for path in (folder / "outputs").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["01_quickstart", "06_rl", "09_preference"])
def test_ordinary_variables_change_no_byte_of_a_record(name: str, tmp_path: Path) -> None:
    root, config = Path(__file__).parents[2], Path("examples", name, "config.yaml")
    plain = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    ordinary = {f"ORDINARY_{number}": value for number, value in enumerate(ORDINARY)}
    assert len(ordinary) >= 100
    first = run_example(config, root, tmp_path / "first", plain)
    again = run_example(config, root, tmp_path / "again", plain)
    other = run_example(config, root, tmp_path / "other", {**plain, **ordinary})
    # Times and ids differ each time; what is the same twice must be the same with those variables.
    same = {file for file, content in first.items() if again.get(file) == content}
    assert {Path(file).name for file in same} >= {"config.json", "metrics.jsonl"}
    assert {file for file in same if other.get(file) != first[file]} == set()
    assert not [file for file, content in other.items() if b"[redacted]" in content]
