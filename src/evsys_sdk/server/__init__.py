"""A Tinker-protocol server over the in-process backends: `evsys serve`.

Read in this order: `settings` (what can be set), `routes` (what is answered), `service` (how), `model` (a model in
training: its requests in their order, none twice), `protobuf` (bytes <-> arrays), `checkpoints` (what survives).
"""
