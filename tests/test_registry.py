"""Names in YAML -> classes: what is registered here, built in, or installed with another package."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import evsys_sdk
from evsys_sdk import register_transform, register_verifier, schema_for
from evsys_sdk.builtins import Builtin
from evsys_sdk.cli.main import main
from evsys_sdk.errors import DuplicateNameError, MissingExtraError, UnknownNameError
from evsys_sdk.registry import KINDS, REGISTRIES, Registry, config_model, registry


class Shout:
    """Puts everything in capitals.

    More that no list has room for.
    """

    class Config(BaseModel, extra="forbid"):
        times: int = 1


class Whisper:
    pass


@pytest.fixture
def plants(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A separate registry, with one built-in, which has its old name again when the test ends."""
    monkeypatch.setattr("evsys_sdk.data.transforms.rows.IdentityRows.name", "identity")
    return Registry("plant", "plants", {"moss": Builtin("data.transforms.rows:IdentityRows")})


def test_what_is_registered_can_be_looked_up_listed_and_described(plants: Registry) -> None:
    assert plants.register("shout")(Shout) is Shout
    assert plants.get("shout") is Shout
    assert "shout" in plants
    assert plants.names() == ["moss", "shout"]
    assert plants.schema("shout") == Shout.Config.model_json_schema()
    assert [(entry.name, entry.source, entry.available) for entry in plants.entries()] == [
        ("moss", "built-in", True),
        ("shout", "registered", True),
    ]
    assert plants.entries()[1].summary == "Puts everything in capitals."


def test_registering_gives_a_class_its_name(plants: Registry) -> None:
    class Named:
        name = "something else"

    plants.register("fern")(Named)
    assert Named.name == "fern"


def test_a_built_in_is_imported_when_it_is_first_used(plants: Registry) -> None:
    from evsys_sdk.data.transforms.rows import IdentityRows

    assert plants.get("moss") is IdentityRows
    assert plants.get("moss") is plants.get("moss")
    assert plants.entries()[0].summary


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_three_functions_on_the_public_surface(kind: str) -> None:
    kind_registry = REGISTRIES[kind]
    short = kind_registry.decorator.removeprefix("register_")
    assert getattr(evsys_sdk, kind_registry.decorator) == kind_registry.register
    assert getattr(evsys_sdk, f"get_{short}") == kind_registry.get
    assert getattr(evsys_sdk, f"list_{kind_registry.plural}") == kind_registry.names


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_understood_in_singular_and_plural(kind: str) -> None:
    assert registry(kind) is registry(KINDS[kind]) is REGISTRIES[kind]


def test_an_unknown_kind_is_refused_with_the_closest() -> None:
    with pytest.raises(
        UnknownNameError, match="'algoritm' is not a kind of extension; did you mean 'algorithm'"
    ) as caught:
        registry("algoritm")
    assert all(kind in str(caught.value) for kind in KINDS)


def test_a_miss_says_what_exists_and_how_to_add_ones_own() -> None:
    with pytest.raises(KeyError) as caught:
        evsys_sdk.get_transform("dedup")
    text = str(caught.value)
    assert text.startswith(
        "transform 'dedup' is not registered; did you mean 'dedupe'? Registered: add_system_prompt, "
    )
    assert '@register_transform("dedup")' in text
    assert 'entry point in the group "evsys_sdk.transforms"' in text
    with pytest.raises(
        UnknownNameError, match=r"inference_client 'qqq' is not registered\. Registered: .*@register_inf"
    ):
        evsys_sdk.get_inference("qqq")


def test_the_same_class_may_be_registered_twice(plants: Registry) -> None:
    plants.register("fern")(Shout)
    assert plants.register("fern")(Shout) is Shout
    plants.register("bracken")(Shout)
    assert plants.get("fern") is plants.get("bracken") is Shout


def test_another_class_under_a_taken_name_is_refused_with_both_origins(plants: Registry) -> None:
    plants.register("fern")(Shout)
    with pytest.raises(DuplicateNameError) as caught:
        plants.register("fern")(Whisper)
    text = str(caught.value)
    assert f"{__name__}.Shout" in text
    assert f"{__name__}.Whisper must use another name" in text
    assert "/fern'" in text
    assert plants.get("fern") is Shout


@pytest.mark.parametrize("used_before", [False, True])
def test_the_name_of_a_built_in_is_taken(plants: Registry, used_before: bool) -> None:
    if used_before:
        plants.get("moss")
    with pytest.raises(DuplicateNameError, match=r"the built-in evsys_sdk\.data\.transforms\.rows"):
        plants.register("moss")(Shout)
    assert plants.get("moss").__name__ == "IdentityRows"
    plants.register("moss")(plants.get("moss"))


