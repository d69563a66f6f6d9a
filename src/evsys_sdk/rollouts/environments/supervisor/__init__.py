"""The small program that starts one bubblewrap sandbox, runs commands in it and takes it down again.

It is a process of its own, because entering namespaces needs a process with one thread, and forking a process that
holds a model is slow. `bwrap` builds the sandbox around a process that only waits; the supervisor then joins that
sandbox's mount, network, IPC, UTS and PID namespaces, and every command is a fork of the supervisor. Nothing inside the
sandbox can see the supervisor, stop it, or speak for it.

    SDK process  <- socket ->  supervisor  -> bwrap -> PID 1 of the sandbox, which waits
                                           -> command, command, ... (inside the sandbox)

It ends, and everything in the sandbox with it, when the SDK process asks for it, closes the socket or dies.

Its modules import only each other and a few small modules of the standard library: a sandbox is started for every
rollout, and each of `dataclasses`, `json`, `socket` or `typing` would cost more time than building the sandbox.
"""
