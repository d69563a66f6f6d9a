"""The base model with the adapter added in: `merged_safetensors`, a model that any loader of transformers models takes,
and `gguf`, one file for llama.cpp and what is built on it, written here for Llama and Qwen shapes.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ...config.base import Strict
from ...errors import DataError, MissingExtraError
from ...record.values import number, part
from ..deployer import Built
from ..source import Source
from ..weights import copy_tokenizer, find_base, merge_adapter, read_chat_template, read_config

type Floats = NDArray[np.float32]


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
        merged = merge_adapter(source, base, self.cfg.dtype)
        merged.save_pretrained(str(folder))
        copy_tokenizer(base, folder)
        return Built(facts={"dtype": self.cfg.dtype, "tensors": len(merged.state_dict())})


_ARCHITECTURES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "rms_norm_eps", "vocab_size")


class GGUF:
    """The base model with the adapter added in, as one GGUF file (Llama, Mistral, Qwen2, Qwen3)."""

    name: ClassVar[str] = "gguf"
    library: ClassVar[str] = "gguf"

    class Config(Strict):
        """Params of `gguf`."""

        base: str | None = None
        """Folder of the base model, where its name alone does not lead there."""
        outtype: Literal["f16", "q8_0"] = "f16"
        """Half precision, or eight bits with a scale for every 32 weights."""
        converter: str | None = None
        """Path of llama.cpp's convert_hf_to_gguf.py, to let it convert the merged model, of any shape it knows."""

    def __init__(self, **params: Any) -> None:
        self.cfg = self.Config(**params)

    def build(self, source: Source, folder: Path) -> Built:
        source.require_adapter(self.name)
        path = folder / f"model-{self.cfg.outtype}.gguf"
        if self.cfg.converter:
            return self._convert(source, path, Path(self.cfg.converter))
        base = find_base(source.base_model, self.cfg.base)
        config = read_config(base)
        writer = _Writer.open(path, config, self.cfg.outtype)
        writer.describe(source.detail.view.name, Vocabulary.read(base, int(config["vocab_size"])), base)
        writer.write(merge_adapter(source, base, "float32"))
        return Built(facts={"outtype": self.cfg.outtype, "architecture": writer.arch_name})

    def _convert(self, source: Source, path: Path, converter: Path) -> Built:
        if not converter.is_file():
            raise DataError(f"--param converter: {converter} is no file. Name llama.cpp's convert_hf_to_gguf.py.")
        with tempfile.TemporaryDirectory(dir=path.parent) as merged:
            MergedSafetensors(base=self.cfg.base).build(source, Path(merged))
            command = [sys.executable, str(converter), merged, "--outfile", str(path), "--outtype", self.cfg.outtype]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not path.is_file():
            last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            raise DataError(f"{converter} failed with exit code {done.returncode}: {last}")
        return Built(facts={"outtype": self.cfg.outtype, "converter": str(converter)})


