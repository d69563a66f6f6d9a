"""Opens a connection to a Tinker server: address, key, headers, models and tokenizer.

No global state: two arms may use two servers with two keys concurrently.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from ...errors import BackendError, EvsysAuthError, show, suggest
from ...log import get_logger
from .config import TinkerConfig

if TYPE_CHECKING:
    from .sampling import SamplerContext, TinkerSamplingClient

HOSTED: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"
"""Default address of the SDK."""
NO_KEY: Final = "tml-none"
"""Placeholder key for servers without one: the SDK requires a key that starts with `tml-`."""
_PREFIXES: Final = ("tml-", "eyJ")
_TRIED: Final = (0, 36)
"""The tested version of the tinker package."""
_TELEMETRY: Final = "TINKER_TELEMETRY"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The server's facts about the requested model."""

    context_length: int | None = None
    extras: Mapping[str, Any] | None = None
    """Additional facts of an evsys server: tokenizer, vocabulary, suggested learning rate."""


class Session:
    """One session on one server; opened by `open`, which blocks."""

    teardown_grace_s: ClassVar[float] = 1.0
    """Time for a failed session to report its end."""

    def __init__(self, config: TinkerConfig) -> None:
        self.config = config
        self.base_url = resolve_url(config)
        self._service: Any = None
        self._models: list[Any] = []

    @property
    def where(self) -> str:
        """The server, for error messages."""
        return self.base_url

    @property
    def service(self) -> Any:
        """The SDK's ServiceClient."""
        if self._service is None:
            raise BackendError(f"{self.where}: the session is not open. Prepare the backend again.")
        return self._service

    def open(self) -> None:
        """Connect and create the session."""
        key, headers = credentials(self.config, self.base_url)
        sdk = import_module("tinker")
        _check_version(sdk)
        refuse_dead_loop("tinker.lib.internal_client_holder", "the tinker SDK")
        reach(self.base_url)
        self._service = service = sdk.ServiceClient(
            user_metadata=dict(self.config.user_metadata) or None,
            project_id=self.config.project_id,
            base_url=self.base_url,
            api_key=key,
            default_headers_overrides=headers,
        )
        with telemetry(self.config.telemetry):
            _ = service.holder  # creates the session
            self._models = service.get_server_capabilities().supported_models

    def model_names(self) -> list[str]:
        """The models that the server lists."""
        return sorted(str(entry.model_name) for entry in self._models if entry.model_name)

    def model(self, name: str, *, to_train: bool = True) -> ServedModel:
        """The server's facts about a model; refuses an unknown one."""
        listed = self._models
        served = next((entry for entry in listed if entry.model_name == name), None)
        names = self.model_names()
        if served is None and names and self.config.check_model:
            hint = suggest(name, names) or f"It has {', '.join(names[:20])}."
            raise BackendError(f"{self.where} has no model {show(name)}. {hint} Change model.name.")
        if to_train and served is not None and served.trainable is False:
            raise BackendError(f"{self.where}: the model {show(name)} cannot be trained there. Change model.name.")
        return ServedModel(getattr(served, "max_context_length", None), self.extras(name))

    def extras(self, name: str) -> Mapping[str, Any] | None:
        """An evsys server's facts beyond the protocol; None for other servers."""
        return fetch_extras(self.base_url, self.headers(), name)

    def sampler(
        self, context: SamplerContext, ref: str, *, model: str | None = None, version: int = 0
    ) -> TinkerSamplingClient:
        """A sampler of a checkpoint, else of the base model; blocks."""
        from .sampling import TinkerSamplingClient
        from .state import check_reference

        quirks = context.quirks
        source = {"model_path": check_reference(ref)} if ref else {"base_model": model}
        sampler = self.service.create_sampling_client(**source, retry_config=quirks.retry_config())
        return TinkerSamplingClient(quirks.sampler(sampler), ref, context, version)

    def headers(self) -> dict[str, str]:
        """Authentication headers of requests outside the SDK."""
        key, headers = credentials(self.config, self.base_url)
        return {"X-API-Key": key, **headers}

    def close(self, status: str, timeout_s: float = 10.0) -> None:
        """End the session; waits a limited time for the server."""
        service, self._service = self._service, None
        if service is None:
            return
        holder = getattr(service, "_session_holder", None)  # the public property would open a session
        try:
            service.close(status).result(timeout=timeout_s)
        except Exception as error:
            if holder is not None:
                holder.close()  # stops its heartbeats
            get_logger(__name__).debug("%s: the session could not be ended: %s", self.where, error)