@pytest.mark.parametrize("used_before", [False, True])
def test_a_replaceable_built_in_gives_way_once(used_before: bool) -> None:
    if used_before:
        evsys_sdk.get_transform("dedupe")
    register_transform("dedupe")(Shout)
    assert evsys_sdk.get_transform("dedupe") is Shout
    (entry,) = [entry for entry in registry("transform").entries() if entry.name == "dedupe"]
    assert (entry.source, entry.summary) == ("registered", "Puts everything in capitals.")
    with pytest.raises(DuplicateNameError):
        register_transform("dedupe")(Whisper)


def test_a_reloaded_module_replaces_its_own_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "reloaded_extension.py"
    source = 'from evsys_sdk import register_transform\n\n@register_transform("mine")\nclass Mine:\n    version = {}\n'
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module.write_text(source.format(1), encoding="utf-8")
    loaded = importlib.import_module("reloaded_extension")
    assert evsys_sdk.get_transform("mine").version == 1
    module.write_text(source.format("'two'"), encoding="utf-8")
    importlib.reload(loaded)
    assert evsys_sdk.get_transform("mine").version == "two"
    del sys.modules["reloaded_extension"]


def test_functions_can_be_registered(plants: Registry) -> None:
    @register_verifier("says_ok")
    def says_ok(model_output: str, expected: Any, params: dict[str, Any]) -> float:
        """Whether the output says ok."""
        return float("ok" in model_output)

    assert evsys_sdk.get_verifier("says_ok") is says_ok
    assert not hasattr(says_ok, "name")
    assert schema_for("verifier", "says_ok")["properties"] == {}
    (entry,) = [entry for entry in registry("verifier").entries() if entry.name == "says_ok"]
    assert entry.summary == "Whether the output says ok."


def test_nameless_things_are_distinguished_by_identity(plants: Registry) -> None:
    first, second = (lambda: 1), (lambda: 2)
    plants.register("a")(first)
    plants.register("a")(first)
    with pytest.raises(DuplicateNameError, match="<lambda>"):
        plants.register("a")(second)
    nameless = functools.partial(print, "x")
    plants.register("b")(nameless)
    with pytest.raises(DuplicateNameError, match="partial"):
        plants.register("b")(functools.partial(print, "y"))
    with pytest.raises(DuplicateNameError):
        plants.register("moss")(nameless)


@pytest.mark.parametrize("misuse", [Shout, "", None, 3])
def test_a_decorator_without_a_name_says_how_to_write_it(misuse: Any) -> None:
    with pytest.raises(TypeError, match=r"write @register_transform\('my_transform'\) above the class"):
        register_transform(misuse)


def test_an_extension_without_config_has_an_empty_schema(plants: Registry) -> None:
    plants.register("quiet")(Whisper)
    assert plants.schema("quiet") == {
        "title": "quiet",
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }
    assert config_model(Whisper) is None
    assert config_model(type("Odd", (), {"Config": {"not": "a model"}})) is None


def test_what_is_registered_in_isolation_is_forgotten(plants: Registry) -> None:
    plants.register("stays")(Shout)
    with plants.isolated() as inside:
        assert inside is plants
        plants.register("goes")(Whisper)
        with plants.isolated():
            plants.register("goes_first")(Whisper)
        assert plants.names() == ["goes", "moss", "stays"]
    assert plants.names() == ["moss", "stays"]
    with pytest.raises(DuplicateNameError), plants.isolated():
        plants.register("stays")(Whisper)
    assert plants.get("stays") is Shout


@pytest.fixture
def _missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evsys_sdk.builtins.EXTRA_MODULES", {"greenhouse": ("no_such_module_anywhere",)})


@pytest.mark.usefixtures("_missing_extra")
@pytest.mark.parametrize("target", ["data.transforms.rows:IdentityRows", "no.such.module:Orchid"])
def test_a_built_in_that_needs_an_extra_is_listed_with_the_command(target: str) -> None:
    plants = Registry("plant", "plants", {"orchid": Builtin(target, extra="greenhouse")})
    assert plants.names() == ["orchid"]
    assert "orchid" in plants
    (entry,) = plants.entries()
    assert not entry.available
    assert entry.problem == "pip install 'evsys-sdk[greenhouse]'"
    with pytest.raises(MissingExtraError, match="plant 'orchid' needs the extra 'greenhouse'"):
        plants.get("orchid")
    with pytest.raises(ImportError, match="pip install"):
        plants.schema("orchid")


