"""Data: raw rows -> typed rows.

In order of data flow: `sources` and `stores/` read rows, `transforms/` and `pipeline` change them, `rows` and `types`
define typed rows, `workspace/` stores versions. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .chat import block_to_image_src, has_images, image_base64_block, image_url_block, text_block
    from .pipeline import apply_transforms, build_transforms
    from .rows import detect_format, from_dict, iter_jsonl, parse_rows, read_jsonl, to_dict
    from .sources import describe_source, load_rows, prepare_rows
    from .transform import BaseTransform, NoParams, RowTransform, TransformConfig
    from .types import (
        ChatMessagesRow,
        E2BVerifier,
        HarborTask,
        InProcessVerifier,
        LLMJudgeVerifier,
        PromptExample,
        TargetFormat,
        TypedRow,
        VerifierPayload,
    )
    from .workspace.workspace import Workspace

__all__ = [
    "BaseTransform",
    "ChatMessagesRow",
    "E2BVerifier",
    "HarborTask",
    "InProcessVerifier",
    "LLMJudgeVerifier",
    "NoParams",
    "PromptExample",
    "RowTransform",
    "TargetFormat",
    "TransformConfig",
    "TypedRow",
    "VerifierPayload",
    "Workspace",
    "apply_transforms",
    "block_to_image_src",
    "build_transforms",
    "describe_source",
    "detect_format",
    "from_dict",
    "has_images",
    "image_base64_block",
    "image_url_block",
    "iter_jsonl",
    "load_rows",
    "parse_rows",
    "prepare_rows",
    "read_jsonl",
    "text_block",
    "to_dict",
]

__getattr__ = lazy_names(
    __name__,
    {
        "chat": "block_to_image_src has_images image_base64_block image_url_block text_block",
        "pipeline": "apply_transforms build_transforms",
        "rows": "detect_format from_dict iter_jsonl parse_rows read_jsonl to_dict",
        "sources": "describe_source load_rows prepare_rows",
        "transform": "BaseTransform NoParams RowTransform TransformConfig",
        "types": "ChatMessagesRow E2BVerifier HarborTask InProcessVerifier LLMJudgeVerifier PromptExample TargetFormat "
        "TypedRow VerifierPayload",
        "workspace.workspace": "Workspace",
    },
)
