"""Decoding with several adapters on a GPU: as `graph_decoding`, on the base's own weights, with a bank of adapters.

The bank has a row for each adapter, all of its matrices one after another in bfloat16, always in the same place. A
product of the step is followed by one kernel, which adds to each sample's row what its adapter has to add: first the
low-rank states of the row, then their product with the columns that a program is responsible for. The low-rank states
are computed once more by each program, which takes less time than another kernel would.
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
from ..base.lora import Adapter
from ..sampling.lanes import Lane
from ..sampling.snapshot import Snapshot
from .fused_body import gpu_layers, run_body
from .graph_decoding import GraphDecoder, Lease, Space, plain_in_place

_ROWS_OF_BANK = 16
_WIDEST_TILE, _NARROWEST_TILE = 128, 16


def joint_graph_decoder(base: Base, snapshot: Snapshot) -> GraphDecoder | None:
    """A decoder for snapshots of the form of this one; None where the plain one has to do."""
    layers, adapter = gpu_layers(base), snapshot.template
    if layers is None or base.key.four_bit or adapter is None or _tile(layers, adapter) < _NARROWEST_TILE:
        return None
    try:
        return JointGraphDecoder(base, _lease(base, layers, adapter))
    except Exception as error:
        if not memory.is_out_of_memory(error):
            raise
        memory.release_unused()
        return None


def _lease(base: Base, layers: Sequence[Layer], adapter: Adapter) -> Lease:
    names = frozenset({f"joint {hash(adapter.form)}"})
    free = next((space for space in base.spaces if space.names == names), None)
    if free is not None:
        base.spaces.remove(free)
        return Lease(free, base)
    space = Space(layers, None)
    space.names, space.bank = names, Bank(base, layers, adapter)
    return Lease(space, base)


def _tile(layers: Sequence[Layer], adapter: Adapter) -> int:
    """The widest range of columns that never reaches over two layers."""
    widths = {linear.out_features for linears in layers[0].linears.values() for linear in linears}
    tile = _WIDEST_TILE
    while tile > 1 and any(width % tile for width in widths):
        tile //= 2
    return tile


class Bank:
    """The adapters of all samples that are decoded together."""

    def __init__(self, base: Base, layers: Sequence[Layer], adapter: Adapter) -> None:
        size = sum(tensor.numel() for tensor in adapter.tensors())
        self.weights = torch.zeros(_ROWS_OF_BANK, size, dtype=base.key.dtype, device=base.device)
        self.starts = torch.zeros(_ROWS_OF_BANK + 1, dtype=torch.int32, device=base.device)
        """Where the slots of each row's samples begin in the order that a step is given."""
        self.rank, self.scale, self._tile = adapter.rank, adapter.scale, _tile(layers, adapter)
        self._owners: list[Any] = [None] * _ROWS_OF_BANK
        parts = iter(adapter.split(self.weights))
        self.parts = {name: (next(parts), next(parts)) for name in adapter.weights}
        """(rows of the bank, ...) for each layer."""
        self._tables = {
            id(getattr(layer, which)): self._table(layer, which) for layer in layers for which in layer.linears
        }

    def place(self, owners: Sequence[Snapshot]) -> list[int]:
        """The row of each snapshot, which are filled where they are new."""
        held = [None if one is None else one() for one in self._owners]
        missing = [owner for owner in owners if owner not in held]
        free = [row for row, owner in enumerate(held) if owner is None or owner not in owners]
        for owner, row in zip(missing, free, strict=False):
            held[row], self._owners[row] = owner, weakref.ref(owner)
            if owner.adapter is None:
                self.weights[row].zero_()
            else:
                self.weights[row].copy_(owner.adapter.lay_flat())
        return [held.index(owner) for owner in owners]

    def add(self, product: Any, states: tuple[Tensor, Tensor | None, float], found: Tensor, order: Tensor) -> None:
        """Add to a product of a decoding step what the adapters add to it.

        `states` are what was multiplied, and where their norm is still to be taken, sums of squares and epsilon.
        """
        from .joint_kernels import add_lora

        table = self._tables[id(product)]
        if table is not None:
            add_lora(states, self.weights, table, order, self.starts, found, (self.rank, self.scale, self._tile))

    def linear(self, ends: Tensor) -> Any:
        """Products of a row of prompts: those of bank row i end before `ends[i]`."""

        def product(layer: Layer, which: str, x: Tensor, onto: Tensor | None) -> Tensor:
            found = plain_in_place(layer, which, x, onto)
            start = 0
            for single in layer.linears[which]:
                if (pair := self.parts.get(single.name)) is not None:
                    low = _grouped(x, pair[0], ends)
                    found[:, start : start + single.out_features] += self.scale * _grouped(low, pair[1], ends)
                start += single.out_features
            return found

        return product

    def _table(self, layer: Layer, which: str) -> Tensor | None:
        """For each tile of columns, where A begins in a row of the bank and where the tile's part of B does."""
        entries: list[tuple[int, int]] = []
        for single in layer.linears[which]:
            pair = self.parts.get(single.name)
            for column in range(0, single.out_features, self._tile):
                a, b = (-1, -1) if pair is None else (part.storage_offset() for part in pair)
                entries.append((a, b + column * self.rank))
        if all(a < 0 for a, _ in entries):
            return None
        return torch.tensor(entries, dtype=torch.int64, device=self.weights.device)


def _grouped(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each group of rows times its matrix, (groups, out, in)."""
    if x.is_cuda and hasattr(torch, "_grouped_mm") and not any(width % 8 for width in matrices.shape[1:]):
        return torch._grouped_mm(x, matrices.transpose(1, 2), offs=ends)
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    return torch.cat([rows @ own.T for rows, own in zip(x.split(sizes), matrices, strict=True)])


class JointGraphDecoder(GraphDecoder):
    """Grows samples of several snapshots with one graph."""

    most_owners = _ROWS_OF_BANK

    def __init__(self, base: Base, lease: Lease) -> None:
        super().__init__(base, lease)
        self._bank: Bank = self._space.bank
        self._rows: list[int] = []
        """For each slot, the row of its adapter in the bank."""
        self._placed: list[Lane] = []

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Make room in the cache, and put the adapters of these lanes into the bank."""
        super().reserve(lanes)
        if self._placed == lanes:
            return
        self._placed = list(lanes)
        owners = list(dict.fromkeys(lane.request.owner for lane in lanes))
        rows = dict(zip(owners, self._bank.place(owners), strict=True))
        self._rows = [rows[lane.request.owner] for lane in lanes]

    def _owners_of(self, slots: Sequence[int]) -> list[int]:
        return [self._rows[slot] for slot in slots]

    def _order_of(self, lanes: Sequence[Lane]) -> Any:
        """Slots sorted by adapter; where each adapter's begin goes to the bank."""
        rows = np.array(self._rows[: len(lanes)])
        order = np.argsort(rows, kind="stable")
        starts = np.searchsorted(rows[order], np.arange(_ROWS_OF_BANK + 1))
        self._bank.starts.copy_(torch.from_numpy(starts.astype(np.int32)))
        return order

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        tokens, positions = tokens.to(self.base.device), positions.to(self.base.device)
        ends, last = [], 0
        owned = dict(layout.reading.owned)
        for row in range(_ROWS_OF_BANK):
            last = owned[row].stop if row in owned else last
            ends.append(last)
        linear = self._bank.linear(torch.tensor(ends, dtype=torch.int32, device=self.base.device))
        return run_body(self.base, self._space.layers, linear, tokens, positions, layout.attend_rows)
