"""Programs that want out of the sandbox, or more rights in it. Each prints SUCCESS if it has got what it came for."""

# ruff: noqa: E501  # programs are easier to read on their own lines

PRELUDE = r"""
import ctypes, errno, mmap, os, platform, re, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
def call(x86, other, *args):
    "A system call by its number; 0 or more is success."
    return libc.syscall(ctypes.c_long(x86 if X86 else other), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
def claim(won, what=""):
    if won: print("SUCCESS", what, flush=True)
def tries(action):
    try: action()
    except (OSError, PermissionError, ValueError) as error: return False
    return True
def pointer(data): return ctypes.addressof(ctypes.create_string_buffer(data)) if isinstance(data, bytes) else data
"""

NAMESPACES = {
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x80,
}
FAMILIES = {
    "netlink": 16,
    "packet": 17,
    "vsock": 40,
    "alg": 38,
    "bluetooth": 31,
    "kcm": 41,
    "xdp": 44,
    "smc": 43,
    "rds": 21,
    "tipc": 30,
    "can": 29,
    "key": 15,
    "appletalk": 5,
    "ax25": 3,
}

ESCAPES = {
    **{f"unshare {name}": f"claim(call(272, 97, {flag}) == 0)" for name, flag in NAMESPACES.items()},
    **{
        f"clone into a new {name} namespace": f"pid = call(56, 220, {flag} | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nclaim(pid > 0)"
        for name, flag in NAMESPACES.items()
        if name != "time"
    },
    "clone3 into a new user namespace": "args = ctypes.create_string_buffer(struct.pack('<8Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0))\npid = call(435, 435, args, 64)\nif pid == 0: os._exit(0)\nclaim(pid > 0)",
    "join the namespaces of the first process": "for name in ('user', 'mnt', 'net', 'pid', 'ipc', 'uts', 'cgroup'):\n    try: fd = os.open('/proc/1/ns/' + name, os.O_RDONLY)\n    except OSError: continue\n    claim(call(308, 268, fd, 0) == 0, name)",
    "join by a descriptor of the first process": "fd = call(434, 434, 1, 0)\nclaim(fd >= 0 and call(308, 268, fd, 0x20000) == 0)",
    "mount a file system": "claim(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0)",
    "mount another /proc": "claim(libc.mount(b'proc', b'/tmp', b'proc', 0, None) == 0)",
    "make the system writable": "claim(libc.mount(b'none', b'/usr', None, 32 | 4096, None) == 0)",
    "unmount /proc": "claim(libc.umount2(b'/proc', 2) == 0 or libc.umount2(b'/app', 2) == 0)",
    "pivot the root": "os.mkdir('x'); claim(call(155, 41, b'.', b'x') == 0)",
    "change the root": "os.mkdir('x'); claim(libc.chroot(b'x') == 0)",
    "open a file system": "claim(call(430, 430, b'tmpfs', 0) >= 0)",
    "clone a tree of mounts": "claim(call(428, 428, -100, b'/usr', 1) >= 0)",
    "change the attributes of a mount": "attr = ctypes.create_string_buffer(32); claim(call(442, 442, -100, b'/usr', 0x8000, attr, 32) == 0)",
    "open a file by its handle": "handle = ctypes.create_string_buffer(struct.pack('<Ii', 8, 1) + b'\\x02' + b'\\0' * 127); claim(call(304, 265, os.open('/', 0), handle, 0) >= 0)",
    "make a device": "claim(tries(lambda: os.mknod('/app/disk', 0o60666, os.makedev(254, 0))) and tries(lambda: open('/app/disk', 'rb').read(1)))",
    "open devices of the host": "for name in ('mem', 'kmem', 'port', 'kmsg', 'vda', 'sda', 'nvme0n1', 'fuse', 'kvm', 'net/tun', 'vhost-net', 'vsock', 'loop-control'):\n    claim(tries(lambda: open('/dev/' + name, 'rb').close()), name)",
    "trace the first process": "libc.ptrace.restype = ctypes.c_long\nclaim(libc.ptrace(16, 1, 0, 0) == 0 or libc.ptrace(0x4206, 1, 0, 0) == 0)",
    "trace a child": "pid = os.fork()\nif pid == 0: time.sleep(5); os._exit(0)\nclaim(libc.ptrace(16, pid, 0, 0) == 0)",
    "write into the first process": "claim(tries(lambda: open('/proc/1/mem', 'r+b')))",
    "map the first process": "claim(tries(lambda: open('/proc/1/maps').read()))",
    "read another process's memory by its number": "buffer = ctypes.create_string_buffer(64)\nlocal = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8); remote = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)\nclaim(libc.process_vm_readv(os.getpid(), local, 1, remote, 1, 0) >= 0)",
    "write another process's memory by its number": "buffer = ctypes.create_string_buffer(64)\nlocal = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8); remote = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)\nclaim(libc.process_vm_writev(1, local, 1, remote, 1, 0) >= 0 or libc.process_vm_writev(os.getpid(), local, 1, remote, 1, 0) >= 0)",
    "take a descriptor from the first process": "fd = os.pidfd_open(1)\nclaim(any(call(438, 438, fd, n, 0) >= 0 for n in range(64)))",
    "compare with the first process": "claim(call(312, 272, os.getpid(), 1, 1, 0, 0) >= 0)",
    "run a program in the kernel": "attr = ctypes.create_string_buffer(struct.pack('<IIIII', 1, 4, 4, 1, 0) + b'\\0' * 100); claim(call(321, 280, 0, attr, 120) >= 0)",
    "handle page faults": "claim(call(323, 282, 0) >= 0 or call(323, 282, 1) >= 0)",
    "queue calls past the filter": "params = ctypes.create_string_buffer(120); claim(call(425, 425, 8, params) >= 0)",
    "watch the kernel's counters": "attr = ctypes.create_string_buffer(struct.pack('<II', 1, 112) + b'\\0' * 104); claim(call(298, 241, attr, 0, -1, -1, 0) >= 0)",
    "use the host's keys": "claim(call(250, 219, 0, -4, 1) >= 0 or call(248, 217, b'user', b'x', b'y', 1, -4) >= 0)",
    "load a module": "claim(call(175, 105, b'x', 1, b'') == 0 or call(313, 273, 0, b'', 0) == 0)",
    "start another kernel": "claim(call(246, 104, 0, 0, 0, 0) == 0)",
    "reboot": "claim(call(169, 142, 0xfee1dead, 672274793, 0, 0) == 0)",
    "reach ports of the machine": "claim(X86 and (call(172, 0, 3) == 0 or call(173, 0, 0, 1, 1) == 0))",
    "set the clock": "spec = ctypes.create_string_buffer(16); claim(call(227, 112, 0, spec) == 0)",
    "rename the machine": "claim(libc.sethostname(b'mine', 4) == 0)",
    "read the kernel's log": "buffer = ctypes.create_string_buffer(4096); claim(call(103, 116, 3, buffer, 4096) > 0)",
    "switch accounting on": "claim(libc.acct(b'/app/acct') == 0)",
    "swap to a file": "claim(libc.swapon(b'/app/swap', 0) == 0)",
    **{
        f"open a socket of the family {name}": f"claim(libc.socket({number}, 3, 0) >= 0 or libc.socket({number}, 1, 0) >= 0 or libc.socket({number}, 2, 0) >= 0 or libc.socket({number}, 5, 0) >= 0)"
        for name, number in FAMILIES.items()
    },
    "open a raw socket": "claim(tries(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)))",
    "calls in the numbering of x32": "claim(X86 and libc.syscall(ctypes.c_long(0x40000000 | 39)) > 0)",
    "calls of a 32-bit program": (
        "if X86:\n    code = mmap.mmap(-1, 4096, prot=7)\n    code.write(bytes.fromhex('b814000000cd80c3'))\n"
        "    answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()\n    claim(answer > 0)"
    ),
    "become root by a program": "for program in ('su -c id', 'sudo -n id', 'mount -t tmpfs none /tmp', 'newgrp root', 'pkexec id', 'passwd -S root'):\n    done = subprocess.run(program, shell=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)\n    claim('uid=0' in done.stdout or program.startswith('mount') and done.returncode == 0, program)",
    "become root by a call": "claim(libc.setuid(0) == 0 or libc.setresuid(0, 0, 0) == 0 or libc.setgroups(1, (ctypes.c_int * 1)(0)) == 0)",
    "raise limits": "import resource\nfor kind in (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE):\n    soft, hard = resource.getrlimit(kind)\n    claim(tries(lambda: resource.setrlimit(kind, (soft, hard + 1))))",
    "raise the limits of the first process": "import resource\nclaim(tries(lambda: resource.prlimit(1, resource.RLIMIT_NPROC, (1, 1))))",
    "set what crashes start": "claim(tries(lambda: open('/proc/sys/kernel/core_pattern', 'w').write('|/app/x')))",
    "set knobs of the kernel": "for name in ('kernel/hostname', 'kernel/modprobe', 'vm/overcommit_memory', 'net/ipv4/ip_forward', 'user/max_user_namespaces', 'kernel/shmmax', 'fs/mqueue/queues_max'):\n    claim(tries(lambda: open('/proc/sys/' + name, 'w').write('1')), name)",
    "press the magic key": "claim(tries(lambda: open('/proc/sysrq-trigger', 'w').write('h')))",
    "be spared when memory is short": "claim(tries(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000')) or tries(lambda: open('/proc/self/oom_score_adj', 'w').write('0')))",
    "change the user's map": "claim(tries(lambda: open('/proc/self/uid_map', 'w').write('0 0 1')))",
    "leave its control group": "claim(any(tries(lambda: open(path, 'w').write('0')) for path in ('/sys/fs/cgroup/cgroup.procs', '/sys/fs/cgroup/memory/cgroup.procs')))",
    "write to the system": "for path in ('/etc/passwd', '/etc/ld.so.preload', '/usr/bin/x', '/usr/lib/x', '/bin/x', '/x', '/dev/x', '/proc/x', '/var/x', '/srv/x'):\n    claim(tries(lambda: open(path, 'w').close()), path)",
    "link to files of the system": "claim(tries(lambda: os.link('/usr/bin/env', '/app/env')))",
    "see past the root": "for path in ('/proc/1/root', '/proc/1/cwd', '/proc/self/root/..', '/..', '/../../../../..', '/proc/1/exe'):\n    names = set(os.listdir(path)) if tries(lambda: os.listdir(path)) else set()\n    claim(names & {'root', 'home', 'boot', 'var', 'srv', 'mnt'}, path)",
    "end the sandbox's first process": "import signal\nfor n in range(1, 65):\n    if n not in (0, signal.SIGCHLD):\n        tries(lambda: os.kill(1, n))\ntime.sleep(0.05)\nclaim(not os.path.exists('/proc/1/stat'))",
    "find descriptors that lead out": "claim([n for n in os.listdir('/proc/self/fd') if int(n) > 2 and 'proc' not in (os.readlink('/proc/self/fd/' + n) if os.path.lexists('/proc/self/fd/' + n) else 'proc')])",
    "speak on descriptors": "for n in range(3, 1024):\n    try: os.write(n, (1 << 50).to_bytes(8, 'big'))\n    except OSError: continue\n    claim(True, n)",
    "find descriptors of its siblings": "for pid in os.listdir('/proc'):\n    if pid.isdigit() and int(pid) not in (os.getpid(), os.getppid()):\n        claim(tries(lambda: os.listdir(f'/proc/{pid}/fd')), pid)",
    "type into the host's terminal": "import fcntl\nfor n in (0, 1, 2):\n    claim(tries(lambda: fcntl.ioctl(n, 0x5412, b'x')))\nclaim(tries(lambda: os.open('/dev/tty', os.O_RDWR)))",
    "become a child of the supervisor": "pid = call(56, 220, 0x8000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nclaim(pid > 0)",
    "know its control group": "claim('evsys' in open('/proc/self/cgroup').read())",
    "profile its neighbours": "claim(call(279, 239, 1, 1, (ctypes.c_void_p * 1)(4096), 0, (ctypes.c_int * 1)(), 0) >= 0 or call(440, 440, 0, 0, 0, 20, 0) > 0)",
}
