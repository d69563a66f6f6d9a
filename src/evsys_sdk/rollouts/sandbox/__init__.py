"""The sandbox behind the environment `bwrap`: what a command in it sees, may do, and may use.

client.py            the SDK's end: starts a supervisor, turns its answers into futures
supervisor/          the small program that builds one sandbox and runs commands in it
root_filesystem.py   what a sandbox sees as its file system
control_group.py     a limit of the kernel's own on all memory, where this user may set one
promises.py          which of the protections this machine offers; `evsys doctor --sandbox` shows them
start_problems.py    why a sandbox did not start, and what to do about it
"""
