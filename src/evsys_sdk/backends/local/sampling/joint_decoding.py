"""Decoding with several adapters on one base: every row uses the adapter of its snapshot.

No adapter is merged into the base. On a GPU, `gpu.joint_decoding` does the same with captured graphs.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.loading import Base
from ..base.lora import Change, LoRAPart, RowParts
from ..gpu.joint_decoding import joint_graph_decoder
from .decoding import TokenDecoder
from .lanes import Lane
from .reading import PromptLayout
from .snapshot import Snapshot

type _Rows = Mapping[int, slice | Tensor]
"""Rows by the number of their snapshot."""


def make_joint_decoder(base: Base, snapshot: Snapshot) -> TokenDecoder:
    """Return the fastest decoder for snapshots with the form of this one."""
    return joint_graph_decoder(base, snapshot) or JointDecoder(base)


class JointDecoder(TokenDecoder):
    """The plain decoder, with a separate snapshot for each slot."""

    def __init__(self, base: Base) -> None:
        super().__init__(base, {})
        self._owners: list[Snapshot] = []
        self._numbers: list[int] = []
        """Index into `_owners` for each slot."""

    def reserve(self, lanes: Sequence[Lane]) -> None:
        """Reserve the cache, and record the snapshot of each lane."""
        self._owners = list(dict.fromkeys(lane.request.owner for lane in lanes))
        self._numbers = [self._owners.index(lane.request.owner) for lane in lanes]
        super().reserve(lanes)

    def _owners_of(self, slots: Sequence[int]) -> list[int]:
        return [self._numbers[slot] for slot in slots]

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Any) -> Tensor:
        if isinstance(layout, PromptLayout):
            rows: dict[int, slice | Tensor] = dict(layout.reading.owned)
        else:
            numbers = torch.tensor(self._numbers[: len(tokens)], device=self.base.device)
            rows = {number: (numbers == number).nonzero()[:, 0] for number in set(self._numbers)}
        self._changes = self._parts_for(rows)
        return super()._hidden(tokens, positions, layout)

    def _parts_for(self, rows: _Rows) -> dict[str, Change]:
        pieces: dict[str, list[tuple[slice | Tensor, LoRAPart]]] = {}
        for number, indices in rows.items():
            for name, part in self._owners[number].parts().items():
                if isinstance(part, LoRAPart):
                    pieces.setdefault(name, []).append((indices, part))
        return {name: RowParts(tuple(layer_parts)) for name, layer_parts in pieces.items()}
