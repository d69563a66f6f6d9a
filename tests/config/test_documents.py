"""Every YAML block of the specification is a valid config, or part of one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from evsys_sdk import ConfigError, ExperimentConfig, load_yaml, register_transform, validate_yaml

HELLO_SFT = """\
version: 1
name: hello_sft
output_dir: ./outputs
data_store: { kind: local }
log_store:  { kind: jsonl }
run:
  name: r0
  data:
    source_kind: jsonl
    path: data/train.jsonl
    transforms:
      - { kind: jsonl_to_chat, params: {} }
  model: { name: Qwen/Qwen3-4B, renderer_name: qwen3 }
  algorithm: { kind: sft, params: { learning_rate: 1e-5, num_epochs: 1 } }
  backend: { kind: tinker }
  eval:
    enabled: true
    metrics: [ { kind: exact_match } ]
    inference: { kind: tinker }
"""

ENVELOPE = """\
name: whole
run:
  name: r0
  {data}
  model: {{ name: m }}
  {algorithm}
{rest}
"""


type Load = Callable[[str], ExperimentConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load_text(text: str) -> ExperimentConfig:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load_yaml(path)

    return load_text


def whole(*, data: str = "data: { path: a.jsonl }", algorithm: str = "algorithm: { kind: sft }", rest: str = "") -> str:
    """A complete config around a fragment, which is written as in the documents."""
    return ENVELOPE.format(data=inner(data), algorithm=inner(algorithm), rest=textwrap.dedent(rest))


def inner(block: str) -> str:
    return textwrap.indent(textwrap.dedent(block).strip(), "  ").strip()


def test_the_minimal_config_of_the_reference(load: Load) -> None:
    config = load(HELLO_SFT)
    run = config.run
    assert run.algorithm.params == {"learning_rate": 1e-5, "num_epochs": 1}
    assert run.model.renderer_name == "qwen3"
    assert [metric.kind for metric in run.eval.metrics] == ["exact_match"]
    assert run.eval.inference.kind == "tinker"
    assert run.seed == 42


def test_params_of_an_extension_of_ones_own(load: Load) -> None:
    config = load(whole(algorithm="algorithm: { kind: cosine_toy, params: { steps: 200 } }"))
    assert (config.run.algorithm.kind, config.run.algorithm.params) == ("cosine_toy", {"steps": 200})


def test_a_hypothesis(load: Load) -> None:
    config = load(whole(rest='metadata:\n  hypothesis: "2k more tool calls: pass@1 rises on val."'))
    assert config.metadata.hypothesis == "2k more tool calls: pass@1 rises on val."


def test_raw_data_and_a_chain_of_transforms(load: Load) -> None:
    config = load(
        whole(
            data="""
            data:
              source_kind: jsonl
              path: data/train.jsonl
              transforms:
                - kind: jsonl_to_chat
                  params: { user_template: "Query: {query}", assistant_template: "<answer>{tool_slug}</answer>" }
                - { kind: dedupe, params: { key: query } }   # one of the project's own
            """
        )
    )
    to_chat, dedupe = config.run.data.transforms
    assert to_chat.params["user_template"] == "Query: {query}"
    assert to_chat.params["assistant_template"] == "<answer>{tool_slug}</answer>"
    assert dedupe.params == {"key": "query"}


def test_the_transform_of_the_tutorial_may_replace_the_built_in_of_its_name(tmp_path: Path) -> None:
    @register_transform("dedupe")
    class Dedupe:
        class Config(BaseModel, extra="forbid"):
            key: str = "query"
            only_here: int = 0

    path = tmp_path / "config.yaml"
    transforms = "[{ kind: dedupe, params: { only_here: 1 } }, { kind: dedupe, params: { mode: exact } }]"
    path.write_text(whole(data=f"data: {{ path: a.jsonl, transforms: {transforms} }}"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        validate_yaml(path, deep=True)
    paths = [problem.path for problem in caught.value.problems if "transforms" in problem.path]
    assert paths == ["run.data.transforms[1].params.mode"]


def test_a_recipe_of_ones_own_with_its_params(load: Load) -> None:
    config = load(whole(algorithm="algorithm: { kind: focal_sft, params: { max_steps: 200, lora_rank: 8 } }"))
    assert config.run.algorithm.params == {"max_steps": 200, "lora_rank": 8}


def test_a_harness_of_ones_own(load: Load) -> None:
    config = load(
        whole(
            algorithm="""
            algorithm:
              kind: rl
              params:
                agent_import_path: my_project.agents.ToolUseAgent   # any agent
            """
        )
    )
    assert config.run.algorithm.params == {"agent_import_path": "my_project.agents.ToolUseAgent"}


def test_benchmarks_in_the_loop(load: Load) -> None:
    config = load(
        whole(
            rest="""
            metadata:
              benchmark:
                - { name: val,  path: data/val,  run_every: 50,  metrics: [pass@1], split: val }
                - { name: test, path: data/test, run_every: 200, metrics: [pass@1, pass@3], split: test }
            """
        )
    )
    val, test = config.metadata.benchmark
    assert (val.run_every, val.role, val.metrics) == (50, "val", ["pass@1"])
    assert (test.run_every, test.role, test.metrics) == (200, "test", ["pass@1", "pass@3"])


def test_callbacks(load: Load) -> None:
    config = load(
        whole(
            rest="""
            callbacks:
              - { kind: local_logger }    # on disk
              - { kind: evsys_logger }    # on the dashboard
            """
        )
    )
    assert [callback.kind for callback in config.callbacks] == ["local_logger", "evsys_logger"]


def test_metadata_of_the_project_layout(load: Load) -> None:
    config = load(
        whole(
            rest="""
            metadata:
              hypothesis: "Higher rank, higher pass@1"
              tags: [sft, qwen3_4b]
              success_metric: pass_rate
              benchmark:                        # scored once, after training
                id: bench-0001   # preferred
                # name: composio_eval_v2
                # path: data/benchmark/composio_eval_v2
                breakdown_keys: [toolkit]
            """
        )
    )
    (entry,) = config.metadata.benchmark
    assert (entry.id, entry.run_every, entry.breakdown_keys) == ("bench-0001", None, ["toolkit"])
    assert config.metadata.tags == ["sft", "qwen3_4b"]
    assert config.metadata.success_metric == "pass_rate"


@pytest.mark.parametrize("reference", ["dataset_id: ds-0001", "dataset_name: sft_overdose"])
def test_data_by_id_or_name(load: Load, reference: str) -> None:
    config = load(whole(data=f"data:\n  {reference}\n  transforms: [{{ kind: identity }}]"))
    assert (config.run.data.dataset_id or config.run.data.dataset_name) == reference.partition(": ")[2]


def test_roles_by_tags(load: Load) -> None:
    config = load(
        whole(
            rest="""
            metadata:
              benchmark:
                - name: val_set                 # in the loop
                  id: bench-0001
                  tags: [val]
                  run_every: 50
                  engine: harbor
                - name: full_test               # after training
                  id: bench-0002
                  tags: [test]
                  engine: harbor
            """
        )
    )
    val, test = config.metadata.benchmark
    assert (val.role, val.run_every, val.engine) == ("val", 50, "harbor")
    assert (test.role, test.run_every, test.engine) == ("test", None, "harbor")
