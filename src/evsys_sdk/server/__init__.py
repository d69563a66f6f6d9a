"""A Tinker-protocol server over the in-process backends: `evsys serve`.

Read in this order: `settings` (what can be set), `tinker/routes` (what is answered), `service` (how), `state/model` (a
model in training: its requests in their order, none twice), `tinker/protobuf` (bytes <-> arrays), `weights/checkpoints`
(what survives), `openai/routes` (the same models for everybody else).
"""
