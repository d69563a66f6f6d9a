"""Secrets of every shape, made up systematically, and the places they are planted in."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable
from urllib.parse import quote

_RANDOM = random.Random(20)
_ALNUM = string.ascii_letters + string.digits


def noise(length: int, letters: str = _ALNUM) -> str:
    """Letters and digits; a digit among the first ones, as keys have it."""
    return "7" + "".join(_RANDOM.choice(letters) for _ in range(length - 1))


SHAPES: dict[str, Callable[[], str]] = {
    "openai": lambda: f"sk-{noise(48)}",
    "openai_project": lambda: f"sk-proj-{noise(40)}_{noise(30)}",
    "anthropic": lambda: f"sk-ant-api03-{noise(60)}-{noise(10)}AA",
    "openrouter": lambda: f"sk-or-v1-{noise(64, string.hexdigits.lower())}",
    "huggingface": lambda: f"hf_{noise(34)}",
    "github": lambda: f"ghp_{noise(36)}",
    "github_server": lambda: f"ghs_{noise(36)}",
    "github_fine": lambda: f"github_pat_{noise(22)}_{noise(59)}",
    "aws": lambda: f"AKIA{noise(16, string.ascii_uppercase + string.digits)}",
    "google": lambda: f"AIza{noise(35, _ALNUM + '_-')}",
    "google_oauth": lambda: f"ya29.{noise(60)}",
    "slack": lambda: f"xoxb-{noise(12, string.digits)}-{noise(24)}",
    "gitlab": lambda: f"glpat-{noise(20)}",
    "tinker": lambda: f"tml-{noise(40)}",
    "fireworks": lambda: f"fw_{noise(22)}",
    "groq": lambda: f"gsk_{noise(52)}",
    "replicate": lambda: f"r8_{noise(37)}",
    "npm": lambda: f"npm_{noise(36)}",
    "stripe": lambda: f"sk_live_{noise(24)}",
    "sendgrid": lambda: f"SG.{noise(22)}.{noise(43)}",
    "jwt": lambda: f"eyJhbGciOiJIUzI1NiJ9.eyJ{noise(40)}.{noise(43)}",
    "pem": lambda: (
        f"-----BEGIN RSA PRIVATE KEY-----\n{noise(64)}\n{noise(64)}\n{noise(30)}==\n-----END RSA PRIVATE KEY-----"
    ),
}
"""What can be told from the text alone."""

NAMES = (
    "api_key", "apiKey", "API-KEY", "api_keys", "openaiApiKey", "OPENAI_KEY", "x-api-key", "access_key",
    "aws_secret_access_key", "secret", "client_secret", "clientSecret", "password", "dbPassword", "passwd",
    "passphrase", "credential", "credentials", "cookie", "session_cookie", "token", "hf_token", "githubToken",
    "access_tokens", "tokens", "auth", "auth_token", "key", "pat", "gh_pat", "Authorization", "private_key", "jwt",
)  # fmt: skip
"""Names under which even a text without any shape is a secret."""

VARIABLES = (
    "MY_OPENAI_KEY", "GH_PAT", "SOME_API_KEY", "DB_PASSWORD", "HF_TOKEN", "SERVICE_SECRET", "APP_CREDENTIALS",
    "SLACK_BOT_TOKEN", "SESSION_COOKIE", "SIGNING_KEY", "REDIS_AUTH", "deployKey", "WANDB_API_KEY", "ACCESS_TOKENS",
)  # fmt: skip


def by_shape() -> list[str]:
    return [make() for make in SHAPES.values()]


def named() -> dict[str, str]:
    """Name -> a value that only its name gives away."""
    return {name: f"{noise(9)}-{noise(6)}" for name in NAMES}


def _environment() -> dict[str, str]:
    """Variables with values that have no shape; some need escaping wherever they are quoted."""
    odd = ['p"w\\d&x{}', "päss wört {}", "a/b+c={}", "two\nlines{}"]
    values = [odd[at % len(odd)].format(noise(8)) if at % 3 == 2 else noise(14) for at in range(len(VARIABLES))]
    return dict(zip(VARIABLES, values, strict=True))


def _addresses() -> dict[str, str]:
    """An address that holds a secret -> the secret."""
    secrets = [noise(12) for _ in range(12)]
    patterns = (
        "https://user:{}@host.example/path", "postgresql://admin:{}@10.0.0.1:5432/db", "redis://:{}@cache:6379/0",
        "https://host.example/v1?api_key={}", "https://host.example/?a=1&access_token={}&b=2",
        "https://host.example/x?key={}", "https://host.example/x?sig={}&se=1", "amqp://me:{}@mq/%2f",
        "https://host.example/x?password={}", "https://host.example/cb?client_secret={}#top",
        "mongodb+srv://u:p@{}@cluster/db", "https://oauth2:{}@git.example/r.git",
    )  # fmt: skip
    return {pattern.format(secret): secret for pattern, secret in zip(patterns, secrets, strict=True)}


def _headers() -> dict[str, str]:
    """Text of a request as an exception quotes it -> the secret in it."""
    secrets = [noise(24) for _ in range(8)]
    patterns = (
        "Authorization: Bearer {}", "{{'authorization': 'Basic {}'}}", "x-api-key: {}", "Cookie: session={}; path=/",
        '{{\\"api_key\\": \\"{}\\"}}', "--api-key {} --verbose", "Bearer {}", "token={}",
    )  # fmt: skip
    return {pattern.format(secret): secret for pattern, secret in zip(patterns, secrets, strict=True)}


ENVIRONMENT, ADDRESSES, HEADERS = _environment(), _addresses(), _headers()


def encoded(value: str) -> dict[str, str]:
    """A value as errors quote it -> what must not be left of it; the last ones are in the middle of other text."""
    plain = base64.b64encode(value.encode()).decode()
    basic = base64.b64encode(f"user:{value}".encode()).decode()
    return {
        value: value,
        repr(ValueError(f"refused {value}")): value,
        quote(value, safe=""): quote(value, safe=""),
        plain: plain.rstrip("=")[:-1],
        basic: basic.rstrip("=")[8:-2],
    }


ORDINARY = (
    """
