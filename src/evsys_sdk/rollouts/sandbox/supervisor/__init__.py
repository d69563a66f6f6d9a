"""The supervisor: a program that starts one bubblewrap sandbox, runs commands in it and removes it.

It is a separate process, because joining namespaces requires a single-threaded process, and forking a process with a
model in memory is slow. `bwrap` builds the file system and the namespaces; the supervisor joins them and ends bwrap.
Then it creates a PID namespace, whose first process is a fork that only waits. Every command is a fork too.

    SDK process  <- socket ->  supervisor  -> maker of PID namespaces
                                           -> first process, command, command, ... (inside the sandbox)

To kill all processes, the supervisor kills that PID namespace, which no process survives, and creates a new one; the
files stay. Processes inside cannot see, stop or impersonate the supervisor: no command inherits a descriptor, the forks
inside cannot be traced, and messages on the socket are flat data of limited length.

The supervisor and all processes of the sandbox end when the SDK process requests it, closes the socket or dies.

Its modules import only each other and a few small modules of the standard library: a sandbox is started for every
rollout, and importing `dataclasses`, `json`, `socket` or `typing` takes longer than building the sandbox.
"""
