"""The sandbox of the environment `bwrap`: file system, privileges and resource limits of commands.

client.py            starts a supervisor and turns its answers into futures
supervisor/          the program that builds one sandbox and runs commands in it
root_filesystem.py   the file system of a sandbox
control_group.py     a memory limit by cgroup, if the user may create one
promises.py          checks which protections work on this machine; `evsys doctor --sandbox` shows them
start_problems.py    error messages with remedies for sandboxes that did not start
"""
