"""The table of built-in extensions: kind -> name -> import path and required extra.

Modules are imported on first use. To add a built-in, write its module and add one line.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

_HERE = os.path.dirname(__file__)

EXTRA_MODULES: dict[str, tuple[str, ...]] = {
    "claude": (),
    "dashboard": ("fastapi", "sqlalchemy"),
    "e2b": ("e2b",),
    "fireworks": ("fireworks", "transformers"),
    "frontier": (),
    "gemini": (),
    "gepa": ("gepa",),
    "grammar": ("llguidance",),
    "harbor": ("harbor",),
    "hf": ("datasets",),
    "inspect": ("inspect_ai", "zstandard"),
    "lm-eval": ("lm_eval",),
    "local": ("torch", "transformers"),
    "openai": (),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
    "reasoning-gym": ("reasoning_gym",),
    "plot": ("matplotlib",),
    "postgres": ("psycopg",),
    "server": ("starlette", "tinker", "uvicorn"),
    "tensorboard": ("tensorboard",),
    "tinker": ("tinker",),
    "verifiers": ("verifiers",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Optional dependencies: extra -> modules whose presence shows that it is installed."""


class Builtin(NamedTuple):
    """The import path of a built-in (`module:Class`, below `evsys_sdk`) and its extra."""

    target: str
    extra: str | None = None
    replaceable: bool = False
    """Whether a project may register another class under this name, e.g. `dedupe` in the documentation."""
    family: str = ""
    """Pattern of further names; the class creates their extensions with `member(name)`."""

    def has_member(self, name: str) -> bool:
        return bool(self.family) and re.fullmatch(self.family, name) is not None

    def load(self) -> Any:
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(f"evsys_sdk.{module}"), attribute)

    def read_summary(self) -> str | None:
        """First line of its docstring, read from the source, because importing all modules takes ten times as long.

        None without readable source.
        """
        module, _, attribute = self.target.partition(":")
        try:
            with open(f"{_HERE}/{module.replace('.', '/')}.py", encoding="utf-8") as file:
                source = file.read()
        except OSError:
            return None
        start = max(source.find(f"\nclass {attribute}{after}") for after in "(:")
        head, _, doc = source[start:].partition('"""')
        if start >= 0 and head.rstrip().endswith(":"):
            return doc.partition('"""')[0].strip().split("\n", 1)[0]
        return None

    @property
    def missing_extra(self) -> str | None:
        """The missing extra; None if it is installed."""
        modules = EXTRA_MODULES[self.extra] if self.extra else ()
        return self.extra if any(find_spec(module) is None for module in modules) else None

    def is_import_path_of(self, extension: Any) -> bool:
        module, _, attribute = self.target.partition(":")
        return (extension.__module__, getattr(extension, "__qualname__", "")) == (f"evsys_sdk.{module}", attribute)


