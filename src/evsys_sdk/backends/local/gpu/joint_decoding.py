"""Decoding with several adapters on a GPU: like `graph_decoding`, with the base's own weights and a bank of adapters.

Each row of the bank holds all matrices of an adapter in bfloat16, at a fixed address. The first programs of a product's
kernel compute the low-rank states of all rows; the other programs add them to the product.
"""

# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import memory
from ..base.fused_layers import Layer
from ..base.loading import Base
from ..base.lora import LoRAAdapter
from ..sampling.lanes import Lane
from ..sampling.snapshot import Snapshot
from .fused_body import gpu_layers
from .graph_decoding import GraphDecoder, Lease, Space, plain_in_place
from .prompt_graphs import LinearFor

_ROWS_OF_BANK = 16


def joint_graph_decoder(base: Base, snapshot: Snapshot) -> GraphDecoder | None:
    """Return a decoder for snapshots with the form of this one; None if the base does not support it."""
    layers, adapter = gpu_layers(base), snapshot.template
    if layers is None or base.key.four_bit or adapter is None or not _can_be_added(layers):
        return None
    try:
        return JointGraphDecoder(base, _lease(base, layers, adapter))
    except Exception as error:
        if not memory.is_out_of_memory(error):
            raise
        memory.release_unused()
        return None


def _lease(base: Base, layers: Sequence[Layer], adapter: LoRAAdapter) -> Lease:
    names = frozenset({f"joint {hash(adapter.form)}"})
    free = next((space for space in base.spaces if space.names == names), None)
    if free is not None:
        base.spaces.remove(free)
        return Lease(free, base)
    space = Space(base, layers, None)
    space.names, space.bank = names, Bank(base, layers, adapter)
    return Lease(space, base)


def _can_be_added(layers: Sequence[Layer]) -> bool:
    """Whether each program has columns of one linear layer only, and all matrices start at multiples of 16."""
    from .decode_kernels import COLUMNS

    singles = [linear for linears in layers[0].linears.values() for linear in linears]
    return not any(linear.out_features % COLUMNS or linear.in_features % 16 for linear in singles)


class Bank:
    """The adapters of all samples of a joint batch."""

    def __init__(self, base: Base, layers: Sequence[Layer], adapter: LoRAAdapter) -> None:
        size = sum(tensor.numel() for tensor in adapter.tensors())
        self.weights = torch.zeros(_ROWS_OF_BANK, size, dtype=base.key.dtype, device=base.device)
        self.used = torch.zeros(1, dtype=torch.int32, device=base.device)
        """Number of first rows in use."""
        self.most = 1
        """A power of 2 that is at least `used` and never shrinks; graphs are captured for it."""
        self.rank, self.scale = adapter.rank, adapter.scale
        self._owners: list[Any] = [None] * _ROWS_OF_BANK
        parts = iter(adapter.split(self.weights))
        self.parts = {name: (next(parts), next(parts)) for name in adapter.weights}
        """(rows of the bank, ...) for each layer."""
        self.places = {
            id(getattr(layer, which)): self._places(linears)
            for layer in layers
            for which, linears in layer.linears.items()
        }
        """For each product, the offsets of A and B of its linear layers in a row, and the ends of their columns."""

    def place(self, owners: Sequence[Snapshot]) -> list[int]:
        """Return the row of each snapshot; copy the adapters of new snapshots into the bank."""
        present = [None if reference is None else reference() for reference in self._owners]
        missing = [owner for owner in owners if owner not in present]
        free = [row for row, owner in enumerate(present) if owner is None or owner not in owners]
        for owner, row in zip(missing, free, strict=False):
            present[row], self._owners[row] = owner, weakref.ref(owner)
            if owner.adapter is None:
                self.weights[row].zero_()
            else:
                self.weights[row].copy_(owner.adapter.lay_flat())
        rows = [present.index(owner) for owner in owners]
        self.used.fill_(max(rows) + 1)
        self.most = max(self.most, 1 << max(rows).bit_length())
        return rows

    def linear(self, owners: Tensor) -> Any:
        """Return the `Linear` for prefill; `owners` is the bank row of each token's adapter."""
        from .bank_kernels import add_adapters

        def product(layer: Layer, which: str, x: Tensor, onto: Tensor | None) -> Tensor:
            output = plain_in_place(layer, which, x, onto)
            add_adapters(self, getattr(layer, which), x, output, owners)
            return output

        return product

    def _places(self, linears: Sequence[Any]) -> tuple[Tensor | None, tuple[int, int]]:
        ends = np.cumsum([linear.out_features for linear in linears]).tolist()
        pairs = [self.parts.get(linear.name) for linear in linears]
        if not any(pairs):
            return None, (ends[-1], ends[-1])
        table = [[-1, -1] if pair is None else [part.storage_offset() for part in pair] for pair in pairs]
        first, second, *_ = [*ends, ends[-1]]
        return torch.tensor(table, dtype=torch.int64, device=self.weights.device), (first, second)


class JointGraphDecoder(GraphDecoder):
    """Decodes samples of several snapshots with one graph."""

    most_owners = _ROWS_OF_BANK

    def __init__(self, base: Base, lease: Lease) -> None:
        super().__init__(base, lease)
        self._bank: Bank = self._space.bank
        self._rows: list[int] = []
        """Bank row of each slot's adapter."""
        self._placed: list[Lane] = []

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Reserve the cache, and copy the adapters of these lanes into the bank."""
        super().reserve(lanes)
        if self._placed == lanes:
            return
        self._placed = list(lanes)
        owners = list(dict.fromkeys(lane.request.owner for lane in lanes))
        rows = dict(zip(owners, self._bank.place(owners), strict=True))
        self._rows = self._bank_rows = [rows[lane.request.owner] for lane in lanes]

    def _owners_of(self, slots: Sequence[int]) -> list[int]:
        return [self._rows[slot] for slot in slots]

    @property
    def _linear_for(self) -> LinearFor:
        return self._bank.linear
