"""Frozen copies of an adapter, to sample from while training continues."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....log import get_logger
from .. import memory
from ..base.four_bit import dense
from ..base.loading import Base
from ..base.lora import Change, LoRAAdapter


class Snapshot:
    """An adapter that no longer changes, or none at all for the plain base."""

    def __init__(self, base: Base, adapter: LoRAAdapter | None, *, merge: bool) -> None:
        self._base, self.merges = base, merge
        """Whether there may be a merged copy of the weights."""
        self.form = None if adapter is None or adapter.has_experts or base.key.four_bit else hash(adapter.form)
        """Equal for snapshots that can be sampled from together; None for those that cannot."""
        self.template = adapter
        # One that changes nothing, as a new one does, need not be merged, and shares what is prepared for the base.
        self.adapter = None if adapter is None or adapter.is_zero() else adapter
        """What is to be merged; None where there is nothing to add to the base."""
        self._merged: Mapping[str, Change] | None = None
        self.prepared: Any = None
        """What a decoder has made of the weights for itself."""

    def changes(self) -> Mapping[str, Change]:
        """What to switch on while sampling: merged weights where there is room for them.

        Weights in four bits are all made dense for it: a token at a time, unpacking takes longer than the products.
        """
        if self.adapter is None and not self._base.key.four_bit:
            return {}
        if self.merges and self._merged is None:
            try:
                self._merged = self._merge_weights()
            except Exception as error:
                if not memory.is_out_of_memory(error):
                    raise
                memory.release_unused()
                self.merges = False
                get_logger(__name__).warning("no memory to merge the adapter for sampling; it is applied separately")
        return self._merged if self._merged is not None else self.parts()

    def _merge_weights(self) -> Mapping[str, Change]:
        switch = self._base.switch
        merged = {} if self.adapter is None else self.adapter.merge(switch)
        if not self._base.key.four_bit:
            return merged
        return {name: dense(linear.weight) for name, linear in switch.layers.items() if name not in merged} | merged

    def parts(self) -> Mapping[str, Change]:
        """What to switch on to compute exactly as training does."""
        return {} if self.adapter is None else self.adapter.parts()

    def forget_merged(self) -> None:
        """Give back the memory of the merged weights; they are made again when needed."""
        self._merged = self.prepared = None
