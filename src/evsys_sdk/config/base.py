"""What all config models share: strict, frozen, cheap to import, and documented under each field."""

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
"""In bytes of UTF-8; file systems allow 255, and suffixes are added to names."""


def _fits_a_folder(name: str) -> str:
    size = len(name.encode("utf-8", errors="replace"))
    if size > _LONGEST_NAME:
        raise ValueError(f"this name has {size} bytes and may have {_LONGEST_NAME}. Shorten it.")
    return name


type Name = Annotated[str, StringConstraints(min_length=1, pattern=NAME_PATTERN), AfterValidator(_fits_a_folder)]
"""A name that is also a folder name: no slashes, no control characters, no leading dot."""


class MisplacedValue(ValueError):
    """Raised by a check across fields that knows which of them is wrong; `path` leads there."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Strict(BaseModel):
    """Base of every config model: unknown keys are refused, values cannot change after loading.

    The text under each field becomes its description in the JSON schema. It is read from the source only when a schema
    is asked for, because reading it for every model would cost each command more than its own work.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # "3" is not 3 and true is not 1: what was meant must not be guessed
        allow_inf_nan=False,
        hide_input_in_errors=True,  # it may be a credential
        protected_namespaces=(),  # a field may well begin with `model_` here
        defer_build=True,  # until it validates something: a command needs few of the models it imports
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema


@functools.cache
def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The text under each field of a model and of the models it inherits from."""
    import ast
    import inspect
    import textwrap

    docs: dict[str, str] = {}
    for cls in reversed(model.__mro__):  # the bases first: what a model says of a field itself takes their place
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError, SyntaxError):  # made at run time: its fields may still be described by Field(...)
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str() as found)):
                        docs[field.target.id] = inspect.cleandoc(found)
                    case _:
                        pass
    return docs


class KindSpec(Strict):
    """A pluggable block: the name of a registered extension and its params."""

    registry: ClassVar[str]
    """Kind of extension whose registry `kind` is looked up in."""

    kind: str = Field(min_length=1)
    """Name in the registry of this block; `evsys list` shows what exists."""
    params: dict[str, Any] = {}
    """Passed to the extension and checked against its own schema; see `evsys schema`."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The params for the extension itself: not to be recorded, because environment variables stand in them."""
        return expand_variables(self.params) if self.registry in TAKES_VARIABLES else self.params

    @model_validator(mode="after")
    def _holds_no_credentials(self) -> Self:
        for path in find_credentials(self.params):
            raise MisplacedValue(f"{NO_CREDENTIALS}. {USE_A_VARIABLE}", "params", *path)
        return self


NO_CREDENTIALS = "a credential must not stand in a config"
USE_A_VARIABLE = "Put it into an environment variable, and write ${NAME} here."
TAKES_VARIABLES = (
    *("backend", "inference_client", "data_store", "log_store", "callback", "launcher", "environment", "deployer"),
)
"""Registries whose params may name environment variables. In templates of the others `${price}` is text."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def expand_variables(node: Any, *path: str | int) -> Any:
    """A copy of params in which each `${NAME}` is the value of that environment variable."""
    if isinstance(node, str):

        def value(found: re.Match[str]) -> str:
            if found[1] not in os.environ:
                hint = f"Set it, for instance with: export {found[1]}=..."
                where = ".".join(map(str, path))
                raise ConfigError(Problem(f"the environment variable '{found[1]}' is not set", path=where, hint=hint))
            return os.environ[found[1]]

        return _VARIABLE.sub(value, node)
    if isinstance(node, dict):
        items = cast("dict[str, Any]", node).items()
        return {name: expand_variables(inner, *path, name) for name, inner in items}
    if isinstance(node, list):
        return [expand_variables(inner, *path, at) for at, inner in enumerate(cast("list[Any]", node))]
    return node


def find_credentials(node: Any, key: str = "", *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """The place of each value that is a credential by its name or its shape."""
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


_is_literal_secret = functools.lru_cache(maxsize=4096)(is_literal_secret)  # ten thousand arms have few values
