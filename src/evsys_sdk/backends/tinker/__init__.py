"""The Tinker protocol: weights on a server, driven through the `tinker` SDK.

backend    the registered kind: params, and how a client is made
client     our training client on top of the SDK's
sampling   our sampling client on top of the SDK's
pipeline   submits in order, enforces time limits, and tracks whether weights are still valid
datums     our datums <-> the SDK's
state      names, references and sidecars of checkpoints
session    opens a connection: address, key, headers, tokenizer
errors     error messages
"""