class _Writer:
    """One GGUF file being written."""

    def __init__(self, gguf: Any, path: Path, arch: Any, config: dict[str, Any], outtype: str) -> None:
        self.gguf, self.config, self.outtype = gguf, config, outtype
        self.arch_name: str = gguf.MODEL_ARCH_NAMES[arch]
        # Without a file in between, the writer holds every tensor in memory until the last one is there.
        self.out = gguf.GGUFWriter(path, self.arch_name, use_temp_file=True)
        self.heads, layers = int(config["num_attention_heads"]), int(config["num_hidden_layers"])
        self.heads_kv = int(config.get("num_key_value_heads") or self.heads)
        self.head_dim = int(config.get("head_dim") or int(config["hidden_size"]) // self.heads)
        self.interleaved = arch == gguf.MODEL_ARCH.LLAMA
        self.names = gguf.get_tensor_name_map(arch, layers)

    @classmethod
    def open(cls, path: Path, config: dict[str, Any], outtype: str) -> _Writer:
        """Refuses shapes that are not written here, before anything is."""
        try:
            gguf: Any = import_module("gguf")
        except ImportError:
            raise MissingExtraError("deployer 'gguf'", "local") from None
        kind = config.get("model_type")
        known = _ARCHITECTURES.get(str(kind))
        if known is None:
            raise DataError(
                f"a model of type {kind!r} is not written as GGUF here; {', '.join(_ARCHITECTURES)} are. Name "
                "llama.cpp's convert_hf_to_gguf.py with --param converter=FILE."
            )
        if missing := [name for name in _SHAPE if number(config.get(name)) is None]:
            raise DataError(f"the base model's config has no {missing[0]}, which GGUF needs. Use another base.")
        return cls(gguf, path, getattr(gguf.MODEL_ARCH, known), config, outtype)

    def describe(self, name: str, vocabulary: Vocabulary, base: Path) -> None:
        """Everything but the tensors."""
        out, config = self.out, self.config
        out.add_name(name)
        out.add_file_type(getattr(self.gguf.LlamaFileType, f"MOSTLY_{self.outtype.upper()}"))
        out.add_context_length(int(config.get("max_position_embeddings") or 2048))
        out.add_embedding_length(int(config["hidden_size"]))
        out.add_block_count(int(config["num_hidden_layers"]))
        out.add_feed_forward_length(int(config["intermediate_size"]))
        out.add_head_count(self.heads)
        out.add_head_count_kv(self.heads_kv)
        out.add_key_length(self.head_dim)
        out.add_value_length(self.head_dim)
        out.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
        out.add_rope_dimension_count(self.head_dim)
        out.add_rope_freq_base(self._rope("rope_theta", 10_000.0))
        out.add_vocab_size(int(config["vocab_size"]))
        out.add_tokenizer_model("gpt2")  # what GGUF calls every BPE over bytes
        out.add_tokenizer_pre(vocabulary.splitter)
        out.add_token_list(vocabulary.tokens)
        out.add_token_types(vocabulary.types)
        out.add_token_merges(vocabulary.merges)
        for mark in ("bos", "eos", "pad"):
            token = config.get(f"{mark}_token_id")
            # A model may end in several ways; GGUF has room for one.
            token = token[0] if isinstance(token, list) else token  # pyright: ignore[reportUnknownVariableType]
            if isinstance(token, int):
                getattr(out, f"add_{mark}_token_id")(token)
        out.add_add_bos_token(False)  # the chat template writes it where the model was trained with one
        if template := read_chat_template(base):
            out.add_chat_template(template)

    def write(self, merged: Any) -> None:
        """Every tensor of a model, and the file."""
        tensors: dict[str, Any] = merged.state_dict()
        if merged.config.tie_word_embeddings:
            tensors.pop("lm_head.weight", None)
        for name, tensor in tensors.items():
            target = self.names.get_name(name, try_suffixes=(".weight", ".bias"))
            if target is None:
                raise DataError(f"the tensor {name!r} has no place in a GGUF file of this kind. Use --param converter.")
            self._add(target, self._arrange(name, tensor.numpy()))
        if (factors := self._rope_factors()) is not None:
            self._add("rope_freqs.weight", factors)
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()

    def _add(self, name: str, tensor: Floats) -> None:
        kinds = self.gguf.GGMLQuantizationType
        # Norms and biases are few and decide much: they stay float32, as llama.cpp's own converter has it.
        if tensor.ndim == 1:
            self.out.add_tensor(name, tensor)
        # Blocks of 32 weights share a scale; a row that is no multiple of that stays in half precision.
        elif self.outtype == "q8_0" and tensor.shape[-1] % 32 == 0:
            packed = self.gguf.quants.quantize(tensor, kinds.Q8_0)
            self.out.add_tensor(name, packed, raw_dtype=kinds.Q8_0)
        else:
            if float(np.abs(tensor).max()) > 65504:
                raise DataError(f"{name} has a weight that half precision cannot hold. Use another base or checkpoint.")
            self.out.add_tensor(name, tensor.astype("<f2"))

    def _arrange(self, name: str, tensor: Floats) -> Floats:
        """llama.cpp turns neighbours of a head where transformers turns its halves, so Llama's rows change places."""
        if not self.interleaved or not name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            return tensor
        heads = self.heads if ".q_proj." in name else self.heads_kv
        shape = (heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return np.ascontiguousarray(tensor.reshape(shape).swapaxes(1, 2).reshape(tensor.shape))

    def _rope(self, name: str, default: float) -> float:
        # Newer versions of transformers keep these in a block of their own, older ones next to everything else.
        for place in (part(self.config, "rope_parameters"), self.config):
            if (value := number(place.get(name))) is not None:
                return value
        return default

    def _rope_factors(self) -> Floats | None:
        """How Llama 3 stretches its positions, as the tensor by which llama.cpp divides the frequencies."""
        scaling = part(self.config, "rope_parameters") or part(self.config, "rope_scaling")
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return None
        if kind != "llama3":
            raise DataError(f"rope_type {kind!r} is not written as GGUF here. Use --param converter.")
        factor, low, high, old_length = (
            float(scaling[key])
            for key in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        )
        factors: list[float] = []
        for dimension in range(0, self.head_dim, 2):
            wavelength = 2 * math.pi * self._rope("rope_theta", 10_000.0) ** (dimension / self.head_dim)
            # Short waves tell neighbours apart and stay; long ones are stretched; in between one fades into the other.
            if wavelength < old_length / high:
                factors.append(1.0)
            elif wavelength > old_length / low:
                factors.append(factor)
            else:
                smooth = (old_length / wavelength - low) / (high - low)
                factors.append(1 / ((1 - smooth) / factor + smooth))
        return np.array(factors, dtype=np.float32)


NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""GGUF's types of tokens."""
_SPLITTERS: Final = (
    # How llama.cpp calls the ways in which text is cut before the merges; told by what stands in the tokenizer.
    (r"\p{N}{1,3}", "llama-bpe"),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", "qwen2"),
    ('"individual_digits": true', "smollm"),
)
_NO_MERGE: Final = "\u0120 \u0120"
"""llama.cpp refuses a list without any. In a vocabulary of bytes this one makes no token, so it changes nothing."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a GGUF file says about its tokenizer."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    splitter: str

    @classmethod
    def read(cls, base: Path, size: int) -> Vocabulary:
        """From `tokenizer.json`; other kinds of tokenizers are refused."""
        path = base / "tokenizer.json"
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            model = content["model"]
            if model["type"] != "BPE" or "ByteLevel" not in json.dumps(content.get("decoder")):
                raise DataError(
                    f"{path}: this tokenizer is {model['type']} without bytes as letters, which is not written here. "
                    "Name llama.cpp's convert_hf_to_gguf.py with --param converter=FILE."
                )
            tokens = {int(id): text for text, id in cast(dict[str, int], model["vocab"]).items()}
            merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read ({type(error).__name__}: {error}). Use another base.") from None
        types = dict.fromkeys(tokens, NORMAL)
        for added in content.get("added_tokens") or ():
            tokens[added["id"]] = added["content"]
            types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
        if max(tokens) >= size:
            raise DataError(f"{path} has the token {max(tokens)}, and the model only {size}. Use another base.")
        ids = range(size)  # a model may have more rows than its tokenizer has tokens
        return cls(
            [tokens.get(id, f"[PAD{id}]") for id in ids],
            [types.get(id, UNUSED) for id in ids],
            merges or [_NO_MERGE],
            _splitter(content),
        )


def _splitter(content: dict[str, Any]) -> str:
    cut = content.get("pre_tokenizer")
    text = json.dumps(cut)
    patterns = text + "".join(_patterns(cut))
    return next((name for mark, name in _SPLITTERS if mark in patterns), "gpt-2")


def _patterns(value: Any) -> list[str]:
    """Every regular expression in a description, as it is without JSON's escapes."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        own = [fields["Regex"]] if isinstance(fields.get("Regex"), str) else []
        return [*own, *(one for inner in fields.values() for one in _patterns(inner))]
    if isinstance(value, list):
        return [one for inner in cast(list[Any], value) for one in _patterns(inner)]
    return []
