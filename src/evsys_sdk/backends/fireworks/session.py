"""A serverless training session at Fireworks, opened with the provider's client.

The session belongs to the gateway; no trainer is provisioned. It counts against the account's limit until `close`
deletes it. Never run against the hosted service; see docs/tinker.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...errors import EvsysAuthError, MissingExtraError
from ...log import get_logger
from ..tinker.session import ServedModel, Session, fetch_extras, reach, refuse_dead_loop, telemetry
from .config import FIREWORKS, SERVERLESS, FireworksConfig

if TYPE_CHECKING:
    from ..tinker.sampling import SamplerContext, TinkerSamplingClient

_NEEDED: Final = "fireworks.training.sdk"
_HOLDER: Final = "fireworks.training.sdk._core.lib.internal_client_holder"


def sdk() -> Any:
    """Fireworks' client; names the extra if it is missing."""
    try:
        package = import_module(_NEEDED)
        _ = package.FiretitanServiceClient  # lazily loaded; raises if a dependency is missing
    except ImportError:
        raise MissingExtraError("the backend 'fireworks'", "fireworks") from None
    return package


def fireworks_key(config: FireworksConfig) -> str:
    """The key from the environment."""
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        raise EvsysAuthError(
            f"there is no key for Fireworks: the environment variable {config.api_key_env} is not set. Set it."
        )
    if key.startswith("tml-"):
        raise EvsysAuthError(
            f"the key in {config.api_key_env} begins with tml-, so it is one for Tinker. Set it to a key of Fireworks, "
            "or use backend.kind 'tinker'."
        )
    return key


class Blocking:
    """The future of a blocking client call; its thread never keeps the process alive."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        threading.Thread(target=self._run, args=(work,), name="evsys-fireworks-call", daemon=True).start()

    def future(self) -> Future[Any]:
        return self._future

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            result, error = work(), None
        except BaseException as caught:
            result, error = None, caught
        if not self._future.set_running_or_notify_cancel():
            return  # given up meanwhile
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)


class FireworksSession(Session):
    """One serverless session; opened by `open`, which blocks."""

    teardown_grace_s: ClassVar[float] = 5.0  # one that is not deleted continues counting against the account
    config: FireworksConfig

    def __init__(self, config: FireworksConfig) -> None:
        super().__init__(config)
        self.base_url = (config.base_url or FIREWORKS).rstrip("/")
        self._samplers: list[Any] = []

    @property
    def gateway(self) -> str:
        """Where training and sampling are asked for."""
        return f"{self.base_url}{SERVERLESS}"

    def open(self) -> None:
        """Connect and create the session."""
        key, client = fireworks_key(self.config), sdk()
        refuse_dead_loop(_HOLDER, "Fireworks' client")
        reach(self.base_url)
        with telemetry(self.config.telemetry):  # the same variable as the tinker package has
            self._service = client.FiretitanServiceClient(
                base_url=self.gateway, api_key=key, user_metadata=dict(self.config.user_metadata) or None
            )

    def model_names(self) -> list[str]:
        """Empty: a serverless gateway does not list its models."""
        return []

    def model(self, name: str, *, to_train: bool = True) -> ServedModel:
        """The known facts about a model before it is created."""
        return ServedModel(None, self.extras(name))

    def extras(self, name: str) -> dict[str, Any] | None:
        """An evsys server's facts about a model; the provider itself is not queried."""
        if self.config.tokenizer != "served":
            return None
        extras = fetch_extras(self.gateway, self.headers(), name)
        return None if extras is None else dict(extras)

    def sampler(
        self, context: SamplerContext, ref: str, *, model: str | None = None, version: int = 0
    ) -> TinkerSamplingClient:
        """A sampler of a checkpoint, else of the base model; blocks."""
        from .sampling import check_path

        return self.sampler_at(context, check_path(ref) if ref else None, ref, version, model)

    def sampler_at(
        self, context: SamplerContext, path: str | None, ref: str, version: int, model: str | None = None
    ) -> TinkerSamplingClient:
        """A sampler of the service's `path`; `ref` is empty if it cannot be reopened."""
        from .sampling import FireworksSamplingClient

        source = {"model_path": path} if path else {"base_model": model}
        sampler = self.service.create_sampling_client(**source, tokenizer=context.tokenizer)
        return FireworksSamplingClient(self, sampler, ref, context, version)

    def headers(self) -> dict[str, str]:
        """Authentication headers of requests outside the client."""
        return {"X-API-Key": fireworks_key(self.config)}

    def run[T](self, work: Coroutine[Any, Any, T]) -> Any:
        """Run a coroutine on the client's thread; returns its future."""
        return self.service.holder.run_coroutine_threadsafe(work)

    def keep(self, sampler: Any) -> Any:
        """Store a sampler of the client, whose connections close with the session."""
        self._samplers.append(sampler)
        return sampler

    def close(self, status: str, timeout_s: float = 10.0) -> None:
        """Delete the session so that it no longer counts; waits a limited time."""
        service, self._service = self._service, None
        if service is None:
            return
        samplers, self._samplers = self._samplers, []
        deleted = self.config.delete_session and self._done("deleted", service.delete_training_session, timeout_s)
        for sampler in samplers:
            service.holder.get_loop().call_soon_threadsafe(sampler.close)
        self._done("closed", service.close, timeout_s)
        if self.config.delete_session and not deleted:
            get_logger(__name__).warning(
                "%s: the training session could not be deleted. It counts against the account until Fireworks notices "
                "that no one uses it.",
                self.where,
            )

    def _done(self, what: str, work: Callable[[], Any], timeout_s: float) -> bool:
        """Whether it succeeded in time; it continues in the background otherwise."""
        errors: list[Exception] = []

        def attempt() -> None:
            try:
                work()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=attempt, name=f"evsys-fireworks-{what}", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if errors:
            get_logger(__name__).debug("%s: the session could not be %s: %s", self.where, what, errors[0])
        return not errors and not thread.is_alive()
