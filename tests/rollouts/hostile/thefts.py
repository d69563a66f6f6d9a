"""Programs that look for what is not theirs: keys, files, processes and addresses of the host and of other sandboxes.

They know the host's secret file, its port and the name of its abstract socket; `{names}` are filled in by the test.
"""

# ruff: noqa: E501

THEFTS = {
    "keys in variables": "claim('hunter2' in str(os.environ))",
    "keys in the variables of all processes": "for pid in os.listdir('/proc'):\n    if pid.isdigit():\n        try: text = open(f'/proc/{pid}/environ').read()\n        except OSError: continue\n        claim('hunter2' in text, pid)",
    "paths on the command lines of all processes": "for pid in os.listdir('/proc'):\n    if pid.isdigit() and int(pid) != os.getpid():\n        text = open(f'/proc/{pid}/cmdline').read()\n        claim('site-packages' in text or '.venv' in text or 'evsys' in text, text)",
    "a file by its path": "claim(tries(lambda: open('{secret_file}').read()))",
    "a file through a link": "os.symlink('{secret_file}', 'link'); claim(tries(lambda: open('link').read()))",
    "a file through any process's root": "for pid in os.listdir('/proc'):\n    if pid.isdigit(): claim(tries(lambda: open('/proc/' + pid + '/' + 'root' + '{secret_file}').read()))",
    "home folders": "for path in ('/' + 'root', '{home}', '/home', '/var', '/srv', '/opt', '/mnt', '/run', '/sys', '/boot'):\n    claim(tries(lambda: os.listdir(path)), path)",
    "the host's users": "claim(len(open('/etc/passwd').readlines()) > 2 or tries(lambda: open('/etc/shadow').read()))",
    "the host's processes": "claim(any('pytest' in open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc') if pid.isdigit()))",
    "the host's loopback": "claim(tries(lambda: socket.create_connection(('127.0.0.1', {port}), 1)))",
    "the host's address": "claim(any(tries(lambda: socket.create_connection((address, {port}), 1)) for address in ('0.0.0.0', '::1', '10.0.0.1', '169.254.169.254', '172.17.0.1')))",
    "the internet": "claim(tries(lambda: socket.create_connection(('1.1.1.1', 53), 1)) or tries(lambda: socket.getaddrinfo('example.com', 80)))",
    "a datagram out": "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); claim(tries(lambda: s.sendto(b'x', ('1.1.1.1', 53))))",
    "an abstract socket of the host": "s = socket.socket(socket.AF_UNIX); claim(tries(lambda: s.connect('\\0{abstract}')))",
    "sockets in the file system": "claim(any(tries(lambda: socket.socket(socket.AF_UNIX).connect(path)) for path in ('/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket', '/run/systemd/private')))",
    "shared memory of the host": "claim(len(open('/proc/sysvipc/shm').readlines()) > 1 or os.listdir('/dev/shm'))",
    "the memory of the machine": "claim(tries(lambda: open('/proc/kcore', 'rb').read(16)) or tries(lambda: open('/proc/kallsyms').read()) and 'ffff' in open('/proc/kallsyms').read(10**6))",
    "the name of the host": "claim('{hostname}' in (os.uname().nodename, socket.gethostname()))",
    "its own tests": "claim(tries(lambda: open('/tests/test.sh').read()))",
    "mounts that name the host's folders": "text = open('/proc/self/mountinfo').read(); claim('pytest' in text or '{home}' in text)",
}
