"""What can be imported from `evsys_sdk` is a promise: this list changes only on purpose."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import evsys_sdk
from evsys_sdk.registry import KINDS, REGISTRIES

CONFIG = """
    ExperimentConfig RunConfig DataConfig ModelConfig AlgorithmConfig BackendConfig EvalConfig
    TransformSpec DataStoreSpec LogStoreSpec MetricSpec VerifierSpec InferenceSpec Strict
    load_yaml dump_yaml validate_yaml
"""
DATA = """
    TargetFormat ChatMessagesRow HarborTask PromptExample InProcessVerifier E2BVerifier LLMJudgeVerifier VerifierPayload
    text_block image_url_block image_base64_block block_to_image_src has_images
    detect_format from_dict to_dict iter_jsonl parse_rows Workspace
"""
PROTOCOLS = """
    Transform DataStore Backend InferenceClient Algorithm AlgorithmTraits Verifier Metric LogStore
    RunContext RunNotes RunResult VerificationResult
"""
EXTENDING = """
    TrainingClient SamplingClient Capabilities ModelSpec Datum AdamParams SamplingParams numpy_loss
    Agent AgentResult Environment Message Policy Rollout Turn opening text_of
    Callback EvalRecord RunControl RunInfo RunServices TrainingBatch
    BaseAlgorithm TrainingConfig SFT RL
    open_model Model FrozenModel SampledTurn record RecordedExperiment LoopRun group_advantages
"""
HISTORY = "History ExperimentView"
EXPERIMENT = "Experiment ExperimentResult ArmResult EvalResult Benchmark Sweep run_experiment"
DASHBOARD = "DashboardClient ExperimentRun"
ERRORS = "EvsysError ConfigError DataError WorkspaceError EvsysAuthError DashboardClientError"
LOGGING = "configure_logger get_logger set_level"
REGISTRY = [
    "Registry",
    "schema_for",
    "register_verifier_fn",
    *(
        name
        for kind, plural in KINDS.items()
        for short in ["inference" if kind == "inference_client" else kind]
        for name in (f"register_{short}", f"get_{short}", f"list_{plural}")
    ),
]
PROMISED = {
    "__version__",
    *f"{CONFIG} {DATA} {PROTOCOLS} {EXTENDING} {EXPERIMENT} {HISTORY} {DASHBOARD} {ERRORS} {LOGGING}".split(),
    *REGISTRY,
}

SOURCE = Path(evsys_sdk.__file__)
LIGHT = ("pydantic", "numpy", "yaml", "httpx", "rich", "click", "torch", "asyncio")


def test_the_public_names_are_exactly_the_promised_ones() -> None:
    assert set(evsys_sdk.__all__) == PROMISED
    assert len(evsys_sdk.__all__) == len(set(evsys_sdk.__all__))


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_every_public_name_can_be_imported_and_is_the_one_of_its_module(name: str) -> None:
    value = getattr(evsys_sdk, name)
    assert value is not None
    home = evsys_sdk._HOME.get(name)  # pyright: ignore[reportPrivateUsage]
    if home is not None:
        module = importlib.import_module(f"evsys_sdk.{home}")
        # `record` is a package as well, which calls the function of that name.
        assert getattr(module, name) == value or name == "record"


def test_a_star_import_brings_everything() -> None:
    names: dict[str, object] = {}
    exec("from evsys_sdk import *", names)
    assert set(names) >= PROMISED


def test_the_eight_registries_of_the_reference_are_there_by_its_names() -> None:
    for short in ("algorithm", "verifier", "metric", "backend", "inference", "transform", "data_store", "log_store"):
        assert f"register_{short}" in PROMISED
        assert f"get_{short}" in PROMISED
    groups = ["algorithms", "verifiers", "metrics", "backends", "inference", "transforms", "data_stores", "log_stores"]
    assert {f"evsys_sdk.{group}" for group in groups} <= {registry.group for registry in REGISTRIES.values()}


def imported_for_type_checkers() -> dict[str, set[str]]:
    """Module -> the names imported from it under TYPE_CHECKING."""
    by_module: dict[str, set[str]] = {}
    for node in ast.parse(SOURCE.read_text("utf-8")).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                assert statement.level == 1
                by_module[str(statement.module)] = {alias.name for alias in statement.names}
                # The rule for typed packages: only what is imported as itself is public.
                assert all(alias.asname == alias.name for alias in statement.names)
    return by_module


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    surface = evsys_sdk._SURFACE  # pyright: ignore[reportPrivateUsage]
    assert imported_for_type_checkers() == {module: set(names.split()) for module, names in surface.items()}


def test_dir_shows_the_public_names() -> None:
    assert set(dir(evsys_sdk)) >= PROMISED


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'evsys_sdk' has no attribute 'Experimnt'"):
        _ = evsys_sdk.Experimnt  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from evsys_sdk import nothing")
    assert not hasattr(evsys_sdk, "nothing")


def modules_after(code: str) -> set[str]:
    report = "import json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_imports_no_library_and_no_submodule() -> None:
    loaded = modules_after("import evsys_sdk; evsys_sdk.__version__")
    assert loaded.isdisjoint(LIGHT)
    assert {name for name in loaded if name.startswith("evsys_sdk")} == {"evsys_sdk", "evsys_sdk._version"}


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("register_transform", {"pydantic", "yaml", "numpy"}),
        ("ConfigError", {"pydantic", "yaml", "numpy"}),
        ("RunContext", {"pydantic", "yaml", "numpy"}),
        ("get_logger", {"pydantic", "yaml", "numpy"}),
        ("load_yaml", {"numpy", "httpx", "rich", "torch"}),
        ("BaseAlgorithm", {"torch", "transformers", "httpx", "rich"}),
        ("Callback", {"numpy", "torch", "httpx"}),
        ("Datum", {"torch", "pydantic"}),
    ],
)
def test_a_name_imports_only_what_it_needs(name: str, absent: set[str]) -> None:
    assert modules_after(f"from evsys_sdk import {name}").isdisjoint(absent)


def test_the_fronts_of_the_rooms_have_the_same_names() -> None:
    from evsys_sdk.algorithms import SFT, BaseAlgorithm
    from evsys_sdk.training import Callback, TrainingBatch

    assert (SFT, BaseAlgorithm) == (evsys_sdk.SFT, evsys_sdk.BaseAlgorithm)
    assert (Callback, TrainingBatch) == (evsys_sdk.Callback, evsys_sdk.TrainingBatch)
    with pytest.raises(ImportError, match=r"cannot import name 'Nothing' from 'evsys_sdk\.algorithms'"):
        exec("from evsys_sdk.algorithms import Nothing")
