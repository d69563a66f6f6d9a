"""The small program that starts one bubblewrap sandbox, runs commands in it and takes it down again.

It is its own process, because entering namespaces needs a process with one thread, and forking a process that
holds a model is slow. `bwrap` builds the file system and the namespaces; the supervisor joins them and ends bwrap. Then
it makes a PID namespace, whose first process is its own fork that only waits, and every command is a fork too.

    SDK process  <- socket ->  supervisor  -> maker of PID namespaces
                                           -> first process, command, command, ... (inside the sandbox)

Ending everything that runs means ending that PID namespace, which no process survives, and making another; the files
stay. Nothing inside can see the supervisor, stop it, or speak for it: no command inherits a descriptor, the forks
inside cannot be traced, and what comes over the socket is flat data of limited length.

It ends, and everything in the sandbox with it, when the SDK process asks for it, closes the socket or dies.

Its modules import only each other and a few small modules of the standard library: a sandbox is started for every
rollout, and each of `dataclasses`, `json`, `socket` or `typing` would cost more time than building the sandbox.
"""
