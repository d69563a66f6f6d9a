"""Registries of extensions: names in YAML -> classes, one registry per kind.

A registry has three sources, searched in this order:
1. classes that were registered in this process with a `@register_*` decorator;
2. the built-ins, a table of import paths (`builtins.py`) imported on first use;
3. entry points of installed packages, group `evsys_sdk.<plural>`, loaded on the first miss or listing.

    @register_transform("dedupe")
    class Dedupe: ...

    get_transform("dedupe")
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .builtins import BUILTINS, Builtin
from .errors import DuplicateNameError, MissingExtraError, UnknownNameError, closest
from .lazy import find_entry_points
from .user_code import default_limit_s, user_code

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import FrameType

type Extension = Any
"""A registered class (or, for verifiers, a function); its protocol depends on the kind."""


class Entry(NamedTuple):
    """One line of `evsys list`: the description of an extension."""

    kind: str
    name: str
    source: str
    """`built-in`, `registered`, or the name of the package of its entry point."""
    summary: str = ""
    problem: str = ""
    """Why it cannot be used here, with the remedy; empty if it can."""

    @property
    def available(self) -> bool:
        return not self.problem


class Registry:
    """All extensions of one kind, by name."""

    def __init__(self, kind: str, plural: str, builtins: Mapping[str, Builtin]) -> None:
        self.kind = kind
        self.plural = plural
        self.group = f"evsys_sdk.{plural}"
        self._builtins = builtins
        self._registered: dict[str, Extension] = {}
        self._packages: dict[str, str] = {}
        self._later: set[str] = set()
        """Names that were registered after the import of their module, so that importing it elsewhere does not help."""
        self._broken: dict[str, Entry] = {}
        self._entry_points_loaded = False
        self._loading = threading.local()
        # Not held during imports, because another thread may register while importing the same module.
        self._lock = threading.Lock()

    @property
    def decorator(self) -> str:
        """The name of the decorator that adds to this registry."""
        return f"register_{'inference' if self.kind == 'inference_client' else self.kind}"

    def register[T](self, name: str) -> Callable[[T], T]:
        """Decorator: make a class available in YAML under `name`."""
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"@{self.decorator} needs a name: write @{self.decorator}('my_{self.kind}') above the class."
            )

        def add(extension: T) -> T:
            self._add(name, extension)
            if isinstance(extension, type):
                extension.name = name  # pyright: ignore[reportAttributeAccessIssue]
            return extension

        return add

    def get(self, name: str) -> Extension:
        """The class registered under `name`; UnknownNameError with the known names for a miss."""
        if name not in self._registered:
            if builtin := self._builtin(name):
                return self._load_builtin(name, builtin)
            self._load_entry_points()
        if name in self._registered:
            return self._registered[name]
        if name in self._broken:
            raise UnknownNameError(f"{self.kind} '{name}' could not be loaded: {self._broken[name].problem}")
        raise UnknownNameError(self._miss(name))

    def names(self) -> list[str]:
        """All names, sorted, also of built-ins that need an extra."""
        self._load_entry_points()
        with self._lock:
            return sorted({*self._builtins, *self._registered})

    def entries(self) -> list[Entry]:
        """The entries for `evsys list`, also of extensions that cannot be used here."""
        usable = [self._describe(name) for name in self.names()]
        return sorted([*usable, *self._broken.values()], key=lambda entry: entry.name)

    def __contains__(self, name: str) -> bool:
        if name in self._registered or self._builtin(name):
            return True
        self._load_entry_points()
        return name in self._registered

    def extensions_of_projects(self) -> dict[str, Extension]:
        """Extensions that were registered by modules of a project."""
        with self._lock:
            return {
                name: extension
                for name, extension in self._registered.items()
                if name not in self._packages
                and not ((builtin := self._builtin(name)) and builtin.is_import_path_of(extension))
            }

    def names_registered_later(self) -> set[str]:
        """Extensions of a project that were registered after the import of their module."""
        with self._lock:
            return self._later - self._packages.keys()

    def names_of_packages(self) -> set[str]:
        """Loaded extensions of installed packages."""
        with self._lock:
            return set(self._packages)

    def schema(self, name: str) -> dict[str, Any]:
        """JSON schema of the `params` of `name`."""
        config = config_model(self.get(name))
        if config is None:
            return {"title": name, "type": "object", "properties": {}, "additionalProperties": False}
        return config.model_json_schema()

    @contextmanager
    def isolated(self) -> Generator[Registry]:
        """Undo, on exit, all registrations inside the block. For tests."""
        with self._lock:
            saved = (self._registered.copy(), self._packages.copy(), self._broken.copy(), self._entry_points_loaded)
            later = self._later.copy()
        try:
            yield self
        finally:
            with self._lock:
                self._registered, self._packages, self._broken, self._entry_points_loaded = saved
                self._later = later

    def _add(self, name: str, extension: Extension, *, may_replace: bool = True) -> None:
        with self._lock:
            existing, builtin = self._registered.get(name), self._builtin(name)
            if builtin is not None and (existing is None or builtin.is_import_path_of(existing)):
                free = (may_replace and builtin.replaceable) or builtin.is_import_path_of(extension)
                existing = None if free else f"the built-in evsys_sdk.{builtin.target.replace(':', '.')}"
            if existing is not None and existing is not extension and not _same_definition(existing, extension):
                raise DuplicateNameError(
                    f"{self.kind} '{name}' is already registered by {_origin(existing)}; {_origin(extension)} "
                    f"must use another name, for instance '{extension.__module__.partition('.')[0].strip('_')}/{name}'."
                )
            self._registered[name] = extension
            self._later.discard(name)
            if not _is_being_imported(extension.__module__):
                self._later.add(name)

    def _builtin(self, name: str) -> Builtin | None:
        """The built-in of this name or of its family, e.g. `pass@k` for `pass@3`."""
        return self._builtins.get(name) or next((row for row in self._builtins.values() if row.has_member(name)), None)

    def _load_builtin(self, name: str, builtin: Builtin) -> Extension:
        if builtin.missing_extra:
            raise MissingExtraError(f"{self.kind} '{name}'", builtin.missing_extra)
        extension = builtin.load()
        if name not in self._builtins:
            return extension.member(name)
        with self._lock:  # another thread may have registered it
            return self._registered.setdefault(name, extension)

    def _load_entry_points(self) -> None:
        if self._entry_points_loaded or getattr(self._loading, "here", False):
            return
        self._loading.here = True  # an entry point may use the registry while it is imported
        try:
            for point in find_entry_points(self.group):
                with user_code(f"loading the entry point '{point.value}'", limit_s=default_limit_s()):
                    self._load_entry_point(point)
        finally:
            self._loading.here = False
        # Last, so that other threads load them too instead of reporting them as missing.
        self._entry_points_loaded = True

    def _load_entry_point(self, point: EntryPoint) -> None:
        package = point.dist.name if point.dist else point.value
        try:
            extension = point.load()
            if isinstance(extension, type) and not hasattr(extension, "name"):
                extension.name = point.name  # pyright: ignore[reportAttributeAccessIssue]
            self._add(point.name, extension, may_replace=False)
            self._packages[point.name] = package
        except (Exception, SystemExit) as error:  # a broken package is reported and does not affect others
            problem = f"entry point '{point.value}' of package '{package}' failed: {type(error).__name__}: {error}"
            self._broken[point.name] = Entry(self.kind, point.name, package, problem=problem)
            from .log import get_logger

            get_logger(__name__).warning("%s '%s' is not available: %s", self.kind, point.name, problem)

    def _describe(self, name: str) -> Entry:
        builtin = self._builtins.get(name)
        if builtin and name in self._registered and not builtin.is_import_path_of(self._registered[name]):
            builtin = None  # replaced by an extension of the project
        source = "built-in" if builtin else self._packages.get(name, "registered")
        missing = builtin.missing_extra if builtin else None
        problem = f"pip install 'evsys-sdk[{missing}]'" if missing else ""
        try:
            summary = builtin.read_summary() if builtin else None
            if summary is None:
                summary = summary_of(builtin.load() if builtin else self.get(name))
        except ImportError as error:  # a broken library must not hide the other entries
            summary, problem = "", problem or f"cannot be imported: {error}"
        return Entry(self.kind, name, source, summary, problem)

    def _miss(self, name: str) -> str:
        known = self.names()
        guess = closest(name, known)
        return (
            f"{self.kind} '{name}' is not registered"
            + (f"; did you mean '{guess}'?" if guess else ".")
            + f" Registered: {', '.join(known) or 'none'}."
            + f' Add yours with @{self.decorator}("{name}") or an entry point in the group "{self.group}".'
        )


def _is_being_imported(module: str) -> bool:
    """Whether a module is being imported; running it as a script does not count."""
    frame: FrameType | None = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == module != "__main__":
            return True
        frame = frame.f_back
    return False


def config_model(extension: Extension) -> Any | None:
    """The pydantic model of an extension's params; None if it takes none.

    It is the extension's `Config`, else it is derived from the signature of `__init__`.
    """
    config = getattr(extension, "Config", None)
    if hasattr(config, "model_validate"):
        return config
    return _signature_model(extension) if isinstance(extension, type) else None


@cache
def _signature_model(cls: type) -> Any | None:
    """A model of a class's params, from the names, defaults and types of its `__init__`."""
    import inspect
    import typing
    import warnings

    if cls.__init__ is object.__init__:
        return None
    params = list(inspect.signature(cls.__init__).parameters.values())[1:]
    try:
        hints = typing.get_type_hints(cls.__init__)
    except Exception:  # a name for type checkers only: params are then checked by name
        hints = {}
    named = [param for param in params if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)]
    takes_any = any(param.kind is param.VAR_KEYWORD for param in params)
    if not named and not takes_any:
        return None
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {
        param.name: (_plain_type(hints.get(param.name, Any)), ... if param.default is param.empty else param.default)
        for param in named
    }
    settings = ConfigDict(extra="allow" if takes_any else "forbid", protected_namespaces=())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a param may have the name of a pydantic method, e.g. `copy`
        return create_model(cls.__name__, __config__=settings, __doc__=cls.__doc__, **fields)