def test_a_built_in_whose_library_is_broken_does_not_hide_the_others() -> None:
    rows = {"bad": Builtin("no.such.module:Bad"), "good": Builtin("data.transforms.rows:IdentityRows")}
    bad, good = Registry("plant", "plants", rows).entries()
    assert bad.problem == "cannot be imported: No module named 'evsys_sdk.no'"
    assert good.available


PACKAGE = '''\
"""Extensions of another package."""
from pydantic import BaseModel


class Clip:
    """Clips text."""

    class Config(BaseModel, extra="forbid"):
        at: int = 10


class Named:
    """Says its own name."""

    name = "given_by_itself"


class Identity:
    """Wants the name of a built-in."""


class Dedupe:
    """Wants the name of a built-in that a project may replace."""
'''
ENTRY_POINTS = """\
[evsys_sdk.transforms]
clip = evsys_test_plants:Clip
named = evsys_test_plants:Named
identity = evsys_test_plants:Identity
dedupe = evsys_test_plants:Dedupe
raises = evsys_test_plants.raises:Nothing
exits = evsys_test_plants.exits:Nothing
absent = evsys_test_plants:NotThere
curious = evsys_test_plants.curious:Curious

[evsys_sdk.metrics]
never_loaded = evsys_test_plants.raises:Nothing
"""
CURIOUS = """\
from evsys_sdk.registry import registry

found = "clip" in registry("transform")


class Curious:
    '''Looks others up while it is imported.'''
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with good and bad entry points, installed as far as Python can tell."""
    package = tmp_path / "evsys_test_plants"
    package.mkdir()
    (package / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    (package / "raises.py").write_text("raise ValueError('out of order')\n", encoding="utf-8")
    (package / "exits.py").write_text("raise SystemExit('no licence')\n", encoding="utf-8")
    (package / "curious.py").write_text(CURIOUS, encoding="utf-8")
    info = tmp_path / "evsys_test_plants-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evsys-test-plants\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for found in REGISTRIES.values():
        monkeypatch.setattr(found, "_entry_points_loaded", False)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("evsys_test_plants")]:
        del sys.modules[name]


@pytest.mark.usefixtures("installed")
def test_an_entry_point_is_found_and_says_where_it_comes_from() -> None:
    clip = evsys_sdk.get_transform("clip")
    assert clip.__module__ == "evsys_test_plants"
    assert clip.name == "clip"
    assert evsys_sdk.get_transform("named").name == "given_by_itself"
    assert schema_for("transforms", "clip")["properties"]["at"]["default"] == 10
    sources = {entry.name: entry.source for entry in registry("transform").entries() if entry.available}
    assert sources["clip"] == "evsys-test-plants"
    assert sources["identity"] == sources["dedupe"] == "built-in"


@pytest.mark.usefixtures("installed")
def test_a_broken_entry_point_is_listed_with_the_reason_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    assert "clip" in evsys_sdk.list_transforms()
    broken = {entry.name: entry for entry in registry("transform").entries() if not entry.available}
    where = "entry point 'evsys_test_plants.{}' of package 'evsys-test-plants' failed: "
    assert broken["raises"].problem == where.format("raises:Nothing") + "ValueError: out of order"
    assert broken["exits"].problem == where.format("exits:Nothing") + "SystemExit: no licence"
    assert broken["absent"].problem.startswith(where.format("NotThere").replace(".N", ":N") + "AttributeError")
    assert "raises" not in evsys_sdk.list_transforms()
    assert "raises" not in registry("transform")
    assert "transform 'raises' is not available" in caplog.text
    with pytest.raises(UnknownNameError, match=r"transform 'raises' could not be loaded: .*out of order"):
        evsys_sdk.get_transform("raises")


@pytest.mark.usefixtures("installed")
def test_an_entry_point_cannot_take_the_name_of_a_built_in_even_a_replaceable_one() -> None:
    evsys_sdk.list_transforms()
    for name in ("identity", "dedupe"):
        assert evsys_sdk.get_transform(name).__module__ == "evsys_sdk.data.transforms.rows"
        (refused,) = [e for e in registry("transform").entries() if e.name == name and not e.available]
        assert f"transform '{name}' is already registered by the built-in evsys_sdk.data" in refused.problem


@pytest.mark.usefixtures("installed")
def test_an_entry_point_may_look_others_up_while_it_is_imported() -> None:
    assert evsys_sdk.get_transform("curious").__name__ == "Curious"
    assert sys.modules["evsys_test_plants.curious"].found is True


