"""Programs that want more of the machine than they were given, where no limit of one process counts it.

Each claims success once it holds four times the memory of the sandbox, or as much of something else as could hurt.
"""

# ruff: noqa: E501

MEMORY_MB = 64
WANTED_MB = 4 * MEMORY_MB

EXHAUSTIONS = {
    "tables of mappings of many processes": f"""
PAGES = 60_000
WANTED = {WANTED_MB} * 1024 * 1024 // (PAGES * 200)
r, w = os.pipe()
libc.mmap.restype = ctypes.c_void_p
for _ in range(WANTED):
    if os.fork() == 0:
        base = libc.mmap(None, ctypes.c_size_t(PAGES * 4096), 0, 0x22, -1, ctypes.c_long(0))
        for page in range(0, PAGES, 2): libc.mprotect(ctypes.c_void_p(base + page * 4096), ctypes.c_size_t(4096), 1)
        os.write(w, b"x"); time.sleep(60); os._exit(0)
os.close(w)
got = b""
while len(got) < WANTED and (data := os.read(r, 100)): got += data
claim(len(got) == WANTED)
""",
    "memory of one process": f"held = []\nwhile len(held) < {WANTED_MB}: held.append(bytearray(os.urandom(1 << 20)))\nclaim(True)",
    "memory of many processes": f"""
r, w = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        try: held = bytearray(os.urandom(1 << 20) * {WANTED_MB // 16 + 2})
        except MemoryError: os._exit(0)
        os.write(w, b'x'); time.sleep(2); os._exit(0)
os.close(w)
n = 0
while n < 14 and os.read(r, 1): n += 1
time.sleep(1)
claim(n == 14)
""",
    "shared anonymous memory": f"m = mmap.mmap(-1, {WANTED_MB} << 20)\nfor at in range(0, len(m), 4096): m[at] = 1\ntime.sleep(0.5)\nclaim(True)",
    "shared anonymous memory, mapped again and again": f"held = []\nfor _ in range({WANTED_MB}):\n    m = mmap.mmap(-1, 1 << 20); m.write(b'x' * (1 << 20)); held.append(m)\ntime.sleep(0.5)\nclaim(True)",
    "memory files": f"fd = os.memfd_create('x')\nfor _ in range({WANTED_MB}): os.write(fd, b'x' * (1 << 20))\nclaim(True)",
    "secret memory": "claim(call(447, 447, 0) >= 0)",
    "files in shared memory": f"with open('/dev/shm/x', 'wb') as f:\n    for _ in range({WANTED_MB}): f.write(b'x' * (1 << 20)); f.flush()\nclaim(True)",
    "files deleted while open": f"held = []\nfor n in range({WANTED_MB}):\n    f = open(f'/tmp/{{n}}', 'wb'); os.unlink(f.name); f.write(b'x' * (1 << 20)); f.flush(); held.append(f)\nclaim(True)",
    "files in every folder": f"for n in range({WANTED_MB}):\n    folder = ('/tmp', '/app', '/tests', '/logs', '/solution', '/dev/shm')[n % 6]\n    open(f'{{folder}}/{{n}}', 'wb').write(b'x' * (1 << 20))\nclaim(True)",
    "names without content": "n = 0\nos.makedirs('/tmp/n')\nwhile n < 300_000: open(f'/tmp/n/{n}', 'w').close(); n += 1\nclaim(True)",
    "long symbolic links": "n = 0\nwhile n < 100_000: os.symlink('x' * 4000, f'/tmp/{n}'); n += 1\nclaim(True)",
    "attributes of files": f"open('a', 'w').close()\nfor n in range({WANTED_MB} * 16): os.setxattr('a', f'user.{{n}}', b'x' * 65000)\nclaim(True)",
    "segments of shared memory": f"""
for _ in range({WANTED_MB // 16}):
    n = libc.shmget(0, 16 << 20, 0o1600)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(n, None, 0)
    if at in (None, 2**64 - 1): sys.exit()
    ctypes.memset(at, 1, 16 << 20); libc.shmdt(ctypes.c_void_p(at)); time.sleep(0.06)
time.sleep(0.3)
rows = [line.split() for line in open('/proc/sysvipc/shm').readlines()[1:]]
claim(sum(int(row[14]) for row in rows) > {WANTED_MB - 32} << 20)
""",
    "message queues": "claim(sum(libc.msgget(0, 0o1600) >= 0 for _ in range(1000)) > 100)",
    "semaphores": "claim(sum(libc.semget(0, 32000, 0o1600) >= 0 for _ in range(100)) > 10)",
    "POSIX message queues": "held = 0\nfor n in range(4000):\n    attr = (ctypes.c_long * 8)(0, 10, 8192)\n    if libc.mq_open(b'/q%d' % n, os.O_CREAT | os.O_RDWR, 0o600, attr) < 0: break\n    held += 80\nclaim(held > 32_000, held)",
    "buffers of local sockets": f"""
sent, held = 0, []
while sent < {WANTED_MB} << 20:
    a, b = socket.socketpair(); held += [a, b]
    for s in (a, b):
        s.setblocking(False); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        try:
            while True: sent += s.send(b'x' * 65536)
        except BlockingIOError: pass
time.sleep(0.5)
claim(True, sent)
""",
    "buffers of local sockets in many processes": f"""
r, w = os.pipe()
for _ in range(24):
    if os.fork() == 0:
        sent, held = 0, []
        while sent < {WANTED_MB // 20} << 20:
            a, b = socket.socketpair(); held += [a, b]
            for s in (a, b):
                s.setblocking(False)
                try:
                    while True: sent += s.send(b'x' * 65536)
                except BlockingIOError: pass
        os.write(w, b'x'); time.sleep(2); os._exit(0)
os.close(w)
n = 0
while n < 20 and os.read(r, 1): n += 1
time.sleep(0.5)
claim(n == 20)
""",
    "sockets in flight": f"""
import array
sent, outer, held = 0, socket.socketpair(), []
while sent < {WANTED_MB} << 20:
    a, b = socket.socketpair(); a.setblocking(False)
    try:
        while True: sent += a.send(b'x' * 65536)
    except BlockingIOError: pass
    try: outer[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno()]))], socket.MSG_DONTWAIT)
    except BlockingIOError: held.append(outer); outer = socket.socketpair()
    except OSError: break
    a.close(); b.close()
time.sleep(0.5)
claim(sent >= {WANTED_MB} << 20, sent)
""",
    "buffers of connections": f"""
server = socket.create_server(('127.0.0.1', 0), backlog=4000)
sent, held = 0, []
while sent < {WANTED_MB} << 20:
    c = socket.create_connection(server.getsockname()); s, _ = server.accept(); held += [c, s]
    for one in (c, s):
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30); one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
        try:
            while True: sent += one.send(b'x' * 65536)
        except BlockingIOError: pass
time.sleep(0.5)
claim(True, sent)
""",
    "datagrams that nobody reads": f"""
held, out = [], socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while len(held) < 1000:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); held.append(s)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30); s.setblocking(False)
    for _ in range(16): out.sendto(b'x' * 60000, s.getsockname())
time.sleep(0.5)
got = 0
for s in held:
    try:
        while True: got += len(s.recv(65536))
    except BlockingIOError: pass
claim(got >= {WANTED_MB // 2} << 20, got)
""",
    "pipes": f"""
import fcntl
sent, held = 0, []
while sent < {WANTED_MB} << 20:
    r, w = os.pipe(); held += [r, w]; os.set_blocking(w, False)
    try: fcntl.fcntl(w, 1031, 1 << 20)
    except OSError: pass
    try:
        while True: sent += os.write(w, b'x' * 65536)
    except BlockingIOError: pass
time.sleep(0.5)
claim(True, sent)
""",
    "huge pages in pipes": "r, w = os.pipe()\nm = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m[0] = 1\nv = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.c_char.from_buffer(m)), 4096)\nclaim(libc.vmsplice(w, v, 1, 0) > 0)",
    "tables of pages": f"""
size = 1 << 46
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
at = libc.mmap(None, size, 1, 0x4022, -1, 0)
if at == 2**64 - 1: sys.exit()
for n in range({WANTED_MB} * 256): ctypes.c_char.from_address(at + n * (1 << 21)).value
time.sleep(0.5)
claim(True)
""",
    "processes": "n = 0\ntry:\n    while n < 200:\n        if os.fork() == 0: time.sleep(30); os._exit(0)\n        n += 1\nexcept OSError: pass\nclaim(n >= 64, n)",
    "threads": "import threading\nn = 0\ntry:\n    while n < 200: threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\nexcept RuntimeError: pass\nclaim(n >= 64, n)",
    "descriptors": "n = 0\ntry:\n    while n < 100_000: os.open('/dev/null', 0); n += 1\nexcept OSError: pass\nclaim(n >= 1024, n)",
    "one large file": f"f = open('x', 'wb')\nf.truncate({WANTED_MB} << 20)\nclaim(True)",
    "locked memory": f"m = mmap.mmap(-1, {WANTED_MB} << 20)\nclaim(libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(m))), ctypes.c_size_t({WANTED_MB} << 20)) == 0)",
    "a dump of its memory": "import signal\nif os.fork() == 0: os.abort()\nos.wait()\nclaim([n for n in os.listdir('.') if n.startswith('core')])",
    "terminals": "n = 0\ntry:\n    while n < 2000: os.openpty(); n += 1\nexcept OSError: pass\nclaim(n >= 1024, n)",
    "watches of epoll": f"""
import select
r, w = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        files, held, n = [os.dup(r) for _ in range(480)], [], 0
        try:
            while True:
                held.append(select.epoll())
                for file in files: held[-1].register(file, 1); n += 1
        except OSError: pass
        os.write(w, b'%10d' % n); time.sleep(30); os._exit(0)
os.close(w)
n = done = 0
while done < 8 and (data := os.read(r, 10)): n += int(data); done += 1
claim(n * 160 > {WANTED_MB} << 20, n)
""",
    "watches": "fd = libc.inotify_init()\nn = 0\nwhile n < 10**6 and libc.inotify_add_watch(fd, b'/app', 2) >= 0: n += 10**5\nclaim(False)",
}
