"""How a connection to a Tinker server is opened: address, key, headers, models and tokenizer.

Nothing is kept in the process: two arms may use two servers with two keys at once.
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
"""Where the SDK connects to when no one says otherwise."""
NO_KEY: Final = "tml-none"
"""Stands in for a key on servers that want none: the SDK insists on one that begins with `tml-`."""
_PREFIXES: Final = ("tml-", "eyJ")
_TRIED: Final = (0, 36)
"""The version of the tinker package that this was written and tested with."""
_TELEMETRY: Final = "TINKER_TELEMETRY"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says about the model it was asked for."""

    context_length: int | None = None
    extras: Mapping[str, Any] | None = None
    """What an evsys server adds: tokenizer, vocabulary, suggested learning rate."""


class Session:
    """One session on one server; opened by `open`, which blocks."""

    teardown_grace_s: ClassVar[float] = 1.0
    """How long a session that failed waits to say so."""

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
        """What the server says about a model; refuses one that it does not have."""
        listed = self._models
        found = next((entry for entry in listed if entry.model_name == name), None)
        names = self.model_names()
        if found is None and names and self.config.check_model:
            hint = suggest(name, names) or f"It has {', '.join(names[:20])}."
            raise BackendError(f"{self.where} has no model {show(name)}. {hint} Change model.name.")
        if to_train and found is not None and found.trainable is False:
            raise BackendError(f"{self.where}: the model {show(name)} cannot be trained there. Change model.name.")
        return ServedModel(getattr(found, "max_context_length", None), self.extras(name))

    def extras(self, name: str) -> Mapping[str, Any] | None:
        """What an evsys server says beyond the protocol; None from all others."""
        return fetch_extras(self.base_url, self.headers(), name)

    def sampler(
        self, context: SamplerContext, ref: str, *, model: str | None = None, version: int = 0
    ) -> TinkerSamplingClient:
        """A sampler of a checkpoint, or of a base model where there is none; blocks."""
        from .sampling import TinkerSamplingClient
        from .state import check_reference

        quirks = context.quirks
        source = {"model_path": check_reference(ref)} if ref else {"base_model": model}
        sampler = self.service.create_sampling_client(**source, retry_config=quirks.retry_config())
        return TinkerSamplingClient(quirks.sampler(sampler), ref, context, version)

    def headers(self) -> dict[str, str]:
        """What authenticates a request that does not go through the SDK."""
        key, headers = credentials(self.config, self.base_url)
        return {"X-API-Key": key, **headers}

    def close(self, status: str, timeout_s: float = 10.0) -> None:
        """End the session; a server that does not answer is not waited for."""
        service, self._service = self._service, None
        if service is None:
            return
        holder = getattr(service, "_session_holder", None)  # its public name would open a session where there is none
        try:
            service.close(status).result(timeout=timeout_s)
        except Exception as error:
            if holder is not None:
                holder.close()  # or it would continue sending heartbeat, and complain that no one hears them
            get_logger(__name__).debug("%s: the session could not be ended: %s", self.where, error)


def resolve_url(config: TinkerConfig) -> str:
    """The address a config stands for."""
    return (config.base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")


def credentials(config: TinkerConfig, base_url: str) -> tuple[str, dict[str, str]]:
    """The key for the SDK, and the headers that go with every request.

    A key that the SDK would not take (one without `tml-`) travels as a bearer token, next to a stand-in.
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
    """Fail now if nothing listens there: the SDK would try for five minutes."""
    import httpx

    last: Exception | None = None
    # A server that has just been started may need a moment.
    for pause in (0.0, 0.5, 2.0):
        if pause:
            threading.Event().wait(pause)
        try:
            httpx.get(f"{base_url}/api/v1/healthz", timeout=15.0, verify=_uses_certificates(base_url))
            return
        except httpx.ConnectError as error:
            last = error
        except httpx.HTTPError:
            return  # something is there; what it says is for the SDK to judge
    raise BackendError(f"nothing answers at {base_url} ({last}). Start the server, or correct backend.params.base_url.")


def fetch_extras(base_url: str, headers: Mapping[str, str], name: str) -> Mapping[str, Any] | None:
    """Ask an evsys server about a model; None from servers that are none."""
    import httpx

    try:
        url, asked = f"{base_url}/api/v1/evsys/model", {"base_model": name}
        certified = _uses_certificates(base_url)
        answer = httpx.get(url, params=asked, headers=dict(headers), timeout=30.0, verify=certified)
        found: Any = answer.json() if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else None


def _uses_certificates(base_url: str) -> bool:
    """Whether certificates are needed at all; loading them takes longer than asking a server on this machine."""
    return base_url.startswith("https://")


_telemetry_lock: Final = threading.Lock()
_telemetry_off: list[str | None] = []
"""What the variable was before, once for each session that is being opened without telemetry."""


@contextmanager
def telemetry(wanted: bool) -> Generator[None]:
    """Let clients that are made in this block report to the server, or not.

    The SDK knows only an environment variable, which it reads when a client is made; it is put back afterwards, and
    what the user set stays.
    """
    if wanted or (_TELEMETRY in os.environ and not _telemetry_off):
        yield
        return
    with _telemetry_lock:
        # The later ones find our own value there, and go by what the first one found.
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
    """The protocol changes with the package: an older one cannot talk to servers of today, a newer one is untried."""
    found = tuple(int(part) for part in str(sdk.__version__).split(".")[:2])
    if found < _TRIED:
        wanted = ".".join(str(part) for part in _TRIED)
        raise BackendError(
            f"the package tinker is {sdk.__version__}; {wanted} or later is needed. pip install 'evsys-sdk[tinker]'"
        )
    if found > _TRIED:
        get_logger(__name__).warning("the package tinker is %s, with which nothing was tried yet", sdk.__version__)


def refuse_dead_loop(holder: str, whose: str) -> None:
    """A client's own thread does not survive a fork, and whatever is asked of it afterwards waits permanently."""
    singleton: Any = getattr(import_module(holder), "_internal_client_holder_thread_singleton", None)
    thread: threading.Thread | None = getattr(singleton, "_thread", None)
    if thread is not None and not thread.is_alive():
        raise BackendError(
            f"this process was forked from one that had used {whose}, whose connections do not survive a fork. Start "
            "processes with the method 'spawn'."
        )
