"""The base of all config models: strict, frozen, cheap to import, with a docstring under each field."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from ..errors import ConfigError, Problem
from ..lazy import spare_pydantic_its_plugins
from ..redact import is_literal_secret
from ..secret_names import name_below, name_of_items

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

spare_pydantic_its_plugins()

NAME_PATTERN = r"^[^\s/\\\x00-\x1f.][^/\\\x00-\x1f]*$"

_LONGEST_NAME = 200
"""In bytes of UTF-8; file systems allow 255, and names get suffixes."""


def _fits_a_folder(name: str) -> str:
    size = len(name.encode("utf-8", errors="replace"))
    if size > _LONGEST_NAME:
        raise ValueError(f"this name has {size} bytes and may have {_LONGEST_NAME}. Shorten it.")
    return name


type Name = Annotated[str, StringConstraints(min_length=1, pattern=NAME_PATTERN), AfterValidator(_fits_a_folder)]
"""A name that is also a folder name: no slashes, no control characters, no leading dot."""


class MisplacedValue(ValueError):
    """Error of a check across fields; `path` is the path of the wrong one."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Strict(BaseModel):
    """Base of every config model: refuses unknown keys, and values cannot change after loading.

    The docstring under each field becomes its description in the JSON schema. It is read from the source only for a
    schema, because reading it for every model would slow down every command.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "3" is not 3 and true is not 1
        allow_inf_nan=False,
        hide_input_in_errors=True,  # the input may be a credential
        protected_namespaces=(),  # fields may begin with `model_`
        # Build on first use, because a command uses few of the models it imports. Hence defaults are `model_construct`,
        # as validating one would build its model a second time.
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema


class StrictWithRemovedKeys(Strict):
    """A strict model that ignores keys of earlier versions at their defaults, which older records contain."""

    REMOVED: ClassVar[dict[str, Any]]

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        return {key: value for key, value in fields.items() if key not in cls.REMOVED or value != cls.REMOVED[key]}


@functools.cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Field -> its docstring, for a model and its base classes."""
    import ast
    import inspect
    import textwrap

    docs: dict[str, str] = {}
    for cls in reversed(model.__mro__):  # bases first, so that a model's own docstring wins
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError, SyntaxError):  # created at run time: it has no source
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str() as docstring)):
                        docs[field.target.id] = inspect.cleandoc(docstring)
                    case _:
                        pass
    return docs


class KindSpec(Strict):
    """A pluggable block: the name of a registered extension and its params."""

    registry: ClassVar[str]
    """Kind of extension whose registry `kind` is looked up in."""

    kind: str = Field(min_length=1)
    """Name in the registry of this block; `evsys list` shows the names."""
    params: dict[str, Any] = {}
    """Arguments of the extension, checked against its schema; see `evsys schema`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The params with environment variables expanded; never recorded, because they may hold secrets."""
        return expand_variables(self.params) if self.registry in TAKES_VARIABLES else self.params

    @model_validator(mode="after")
    def _holds_no_credentials(self) -> Self:
        for path in find_credentials(self.params):
            raise MisplacedValue(f"{NO_CREDENTIALS}. {USE_A_VARIABLE}", "params", *path)
        return self


NO_CREDENTIALS = "a config must not contain credentials"
USE_A_VARIABLE = "Put it into an environment variable, and write ${NAME} here."
TAKES_VARIABLES = (
    *("backend", "inference_client", "data_store", "log_store", "callback", "launcher", "environment", "deployer"),
)
"""Registries whose params may refer to environment variables. In templates of the others `${price}` is text."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def expand_variables(node: Any, *path: str | int) -> Any:
    """A copy of params with each `${NAME}` replaced by that environment variable."""
    if isinstance(node, str):

        def value(match: re.Match[str]) -> str:
            if match[1] not in os.environ:
                hint = f"Set it, for instance with: export {match[1]}=..."
                where = ".".join(map(str, path))
                raise ConfigError(Problem(f"the environment variable '{match[1]}' is not set", path=where, hint=hint))
            return os.environ[match[1]]

        return _VARIABLE.sub(value, node)
    if isinstance(node, dict):
        items = cast("dict[str, Any]", node).items()
        return {name: expand_variables(inner, *path, name) for name, inner in items}
    if isinstance(node, list):
        return [expand_variables(inner, *path, at) for at, inner in enumerate(cast("list[Any]", node))]
    return node


def find_credentials(node: Any, key: str = "", *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The path of each value that is a credential by its name or its form."""
    if isinstance(node, dict):
        for name, inner in cast("dict[Any, Any]", node).items():
            yield from find_credentials(inner, name_below(key, str(name)), *path, str(name))
    elif isinstance(node, list):
        items = cast("list[Any]", node)
        key = name_of_items(key, items)
        if all(len(str(inner)) == 1 for inner in items) and _is_literal_secret("".join(map(str, items)), key):
            yield path  # a text in letters
        for at, inner in enumerate(items):
            yield from find_credentials(inner, key, *path, at)
    elif isinstance(node, str) and _is_literal_secret(node, key):
        yield path


_is_literal_secret = functools.lru_cache(maxsize=4096)(is_literal_secret)  # cached, because many arms share few values
