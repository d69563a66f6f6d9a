"""Weights on this disk: the files of a base model, and tensors in safetensors, read one at a time with numpy.

    merged = Merged.of(weight_files(base), adapter)      # a base model with an adapter added in
    for name in merged.names(): merged.read(name)

Half-precision brain floats, which numpy does not know, are read as float32 and written back rounded to nearest even.
"""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import atomic_write

CONFIG = "config.json"
"""Of the base model, in the layout of transformers."""
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_INDEX = "model.safetensors.index.json"


def find_base(name: str, override: str | None = None) -> Path:
    """The folder with a base model's files; nothing is downloaded."""
    wanted = override or name
    folder = Path(wanted).expanduser()
    if folder.is_dir():
        return folder
    if find_spec("huggingface_hub") is not None and not wanted.startswith(("/", ".", "~")):
        from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

        try:
            return Path(cast(str, snapshot_download(wanted, local_files_only=True)))
        except Exception as error:  # that package has a dozen of them for "it is not here"
            reason = type(error).__name__
    else:
        reason = "there is no such folder"
    raise DataError(
        f"the base model {wanted!r} is not on this disk ({reason}). Name the folder that has it with "
        "--param base=FOLDER."
    )


def read_config(base: Path) -> dict[str, Any]:
    """The model's own description."""
    try:
        found: Any = json.loads((base / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{base / CONFIG} cannot be read ({error}). Name another folder with --param base.") from None
    if not isinstance(found, dict):
        raise DataError(f"{base / CONFIG} holds no object. Name another folder with --param base.")
    return cast(dict[str, Any], found)


def weight_files(base: Path) -> list[Path]:
    """The safetensors files of a base model, in order."""
    if (base / _INDEX).is_file():
        # The index names a file for every tensor; each file is wanted once, in the order of its first mention.
        shards: dict[str, str] = json.loads((base / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        found = [base / name for name in dict.fromkeys(shards.values())]
    else:
        found = sorted(base.glob("*.safetensors"))
    missing = [path.name for path in found if not path.is_file()]
    if not found or missing:
        raise DataError(
            f"{base}: its weights are not here as safetensors ({', '.join(missing) or 'no such file'}). Name a folder "
            "that has them with --param base."
        )
    return found


def copy_tokenizer(base: Path, folder: Path) -> list[str]:
    """Tokenizer and chat template beside the weights; returns what was copied."""
    there = [name for name in _TOKENIZER if (base / name).is_file()]
    if not there:
        raise DataError(f"{base}: there is no tokenizer in it. Name the base model's folder with --param base.")
    for name in there:
        shutil.copyfile(base / name, folder / name)
    return there


def read_chat_template(base: Path) -> str:
    """The chat template that the tokenizer brings; empty where there is none."""
    file = base / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        settings: Any = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    template = cast(dict[str, Any], settings).get("chat_template") if isinstance(settings, dict) else None
    return template if isinstance(template, str) else ""


type Floats = NDArray[np.float32]

_DTYPES: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LONGEST_HEADER: Final = 100_000_000  # as in the format's own reader: a damaged length must not become a huge read
_PREFIX = "base_model.model."
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies in a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def read(self) -> Floats:
        """The tensor as float32."""
        with self.file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            # Slicing a map copies, so that only this tensor is read, and nothing points into the map once it is closed.
            raw = np.frombuffer(content[self.start : self.end], dtype=_DTYPES[self.dtype])
        # A brain float is the upper half of a float32: moved up by 16 bits it is exactly the same number.
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return raw.astype(np.float32).reshape(self.shape)


def list_tensors(path: Path) -> dict[str, Stored]:
    """What a safetensors file holds, by name."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _LONGEST_HEADER:
                raise ValueError("its header is too long")
            header = cast(dict[str, Any], json.loads(file.read(size)))
            length = path.stat().st_size
        found = {name: _entry(path, name, about, 8 + size) for name, about in header.items() if name != "__metadata__"}
        if any(one.end > length for one in found.values()):
            raise ValueError("it was cut off")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a safetensors file that can be read ({error}). Copy it again.") from None
    return found


def _entry(path: Path, name: str, about: dict[str, Any], offset: int) -> Stored:
    start, end = about["data_offsets"]
    if about["dtype"] not in _DTYPES:
        raise DataError(f"{path}: the tensor {name} is {about['dtype']}, and only F32, F16 and BF16 can be shipped.")
    return Stored(path, name, about["dtype"], tuple(about["shape"]), offset + start, offset + end)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A plain LoRA adapter in PEFT's layout."""

    changes: dict[str, tuple[Stored, Stored]]
    """Weight of the base -> (A, B)."""
    scale: float
    transposed: bool = False
    """Whether the base keeps these weights as (in, out)."""

    @classmethod
    def read(cls, weights: Path, config: dict[str, Any]) -> Adapter:
        """From the tensors of an adapter and PEFT's description of it."""
        there = list_tensors(weights)
        changes: dict[str, tuple[Stored, Stored]] = {}
        for key, a in there.items():
            if key.endswith(".lora_A.weight"):
                layer = key.removesuffix(".lora_A.weight")
                b = there.get(f"{layer}.lora_B.weight")
                if b is None:
                    raise DataError(f"{weights}: {layer} has no lora_B. Use another checkpoint.")
                changes[f"{layer.removeprefix(_PREFIX)}.weight"] = (a, b)
        # What is more than pairs (trained embeddings, magnitudes of DoRA) would be lost by merging without a word.
        if not changes or 2 * len(changes) != len(there):
            raise DataError(f"{weights} holds other tensors than lora_A and lora_B. Ship a plain LoRA adapter.")
        try:
            scale = float(config["lora_alpha"]) / float(config["r"])
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise DataError(f"{weights}: its config has no rank (r) or lora_alpha. Use another checkpoint.") from None
        return cls(changes, scale, config.get("fan_in_fan_out") is True)

    def apply(self, name: str, weight: Floats) -> Floats:
        """A weight of the base with its change added in; any other as it is."""
        if name not in self.changes:
            return weight
        a, b = (one.read() for one in self.changes[name])
        # B is (out, rank) and A is (rank, in), as PEFT keeps them.
        change = np.float32(self.scale) * (b @ a)
        change = change.T if self.transposed else change
        if change.shape != weight.shape:
            raise DataError(
                f"{self.changes[name][0].file}: the change of {name} is {change.shape}, the base model's weight "
                f"{weight.shape}. Name the base that it was trained on with --param base."
            )
        return (weight + change).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Merged:
    """A base model with an adapter added in, tensor by tensor."""

    base: dict[str, Stored]
    adapter: Adapter

    @classmethod
    def of(cls, files: Iterable[Path], adapter: Adapter) -> Merged:
        """Checks that every change has its weight before anything is written."""
        base = {name: tensor for file in files for name, tensor in list_tensors(file).items()}
        # A base with tied weights has no output layer: a change of that is added to a copy of the embedding.
        missing = [name for name in adapter.changes if name not in base and not (name == _HEAD and _EMBEDDING in base)]
        if missing:
            raise DataError(
                f"the base model has no weight {missing[0]!r} that the adapter changes ({len(missing)} in all). Name "
                "the base that it was trained on with --param base."
            )
        return cls(base, adapter)

    @property
    def unties_head(self) -> bool:
        """Whether the output layer, which the base shares with its embedding, becomes one of its own."""
        return _HEAD in self.adapter.changes and _HEAD not in self.base

    def names(self) -> dict[str, tuple[int, ...]]:
        """Every tensor and its shape."""
        found = {name: tensor.shape for name, tensor in self.base.items()}
        return {**found, _HEAD: found[_EMBEDDING]} if self.unties_head else found

    def dtype(self, name: str) -> str:
        """How the base keeps a tensor."""
        return self.base[name if name in self.base else _EMBEDDING].dtype

    def read(self, name: str) -> Floats:
        """One tensor as float32."""
        return self.adapter.apply(name, self.base[name if name in self.base else _EMBEDDING].read())


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str],
                      read: Callable[[str], Floats]) -> None:  # fmt: skip
    """Write tensors one at a time, so that memory holds the largest and not all."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + int(np.prod(shape)) * (4 if dtypes[name] == "F32" else 2)
        header[name] = {"dtype": dtypes[name], "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    # Padded with blanks, which JSON allows: tensors begin at a multiple of eight, where readers can map them.
    head += b" " * (-len(head) % 8)
    with atomic_write(path) as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in shapes:
            file.write(encode(read(name), dtypes[name]))


def encode(tensor: Floats, dtype: str) -> bytes:
    """A tensor as the bytes of a safetensors file."""
    plain = np.ascontiguousarray(tensor, dtype="<f4")
    if dtype == "F16":
        return round_half(plain).tobytes()
    if dtype == "BF16":
        bits = plain.view(np.uint32)
        # Nearest, ties to even: this carries into the upper half exactly when it should. A NaN is set apart, because
        # the carry could make an infinity of it.
        rounded = bits + 0x7FFF + ((bits >> 16) & 1)
        return np.where(np.isnan(plain), 0x7FC0, rounded >> 16).astype("<u2").tobytes()
    return plain.tobytes()


def round_half(tensor: Floats) -> NDArray[np.float16]:
    """Rounded to half precision; what that cannot hold is an error, not infinity."""
    if tensor.size and float(np.abs(tensor).max()) > 65504:  # the largest number that half precision has
        raise DataError("a weight is larger than half precision can hold. Ship it with --param dtype=float32.")
    return tensor.astype("<f2")
