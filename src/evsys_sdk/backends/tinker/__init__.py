"""The Tinker protocol: weights on a server, driven through the `tinker` SDK.

backend    the registered kind: params, and how a client is made
client     our training client on top of the SDK's
sampling   our sampling client on top of the SDK's
pipeline   submits in order, ends what takes too long, and knows when weights can no longer be trusted
datums     our datums <-> the SDK's
state      names, references and sidecars of checkpoints
session    how a connection is opened: address, key, headers, tokenizer
errors     what went wrong, as sentences
"""