BUILTINS: dict[str, dict[str, Builtin]] = {
    "transform": {
        "identity": Builtin("data.transforms.rows:IdentityRows"),
        "jsonl_to_chat": Builtin("data.transforms.to_chat:JsonlToChat"),
        "openai_chat": Builtin("data.transforms.to_chat:OpenAIChat"),
        "sharegpt_to_chat": Builtin("data.transforms.to_chat:ShareGPTToChat"),
        "rename_fields": Builtin("data.transforms.fields:RenameFields"),
        "drop_fields": Builtin("data.transforms.fields:DropFields"),
        "map_values": Builtin("data.transforms.fields:MapValues"),
        "filter": Builtin("data.transforms.filter:FilterRows"),
        "dedupe": Builtin("data.transforms.rows:Dedupe", replaceable=True),
        "shuffle": Builtin("data.transforms.rows:Shuffle"),
        "sample": Builtin("data.transforms.rows:SampleRows"),
        "split": Builtin("data.transforms.rows:Split"),
        "add_system_prompt": Builtin("data.transforms.turns:AddSystemPrompt"),
        "strip_thinking": Builtin("data.transforms.turns:StripThinking"),
        "chat_to_harbor_task": Builtin("data.transforms.to_tasks:ChatToHarborTask"),
        "to_prompt_example": Builtin("data.transforms.to_tasks:ToPromptExample"),
    },
    "data_store": {
        "local": Builtin("data.stores.local:LocalDataStore"),
        "in_memory": Builtin("data.stores.in_memory:InMemoryDataStore"),
    },
    "backend": {
        "mock": Builtin("backends.mock.backend:MockBackend"),
        "tinker": Builtin("backends.tinker.backend:TinkerBackend", extra="tinker"),
        "skyrl": Builtin("backends.tinker.backend:SkyRLBackend", extra="tinker"),
        "fireworks": Builtin("backends.fireworks.backend:FireworksBackend", extra="fireworks"),
        "local": Builtin("backends.local.backend:LocalBackend", extra="local"),
    },
    "environment": {
        "none": Builtin("rollouts.environment:NoEnvironment"),
        "harbor:docker": Builtin(
            "rollouts.harbor.native:NativeEnvironment", extra="harbor", family=r"harbor:[a-z][a-z0-9_-]*"
        ),
        "bwrap": Builtin("rollouts.environments.bwrap:BwrapEnvironment"),
        "unsafe_host": Builtin("rollouts.environments.unsafe_host:UnsafeHostEnvironment"),
    },
    "agent": {
        "chat": Builtin("rollouts.agents.chat:ChatAgent"),
        "tools": Builtin("rollouts.agents.tools:ToolsAgent"),
        "bash": Builtin("rollouts.agents.bash:BashAgent"),
        "program": Builtin("rollouts.agents.program:ProgramAgent"),
        "verifiers": Builtin("rollouts.agents.verifiers:VerifiersAgent", extra="verifiers"),
        "terminus_2": Builtin("rollouts.harbor.native:Terminus2", extra="harbor"),
    },
    "inference_client": {
        "mock": Builtin("inference.clients.sampled:MockClient"),
        "tinker": Builtin("inference.clients.sampled:TinkerClient", extra="tinker"),
        "local": Builtin("inference.clients.sampled:LocalClient", extra="local"),
        "openai": Builtin("inference.clients.openai:OpenAIClient"),
        "claude": Builtin("inference.clients.openai:ClaudeClient"),
        "gemini": Builtin("inference.clients.openai:GeminiClient"),
    },
    "algorithm": {
        "sft": Builtin("algorithms.sft:SFT"),
        "dpo": Builtin("algorithms.dpo:DPO"),
        "rl": Builtin("algorithms.rl:RL"),
        "sdft": Builtin("algorithms.sdft:SDFT"),
        "opd": Builtin("algorithms.opd:OPD"),
        "combo": Builtin("algorithms.combo:Combo"),
        "script": Builtin("algorithms.script:Script"),
        "mock_sft": Builtin("algorithms.sft:MockSFT"),
        "mock_rl": Builtin("algorithms.rl:MockRL"),
        "local_sft": Builtin("algorithms.local_trl:LocalSFT", extra="local"),
        "local_rl": Builtin("algorithms.local_trl:LocalRL", extra="local"),
        "gepa_prompt": Builtin("algorithms.gepa_prompt:GepaPrompt", extra="gepa"),
    },
    "verifier": {
        "exact_match": Builtin("eval.verifiers.text_match:ExactMatch"),
        "contains": Builtin("eval.verifiers.text_match:Contains"),
        "regex_match": Builtin("eval.verifiers.regex_match:RegexMatch"),
        "numeric_match": Builtin("eval.verifiers.numeric_match:NumericMatch"),
        "json_match": Builtin("eval.verifiers.json_match:JsonMatch"),
        "tool_calls_match": Builtin("eval.verifiers.tool_calls_match:ToolCallsMatch"),
        "format_only": Builtin("eval.verifiers.format_only:FormatOnly"),
        "harbor_tests": Builtin("eval.verifiers.harbor_tests:HarborTests"),
        "python_tests": Builtin("eval.verifiers.python_tests:PythonTests"),
        "llm_judge": Builtin("eval.verifiers.llm_judge:LLMJudge"),
        "e2b": Builtin("eval.verifiers.e2b:E2B", extra="e2b"),
        "reasoning_gym": Builtin("eval.verifiers.reasoning_gym:ReasoningGym", extra="reasoning-gym"),
        "inspect": Builtin("eval.verifiers.inspect:Inspect", extra="inspect"),
        "lm_eval": Builtin("eval.verifiers.lm_eval:LmEval", extra="lm-eval"),
        "verifiers": Builtin("eval.verifiers.verifiers:Verifiers", extra="verifiers"),
    },
    "metric": {
        "mean_reward": Builtin("eval.metrics.rewards:MeanReward"),
        "avg": Builtin("eval.metrics.rewards:MeanReward"),
        "pass_rate": Builtin("eval.metrics.passing:PassRate"),
        "pass_at_k": Builtin("eval.metrics.passing:PassAtK"),
        "pass@k": Builtin("eval.metrics.passing:PassAtK", family=r"pass@[1-9][0-9]{0,5}", replaceable=True),
        "pass^k": Builtin("eval.metrics.passing:PassHatK", family=r"pass\^[1-9][0-9]{0,5}", replaceable=True),
        "exact_match": Builtin("eval.metrics.rewards:ExactMatchRate"),
        "toolkit_match": Builtin("eval.metrics.rewards:ToolkitMatch"),
        "cost_per_task": Builtin("eval.metrics.economics:CostPerTask"),
        "time_per_task": Builtin("eval.metrics.economics:TimePerTask"),
        "tokens_per_task": Builtin("eval.metrics.economics:TokensPerTask"),
        "cost_per_correct": Builtin("eval.metrics.economics:CostPerCorrect"),
        "time_per_correct": Builtin("eval.metrics.economics:TimePerCorrect"),
        "tokens_per_correct": Builtin("eval.metrics.economics:TokensPerCorrect"),
    },
    "launcher": {
        "local": Builtin("experiment.launchers.local:LocalLauncher"),
        "ray": Builtin("experiment.launchers.ray:RayLauncher", extra="ray"),
        "slurm": Builtin("experiment.launchers.slurm:SlurmLauncher"),
    },
    "log_store": {
        "jsonl": Builtin("observers.log_stores.jsonl:JsonlLogStore"),
        "tensorboard": Builtin("observers.log_stores.tensorboard:TensorBoardLogStore", extra="tensorboard"),
        "multiplex": Builtin("observers.log_stores.multiplex:MultiplexLogStore"),
    },
    "callback": {
        "print_progress": Builtin("observers.callbacks.print_progress:PrintProgress"),
        "local_logger": Builtin("observers.callbacks.local_logger:LocalLogger"),
        "early_stopping": Builtin("observers.callbacks.early_stopping:EarlyStopping"),
        "tensorboard_logger": Builtin("observers.callbacks.tensorboard_logger:TensorBoardLogger", extra="tensorboard"),
        "evsys_logger": Builtin("dashboard.client.evsys_logger:EvsysLogger"),
        "trackio_logger": Builtin("observers.callbacks.trackio_logger:TrackioLogger", extra="trackio"),
        "wandb_logger": Builtin("observers.callbacks.wandb_logger:WandbLogger", extra="wandb"),
    },
    "deployer": {
        "peft_dir": Builtin("deploy.deployers.adapters:PeftDir"),
        "merged_safetensors": Builtin("deploy.deployers.merged:MergedSafetensors"),
        "gguf": Builtin("deploy.deployers.merged:GGUF"),
        "vllm": Builtin("deploy.deployers.adapters:VLLM"),
        "hf_hub": Builtin("deploy.deployers.hf_hub:HfHub", extra="hf"),
        "fireworks": Builtin("deploy.deployers.fireworks:Fireworks"),
        "openai_server": Builtin("deploy.deployers.openai_server:OpenAIServer"),
    },
}

REMOTE_DATA = Builtin("dashboard.client.remote_data:DashboardSource")
"""The sources of datasets and benchmarks outside of the project."""
