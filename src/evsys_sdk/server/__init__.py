"""A Tinker-protocol server over the in-process backends: `evsys serve`.

Reading order: `settings` (options), `tinker/routes` (endpoints), `service` (request handling), `state/model` (a model
in training, with ordered and deduplicated requests), `tinker/protobuf` (bytes <-> arrays), `weights/checkpoints` (saved
weights), `openai/routes` (OpenAI's and Anthropic's APIs on the same models).
"""