def _plain_type(hint: Any) -> Any:
    """The type, if it has a JSON schema; else `Any`, which is not checked."""
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        TypeAdapter(hint).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, PydanticInvalidForJsonSchema):
        return Any
    return hint


def summary_of(extension: Extension) -> str:
    """First line of an extension's docstring, without inherited ones."""
    doc = (vars(extension) if isinstance(extension, type) else {"__doc__": extension.__doc__}).get("__doc__") or ""
    return doc.strip().split("\n", 1)[0]


def _same_definition(first: Extension, second: Extension) -> bool:
    """Whether both are the same source definition, as after a module reload."""
    name = getattr(first, "__qualname__", "<lambda>")
    if "<lambda>" in name:  # has no name
        return False
    return (first.__module__, name) == (getattr(second, "__module__", ""), getattr(second, "__qualname__", ""))


def _origin(extension: Extension) -> str:
    if isinstance(extension, str):
        return extension
    return f"{extension.__module__}.{getattr(extension, '__qualname__', type(extension).__name__)}"


KINDS: dict[str, str] = {
    "transform": "transforms",
    "data_store": "data_stores",
    "backend": "backends",
    "inference_client": "inference",
    "agent": "agents",
    "environment": "environments",
    "algorithm": "algorithms",
    "verifier": "verifiers",
    "metric": "metrics",
    "launcher": "launchers",
    "log_store": "log_stores",
    "callback": "callbacks",
    "deployer": "deployers",
}
"""Every extension point in the order of the data flow: singular kind -> plural (entry-point group, docs page)."""