true|false|1|0|mock|local|production|development|staging|en_US.UTF-8|C.UTF-8|de_DE.UTF-8|UTC|Europe/Berlin|xterm-256color
/usr/bin:/bin:/usr/local/bin|/opt/someone/things|~/.cache/things|./outputs|../data/rows.jsonl|/var/lib/app/state.db|vim|less|bash
12345678|3.14159265|2026-11-16|2026-11-16 20:22:01|0,1,2,3,4,5,6,7|1e-05|100000000|localhost:8080|127.0.0.1:8000
http://localhost:8000/v1|https://example.com/docs/index.html|http://proxy.example.com:3128|https://example.com
tiny-router|Qwen3-0.6B-Instruct|meta-llama/Llama-3.2-1B|smollm2-135m|x86_64-linux-gnu|aarch64|linux-gnu|python3.12
us-central1-a|europe-west4|eu-north-1|build-and-test|continuous-integration|pull_request|refs/heads/main|feature/own-code
MyProjectName|AnotherCamelName|redis.default.svc.cluster.local|mysite.conf.settings.production|SOME_CONSTANT_NAME|snake_case_name|kebab-case-name|dotted.module.name|package.module:Class
--max-old-space-size=4096|-Xmx2048m|expandable_segments|backend:native|cuda12|sm_90a|node17.cluster.local|gpu-node-3
yes please|evaluation tasks|--color=auto -R -F|gcc -O2 -g|1 2 3 4 5 6 7|application/json|text/html|utf-8|ISO-8859-1
test/unseen/pass@1|someone@example.com|/tmp/someplace|max_split_size_mb:128|rows.jsonl|config.yaml|main.py|README.md|Makefile|pyproject.toml|answers.csv|model.safetensors|tokenizer.json|.venv|origin
dumb|screen.xterm-256color|en_GB.UTF-8|America/New_York|info|debug|INFO|always|never|on|off|4|16|0.5|8080|float32|bfloat16
interactive|noninteractive|disabled|enabled|automatic|everything|nothing|websocket|training|benchmark|quickstart|warning
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
"""Values of ordinary environment variables."""