@pytest.mark.usefixtures("installed")
def test_other_packages_are_loaded_only_when_they_are_needed() -> None:
    assert evsys_sdk.get_transform("dedupe")
    assert "evsys_test_plants" not in sys.modules
    evsys_sdk.list_transforms()
    assert "evsys_test_plants" in sys.modules
    assert "never_loaded" not in {entry.name for entry in registry("transform").entries()}


@pytest.mark.usefixtures("installed")
def test_entry_points_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evsys_sdk.list_transforms()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("read a second time"))
    assert "clip" in evsys_sdk.list_transforms()
    assert evsys_sdk.get_transform("clip")
    with pytest.raises(UnknownNameError):
        evsys_sdk.get_transform("nothing_like_it")


@pytest.mark.usefixtures("installed")
def test_the_list_command_shows_packages_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "transforms"]) == 0
    out, err = capsys.readouterr()
    assert "clip" in out
    assert "Clips text. (from evsys-test-plants)" in out
    assert "not available: entry point 'evsys_test_plants.raises:Nothing'" in out
    assert "Traceback" not in out + err
    assert main(["list", "--kind", "transform", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["transforms"]
    (row,) = [row for row in rows if row["name"] == "raises"]
    assert (row["available"], row["source"]) == (False, "evsys-test-plants")


def test_many_threads_may_register_and_look_up_at_once(plants: Registry) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            start.wait()
            for index in range(50):
                name = f"t{number}_{index}"
                plants.register(name)(type(name, (), {}))
                assert plants.get(name).__name__ == name
                assert name in plants.names()
                assert plants.get("moss")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(plants.names()) == 401


def test_a_lookup_does_not_wait_for_an_import_that_registers(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread imports a module that registers; another loads that same module as an entry point."""
    importing, looking = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "evsys_test_events", (importing, looking), raising=False)
    (installed / "evsys_test_plants" / "curious.py").write_text(
        "import sys\n"
        "from evsys_sdk import register_transform\n"
        "importing, looking = sys.evsys_test_events\n"
        "importing.set()\n"
        "looking.wait(60)\n"
        "@register_transform('curious')\n"
        "class Curious: ...\n",
        encoding="utf-8",
    )
    first = threading.Thread(target=importlib.import_module, args=("evsys_test_plants.curious",))
    first.start()
    assert importing.wait(60)
    results: list[Any] = []

    def now_looking(**select: Any) -> Any:
        looking.set()
        return real_entry_points(**select)

    real_entry_points = importlib.metadata.entry_points
    monkeypatch.setattr("importlib.metadata.entry_points", now_looking)
    second = threading.Thread(target=lambda: results.append(evsys_sdk.get_transform("curious")), daemon=True)
    second.start()
    first.join(60)
    second.join(60)
    assert not first.is_alive()
    assert not second.is_alive()
    assert results[0].name == "curious"


class TestParamsFromTheSignature:
    """A class without `Config` takes what its `__init__` takes."""

    def test_names_types_and_defaults_become_the_schema(self) -> None:
        with REGISTRIES["transform"].isolated():

            @evsys_sdk.register_transform("shouts")
            class Shouts:  # pyright: ignore[reportUnusedClass]
                """Shouts."""

                def __init__(self, how="no", times: int = 2, *, where: str) -> None: ...

            schema = evsys_sdk.schema_for("transform", "shouts")
        assert schema["properties"]["how"]["default"] == "no"
        assert schema["properties"]["times"] == {"default": 2, "title": "Times", "type": "integer"}
        assert (schema["required"], schema["additionalProperties"]) == (["where"], False)
        assert schema["description"] == "Shouts."

    def test_a_wrong_name_and_a_wrong_type_are_reported(self) -> None:
        class Takes:
            def __init__(self, how: str = "no", copy: bool = False) -> None: ...

        model = config_model(Takes)
        assert model is not None
        assert model.model_validate({"how": "yes"}).how == "yes"
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            model.model_validate({"hwo": "yes"})
        with pytest.raises(ValueError, match="valid string"):
            model.model_validate({"how": 3})

    def test_what_cannot_be_checked_is_let_through(self) -> None:
        class Strange: ...

        class Takes:
            def __init__(self, thing: Strange | None = None, **more: Any) -> None: ...

        model = config_model(Takes)
        assert model is not None
        assert model.model_validate({"thing": 1, "anything": 2})
        assert model.model_json_schema()["properties"]["thing"] == {"default": None, "title": "Thing"}

    def test_a_class_that_takes_nothing_and_a_function_have_no_model(self) -> None:
        class Plain: ...

        class OnlySelf:
            def __init__(self) -> None: ...

        assert config_model(Plain) is config_model(OnlySelf) is config_model(lambda completion, expected: 1.0) is None