REGISTRIES: dict[str, Registry] = {
    kind: Registry(kind, plural, BUILTINS.get(kind, {})) for kind, plural in KINDS.items()
}


def registry(kind: str) -> Registry:
    """The registry of a kind, by its singular or plural name."""
    for entry in REGISTRIES.values():
        if kind in (entry.kind, entry.plural):
            return entry
    guess = closest(kind, [*KINDS, *KINDS.values()])
    raise UnknownNameError(
        f"'{kind}' is not a kind of extension"
        + (f"; did you mean '{guess}'?" if guess else ".")
        + f" Kinds: {', '.join(KINDS)}."
    )


def schema_for(kind: str, name: str) -> dict[str, Any]:
    """JSON schema of one extension's params, e.g. `schema_for("algorithm", "sft")`."""
    return registry(kind).schema(name)


register_transform, get_transform, list_transforms = (r := REGISTRIES["transform"]).register, r.get, r.names
register_data_store, get_data_store, list_data_stores = (r := REGISTRIES["data_store"]).register, r.get, r.names
register_backend, get_backend, list_backends = (r := REGISTRIES["backend"]).register, r.get, r.names
register_inference, get_inference, list_inference = (r := REGISTRIES["inference_client"]).register, r.get, r.names
register_agent, get_agent, list_agents = (r := REGISTRIES["agent"]).register, r.get, r.names
register_environment, get_environment, list_environments = (r := REGISTRIES["environment"]).register, r.get, r.names
register_algorithm, get_algorithm, list_algorithms = (r := REGISTRIES["algorithm"]).register, r.get, r.names
register_verifier, get_verifier, list_verifiers = (r := REGISTRIES["verifier"]).register, r.get, r.names
register_verifier_fn = register_verifier  # an older name
register_metric, get_metric, list_metrics = (r := REGISTRIES["metric"]).register, r.get, r.names
register_launcher, get_launcher, list_launchers = (r := REGISTRIES["launcher"]).register, r.get, r.names
register_log_store, get_log_store, list_log_stores = (r := REGISTRIES["log_store"]).register, r.get, r.names
register_callback, get_callback, list_callbacks = (r := REGISTRIES["callback"]).register, r.get, r.names
register_deployer, get_deployer, list_deployers = (r := REGISTRIES["deployer"]).register, r.get, r.names
del r  # pyright: ignore[reportPossiblyUnboundVariable]
