"""Model families that the local backend does not support, and the options to load the others with.

`check_family` reads only the config, before any weight is loaded. `probing` checks the behaviour of the loaded model.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

from ....errors import BackendError
from .hybrids import RECURRENT_LAYERS, RECURRENT_MODELS

FUSED = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
"""Models whose layer structure the fused code supports."""
_KNOWN_LAYERS = {"attention", "full_attention", "sliding_attention"}
_REMEDY = (
    "Use a model of another architecture, such as Llama, Qwen3, Mistral, Gemma 3 or OLMo, or another backend "
    "(backend.kind) for this one."
)


def explain_refusal(model: str, kind: str, reason: str) -> BackendError:
    """Return the error for an unsupported model; the reason continues a sentence after 'because'."""
    return BackendError(f"model.name: {model} ({kind}) does not work on the local backend, because {reason}. {_REMEDY}")


def check_family(model: str, config: Any) -> None:
    """Raise if the config shows that the model is not supported."""
    from transformers import AutoModelForCausalLM

    mapping = AutoModelForCausalLM._model_mapping  # what from_pretrained looks up
    if type(config) not in mapping:
        raise explain_refusal(model, type(config).__name__, "transformers has no causal language model for it")
    model_class: Any = mapping[type(config)]
    text = config.get_text_config()
    name = model_class.__name__
    kinds = set(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    strange = sorted(kinds - _KNOWN_LAYERS - (RECURRENT_LAYERS if name in RECURRENT_MODELS else set()))
    if getattr(model_class, "_is_stateful", False) and (strange or not kinds):
        named = f" ({', '.join(strange)})" if strange else ""
        raise explain_refusal(
            model,
            name,
            f"its layers{named} carry a state from token to token, which would leak between sequences that are packed "
            "into one row",
        )
    if strange:
        raise explain_refusal(
            model, name, f"it has layers of the kind {', '.join(strange)}, which would mix sequences that are packed"
        )
    if getattr(text, "alibi", False):
        raise explain_refusal(model, name, "its attention depends on distances between tokens (ALiBi)")
    if (stored := _quantization(config)) not in (None, "mxfp4"):
        raise explain_refusal(
            model, name, f"its weights are stored quantized ({stored}); look for the same model without that"
        )
    if not _takes_attention(model_class):
        raise explain_refusal(model, name, "its own code computes attention, which does not support packed sequences")


def options_to_load_with(config: Any) -> dict[str, Any]:
    """Return the extra options for `from_pretrained`: dequantize MXFP4 weights, so that adapters can be added."""
    if _quantization(config) != "mxfp4":
        return {}
    from transformers import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _quantization(config: Any) -> str | None:
    """The quantization method of the stored weights; None if they are not quantized or come from GGUF."""
    stated = getattr(config, "quantization_config", None) or {}
    kind = stated.get("quant_method") if isinstance(stated, dict) else getattr(stated, "quant_method", None)
    return None if kind in (None, "gguf") else str(getattr(kind, "value", kind))


def _takes_attention(model_class: Any) -> bool:
    supports = getattr(model_class, "_can_set_attn_implementation", None)
    return supports is None or bool(supports())
