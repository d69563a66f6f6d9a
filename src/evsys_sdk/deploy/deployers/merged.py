"""Deployers that merge the adapter into the base model: `merged_safetensors` in the layout of transformers, and `gguf`,
one file for llama.cpp, made with llama.cpp's converter.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...config.base import Strict
from ...errors import DataError
from ..deployer import Built
from ..source import Source
from ..weights import copy_tokenizer, find_base, merge_adapter


class MergedSafetensors:
    """The base model with the adapter merged in, as a transformers model."""

    name: ClassVar[str] = "merged_safetensors"
    library: ClassVar[str] = "transformers"

    class Config(Strict):
        """Params of `merged_safetensors`."""

        base: str | None = None
        """Folder of the base model, if it cannot be found by its name."""
        dtype: Literal["as_base", "float32", "float16", "bfloat16"] = "as_base"
        """Precision of the merged weights."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        source.require_adapter(self.name)
        base = find_base(source.base_model, self.cfg.base)
        merged = merge_adapter(source, base, self.cfg.dtype)
        merged.save_pretrained(str(folder))
        copy_tokenizer(base, folder)
        return Built(facts={"dtype": self.cfg.dtype, "tensors": len(merged.state_dict())})


class GGUF:
    """The base model with the adapter merged in, as one GGUF file; needs llama.cpp's convert_hf_to_gguf.py."""

    name: ClassVar[str] = "gguf"
    library: ClassVar[str] = "gguf"

    class Config(Strict):
        """Params of `gguf`."""

        base: str | None = None
        """Folder of the base model, if it cannot be found by its name."""
        outtype: Literal["f32", "f16", "bf16", "q8_0"] = "f16"
        """Precision of the weights, in llama.cpp's notation."""
        converter: str = "convert_hf_to_gguf.py"
        """Path of llama.cpp's converter."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        source.require_adapter(self.name)
        converter, path = Path(self.cfg.converter), folder / f"model-{self.cfg.outtype}.gguf"
        if not converter.is_file():
            raise DataError(
                f"the converter {converter} is no file. Name convert_hf_to_gguf.py of a llama.cpp checkout with "
                "--param converter=FILE."
            )
        with tempfile.TemporaryDirectory(dir=folder) as merged:
            MergedSafetensors(base=self.cfg.base).build(source, Path(merged))
            command = [sys.executable, str(converter), merged, "--outfile", str(path), "--outtype", self.cfg.outtype]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode or not path.is_file():
            last = (process.stderr.strip() or process.stdout.strip() or "it printed nothing").splitlines()[-1]
            raise DataError(f"{converter} failed with exit code {process.returncode}: {last}")
        return Built(facts={"outtype": self.cfg.outtype, "converter": str(converter)})
