"""Your own algorithm in a file: SFT with a focal loss, which spends the gradient on tokens the model still gets wrong.

The loss is a function of the data and their log-probabilities. Marked with `numpy_loss`, it returns its own gradient
and runs with or without torch.
"""

import numpy as np

from evsys_sdk import SFT, numpy_loss, register_algorithm

GAMMA = 2.0


@numpy_loss
def focal_loss(data, logprobs):
    """-(1 - p)^gamma * log p, weighted and summed over tokens like every other loss."""
    loss, gradients = 0.0, []
    for datum, lp in zip(data, logprobs, strict=True):
        p = np.exp(lp)
        loss += float(-(datum.weights * (1 - p) ** GAMMA * lp).sum())
        slope = GAMMA * (1 - p) ** (GAMMA - 1) * p * lp - (1 - p) ** GAMMA
        gradients.append((datum.weights * slope).astype(np.float32))
    return loss, {"focal/loss": loss}, gradients


@register_algorithm("focal_sft")
class FocalSFT(SFT):
    """Supervised fine-tuning with a focal loss."""

    async def build_batch(self, step_idx):
        batch = await super().build_batch(step_idx)
        batch.loss_fn = focal_loss
        return batch
