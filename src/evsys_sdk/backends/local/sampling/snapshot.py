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
    """A frozen adapter, or None for the plain base."""

    def __init__(self, base: Base, adapter: LoRAAdapter | None, *, merge: bool) -> None:
        self._base, self.merges = base, merge
        """Whether a merged copy of the weights may be made."""
        self.form = None if adapter is None or adapter.has_experts or base.key.four_bit else hash(adapter.form)
        """Equal for snapshots that can be sampled from jointly; None if joint sampling is not possible."""
        self.template = adapter
        # A new adapter changes nothing, so it is not merged.
        self.adapter = None if adapter is None or adapter.is_zero() else adapter
        """The adapter to merge; None if it does not change the base."""
        self._merged: Mapping[str, Change] | None = None
        self.prepared: Any = None
        """Weights that a decoder has prepared for this snapshot."""

    def changes(self) -> Mapping[str, Change]:
        """Return the changes for sampling: merged weights if memory suffices, otherwise the adapter's parts.

        All four-bit weights are dequantized once, because dequantizing per token would take longer than the products.
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
        """Return the changes that compute exactly as in training."""
        return {} if self.adapter is None else self.adapter.parts()

    def forget_merged(self) -> None:
        """Release the merged weights; they are computed again when needed."""
        self._merged = self.prepared = None