def resolve_url(config: TinkerConfig) -> str:
    """The address of a config."""
    return (config.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")


def credentials(config: TinkerConfig, base_url: str) -> tuple[str, dict[str, str]]:
    """The key for the SDK, and the headers of every request.

    A key without `tml-`, which the SDK refuses, is sent as a bearer token next to a placeholder.
    """
    headers = {name: _from_environment(variable, f"header {name}") for name, variable in config.header_env.items()}
    key = os.environ.get(config.api_key_env, "").strip()
    if not key and base_url == HOSTED:
        raise EvsysAuthError(
            f"there is no key for {base_url}: the environment variable {config.api_key_env} is not set. Set it, or "
            "set backend.params.base_url to a server of your own."
        )
    if not key or key.startswith(_PREFIXES):
        return key or NO_KEY, headers
    return NO_KEY, {"Authorization": f"Bearer {key}", **headers}


def _from_environment(variable: str, purpose: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise EvsysAuthError(f"the environment variable {variable} for the {purpose} is not set. Set it.")
    return value


def reach(base_url: str) -> None:
    """Fail immediately if nothing listens there: the SDK would retry for five minutes."""
    import httpx

    last: Exception | None = None
    # A newly started server may need a moment.
    for pause in (0.0, 0.5, 2.0):
        if pause:
            threading.Event().wait(pause)
        try:
            httpx.get(f"{base_url}/api/v1/healthz", timeout=15.0, verify=_uses_certificates(base_url))
            return
        except httpx.ConnectError as error:
            last = error
        except httpx.HTTPError:
            return  # something listens; the SDK handles its responses
    raise BackendError(f"nothing answers at {base_url} ({last}). Start the server, or correct backend.params.base_url.")


def fetch_extras(base_url: str, headers: Mapping[str, str], name: str) -> Mapping[str, Any] | None:
    """An evsys server's facts about a model; None for other servers."""
    import httpx

    try:
        url, query = f"{base_url}/api/v1/evsys/model", {"base_model": name}
        certified = _uses_certificates(base_url)
        answer = httpx.get(url, params=query, headers=dict(headers), timeout=30.0, verify=certified)
        extras: Any = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return cast("Mapping[str, Any]", extras) if isinstance(extras, dict) else None


def _uses_certificates(base_url: str) -> bool:
    """Whether TLS certificates are needed; loading them takes longer than a local request."""
    return base_url.startswith("https://")


_telemetry_lock: Final = threading.Lock()
_telemetry_off: list[str | None] = []
"""Previous values of the variable, one per session being opened without telemetry."""


@contextmanager
def telemetry(enabled: bool) -> Generator[None]:
    """Enable or disable telemetry of clients created in this block.

    The SDK reads an environment variable when a client is created; its previous value is restored afterwards.
    """
    if enabled or (_TELEMETRY in os.environ and not _telemetry_off):
        yield
        return
    with _telemetry_lock:
        # Nested blocks see our value, so the first one's saved value counts.
        _telemetry_off.append(os.environ.get(_TELEMETRY) if not _telemetry_off else _telemetry_off[0])
        os.environ[_TELEMETRY] = "0"
    try:
        yield
    finally:
        with _telemetry_lock:
            before = _telemetry_off.pop()
            if not _telemetry_off:
                os.environ.pop(_TELEMETRY, None)
                if before is not None:
                    os.environ[_TELEMETRY] = before


def _check_version(sdk: Any) -> None:
    """Refuse an older tinker package, whose protocol is outdated, and warn about an untested newer one."""
    installed = tuple(int(part) for part in str(sdk.__version__).split(".")[:2])
    if installed < _TRIED:
        needed = ".".join(str(part) for part in _TRIED)
        raise BackendError(
            f"the package tinker is {sdk.__version__}; {needed} or later is needed. pip install 'evsys-sdk[tinker]'"
        )
    if installed > _TRIED:
        get_logger(__name__).warning("the package tinker is %s, with which nothing was tried yet", sdk.__version__)


def refuse_dead_loop(holder: str, whose: str) -> None:
    """Refuse a client after a fork: its thread does not survive, so calls would never return."""
    singleton: Any = getattr(import_module(holder), "_internal_client_holder_thread_singleton", None)
    thread: threading.Thread | None = getattr(singleton, "_thread", None)
    if thread is not None and not thread.is_alive():
        raise BackendError(
            f"this process was forked from one that had used {whose}, whose connections do not survive a fork. Start "
            "processes with the method 'spawn'."
        )
