"""Whatever is asked, the server answers with what its own schema says, or with a problem in words; never with a 500."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
pytestmark = [pytest.mark.dashboard, pytest.mark.slow]

from .test_api import experiment, run, step  # noqa: E402

WORDS = st.sampled_from(
    ["e1", "r1", "loss", "0", "1", "-1", "", "x" * 600, "ü", "%00", "..", "null", "newest", "step", "1e999"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


def resolve(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def body_of(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Bodies that are nearly right: the known fields, each with a fitting or with any value."""
    properties = resolve(schema, document).get("properties", {})

    def field(value: dict[str, Any]) -> st.SearchStrategy[Any]:
        value = resolve(value, document)
        if "enum" in value:
            return st.sampled_from(value["enum"]) | JSON
        kinds = {
            "string": WORDS,
            "integer": st.integers(-5, 5),
            "number": st.floats(allow_nan=False, allow_infinity=False),
        }
        kinds |= {"object": st.dictionaries(WORDS, JSON, max_size=3), "array": st.lists(JSON, max_size=3)}
        return kinds.get(value.get("type", ""), JSON) | JSON

    return st.fixed_dictionaries({}, optional={name: field(value) for name, value in properties.items()}) | JSON


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not path.endswith("/events") and not path.endswith("/keys/{id}")
    ]


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str = "") -> None:
    """Assert that an answer has the fields and types that its schema says."""
    schema = resolve(schema, document)
    if "anyOf" in schema:
        problems: list[AssertionError] = []
        for one in schema["anyOf"]:
            try:
                return fits(value, one, document, where)
            except AssertionError as error:
                problems.append(error)
        raise problems[0]
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "null": type(None),
    }
    kinds["number"] = (int, float)
    if kind := schema.get("type"):
        assert isinstance(value, kinds[kind]), (where, value, kind)
    if isinstance(value, dict):
        assert set(schema.get("required", [])) <= set(value), (where, value)
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                fits(value[name], inner, document, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for inner in value[:5]:
            fits(inner, schema["items"], document, f"{where}[]")
    return None


@settings(
    max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(data=st.data())
def test_no_request_makes_the_server_fail(dashboard: Any, data: st.DataObject) -> None:
    http, document = dashboard.admin, dashboard.document
    method, path, operation = data.draw(st.sampled_from(operations(document)))
    filled = re.sub(r"\{\w+\}", lambda _: data.draw(WORDS.filter(lambda word: word.strip("."))), path)
    named = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
    query = data.draw(st.dictionaries(st.sampled_from(named), WORDS, max_size=4)) if named else {}
    content = operation.get("requestBody", {}).get("content", {})
    options: dict[str, Any] = {}
    if "application/json" in content:
        body = data.draw(body_of(content["application/json"]["schema"], document))
        options = {"content": to_json(body), "headers": {"content-type": "application/json"}}
    elif content:
        lines = data.draw(st.lists(JSON.map(to_json) | st.binary(max_size=30), max_size=5))
        options = {"content": b"\n".join(lines)}
    answer = http.request(method, filled.removeprefix("/api/dashboard/api"), params=query, **options)
    assert answer.status_code < 500, (method, filled, query, options, answer.text)
    declared = operation["responses"].get(str(answer.status_code))
    assert answer.status_code in (204, 405) or declared is not None, (method, filled, answer.status_code, answer.text)
    if answer.status_code >= 400:
        assert {"error", "message"} <= set(answer.json())
    elif declared and "application/json" in declared.get("content", {}):
        fits(answer.json(), declared["content"]["application/json"].get("schema", {}), document)


def to_json(value: Any) -> bytes:
    import json

    return json.dumps(value).encode("utf-8", "surrogatepass")


@pytest.fixture(autouse=True)
def _filled(dashboard: Any) -> Iterator[None]:
    dashboard.send(experiment(), run(), *(step(at, loss=1.0) for at in range(5)))
    with dashboard.client(dashboard.new_key("read", "write", "admin")) as dashboard.admin:
        dashboard.document = dashboard.admin.read("/openapi.json")
        yield
