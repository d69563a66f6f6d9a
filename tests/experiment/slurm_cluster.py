"""A real Slurm of one node, started for a test: munge, controller and node daemon on loopback, as the current user."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
_CONFIG = """\
ClusterName=evsys
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmctldParameters=enable_configless
KillWait=5
MinJobAge=2
ReturnToService=2
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> list[str]:
    """Programs that are not installed here; Debian has them in `slurm-wlm` and `munge`."""
    paths = f"{os.environ.get('PATH', '')}:/usr/sbin"
    daemons = [name for name in DAEMONS if shutil.which(name, path=paths) is None]
    return daemons or ([] if os.geteuid() == 0 else ["root"])


@contextmanager
def slurm_cluster(folder: Path) -> Generator[dict[str, str]]:
    """The environment variables under which the commands of Slurm reach it."""
    folder.mkdir(mode=0o755, exist_ok=True)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host, cpus = socket.gethostname().partition(".")[0], os.cpu_count() or 1
    config = folder / "slurm.conf"
    ports = {"port": _free_port(), "node_port": _free_port()}
    config.write_text(_CONFIG.format(host=host, folder=folder, cpus=cpus, **ports), encoding="utf-8")
    environment = {**os.environ, "SLURM_CONF": str(config), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    munge = ["munged", "-F", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munge, ["slurmctld", "-D", "-c", "-f", str(config)], ["slurmd", "-D", "-f", str(config)]):
            log = (folder / f"{command[0]}.out").open("wb")
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
            log.close()
            time.sleep(0.5)
        _wait_until_idle(environment, folder)
        yield {"SLURM_CONF": str(config)}
        _wait_until_idle(environment, folder)  # a step that cannot report its end to the controller stays
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def _wait_until_idle(environment: dict[str, str], folder: Path) -> None:
    output = ""
    for _ in range(120):
        result = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False, timeout=30
        )
        output = result.stdout + result.stderr
        if result.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text("utf-8", "replace")[-1500:] for path in folder.glob("*.out"))
    raise RuntimeError(f"Slurm did not start: {output}\n{logs}")
