"""The table of built-in extensions: kind -> name -> where it lives, and the extra it needs.

Nothing here is imported until it is used. To add a built-in, write its module and add one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

EXTRA_MODULES: dict[str, tuple[str, ...]] = {
    "hf": ("datasets",),
    "local": ("torch", "transformers", "peft"),
    "tensorboard": ("tensorboard",),
    "tinker": ("tinker",),
    "wandb": ("wandb",),
}
"""Optional dependencies: extra -> the modules whose presence shows that it is installed."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """Where a built-in lives (`module:Class`, below `evsys_sdk`) and what it needs."""

    target: str
    extra: str | None = None
    replaceable: bool = False
    """Whether a project may register its own under this name, as the documented example does with `dedupe`."""

    def load(self) -> Any:
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(f"evsys_sdk.{module}"), attribute)

    @property
    def missing_extra(self) -> str | None:
        """The extra to install before this can be used; None when it is there."""
        modules = EXTRA_MODULES[self.extra] if self.extra else ()
        return self.extra if any(find_spec(module) is None for module in modules) else None

    def is_import_path_of(self, extension: Any) -> bool:
        module, _, attribute = self.target.partition(":")
        return (extension.__module__, getattr(extension, "__qualname__", "")) == (f"evsys_sdk.{module}", attribute)


BUILTINS: dict[str, dict[str, Builtin]] = {
    "transform": {
        "identity": Builtin("data.transforms.identity:Identity"),
        "jsonl_to_chat": Builtin("data.transforms.jsonl_to_chat:JsonlToChat"),
        "openai_chat": Builtin("data.transforms.openai_chat:OpenAIChat"),
        "sharegpt_to_chat": Builtin("data.transforms.sharegpt_to_chat:ShareGPTToChat"),
        "select_fields": Builtin("data.transforms.select_fields:SelectFields"),
        "rename_fields": Builtin("data.transforms.rename_fields:RenameFields"),
        "drop_fields": Builtin("data.transforms.drop_fields:DropFields"),
        "filter": Builtin("data.transforms.filter:Filter"),
        "dedupe": Builtin("data.transforms.dedupe:Dedupe", replaceable=True),
        "shuffle": Builtin("data.transforms.shuffle:Shuffle"),
        "sample": Builtin("data.transforms.sample:Sample"),
        "split": Builtin("data.transforms.split:Split"),
        "add_system_prompt": Builtin("data.transforms.add_system_prompt:AddSystemPrompt"),
        "strip_thinking": Builtin("data.transforms.strip_thinking:StripThinking"),
        "keep_last_turns": Builtin("data.transforms.keep_last_turns:KeepLastTurns"),
        "truncate_chars": Builtin("data.transforms.truncate_chars:TruncateChars"),
        "chat_to_harbor_task": Builtin("data.transforms.chat_to_harbor_task:ChatToHarborTask"),
        "to_prompt_example": Builtin("data.transforms.to_prompt_example:ToPromptExample"),
    },
    "data_store": {
        "local": Builtin("data.stores.local:LocalDataStore"),
        "in_memory": Builtin("data.stores.in_memory:InMemoryDataStore"),
    },
    "backend": {
        "mock": Builtin("backends.mock.backend:MockBackend"),
    },
    "algorithm": {
        "sft": Builtin("algorithms.sft:SFT"),
        "dpo": Builtin("algorithms.dpo:DPO"),
        "combo": Builtin("algorithms.combo:Combo"),
        "mock_sft": Builtin("algorithms.mock_sft:MockSFT"),
    },
    "metric": {
        "exact_match": Builtin("eval.metrics.exact_match:ExactMatch"),
    },
    "log_store": {
        "jsonl": Builtin("record.log_stores.jsonl:JsonlLogStore"),
        "tensorboard": Builtin("record.log_stores.tensorboard:TensorBoardLogStore", extra="tensorboard"),
        "multiplex": Builtin("record.log_stores.multiplex:MultiplexLogStore"),
    },
    "callback": {
        "print_progress": Builtin("record.callbacks.print_progress:PrintProgress"),
        "local_logger": Builtin("record.callbacks.local_logger:LocalLogger"),
        "csv_metrics": Builtin("record.callbacks.csv_metrics:CsvMetrics"),
        "early_stopping": Builtin("record.callbacks.early_stopping:EarlyStopping"),
        "tensorboard_logger": Builtin("record.callbacks.tensorboard_logger:TensorBoardLogger", extra="tensorboard"),
        "wandb_logger": Builtin("record.callbacks.wandb_logger:WandbLogger", extra="wandb"),
    },
}
