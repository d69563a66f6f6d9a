"""`merged_safetensors`: one whole model that any loader of transformers models takes, no adapter left."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from ...config.base import Strict
from ...files import write_json
from ..base_model import CONFIG, copy_tokenizer, find_base, read_config, weight_files
from ..deployer import Built
from ..source import ADAPTER, Source, read_adapter_config
from ..tensors import Adapter, Merged, write_safetensors

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class MergedSafetensors:
    """The base model with the adapter added in, as one model of transformers."""

    name: ClassVar[str] = "merged_safetensors"
    library: ClassVar[str] = "transformers"

    class Config(Strict):
        """Params of `merged_safetensors`."""

        base: str | None = None
        """Folder of the base model, where its name alone does not lead there."""
        dtype: Literal["as_base", "float32", "float16", "bfloat16"] = "as_base"
        """Precision of the merged weights."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        source.require_adapter(self.name)
        base = find_base(source.base_model, self.cfg.base)
        config = read_config(base)
        adapter = Adapter.read(source.weights / ADAPTER, read_adapter_config(source))
        merged = Merged.of(weight_files(base), adapter)
        shapes = merged.names()
        dtypes = {name: _DTYPES.get(self.cfg.dtype) or merged.dtype(name) for name in shapes}
        write_safetensors(folder / "model.safetensors", shapes, dtypes, merged.read)
        if merged.unties_head:
            config["tie_word_embeddings"] = False
        if self.cfg.dtype != "as_base":
            config.pop("torch_dtype", None)
            config["dtype"] = self.cfg.dtype
        write_json(folder / CONFIG, config)
        copy_tokenizer(base, folder)
        return Built(facts={"dtype": self.cfg.dtype, "changed": len(adapter.changes), "tensors": len(shapes)})
