"""What the judges of the cache share: servers, a small client, and percentiles.

Nothing here fetches anything. redis comes from Debian's package, which `judge.sh` installs; valkey
is a path to a build of its source.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
OURS = os.environ.get("RESP_CACHE", os.path.join(ROOT, "target", "release", "resp_cache"))
TUNED = ["--hz", "500", "--active-expire-effort", "10"]


def commands(valkey=None, runtime="tokio", cores=1, events=""):
    """The command line of each server, without its port, which publishes these keyspace events."""
    redis = [shutil.which("redis-server") or "redis-server", "--save", "", "--appendonly", "no"]
    all_of_them = {
        "redis": redis,
        "redis tuned": redis + TUNED,
        "ours": [OURS, "--runtime", runtime, "--cores", str(cores), "--stats", "127.0.0.1:0"],
    }
    if valkey:
        quiet = [valkey, "--save", "", "--appendonly", "no"]
        all_of_them["valkey"] = quiet
        all_of_them["valkey tuned"] = quiet + TUNED
    if events:
        for command in all_of_them.values():
            command += ["--notify-keyspace-events", events]
    return all_of_them


class Server:
    """A server process on a free port, ended with the `with` block."""

    def __init__(self, command, cpus=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        ours = command[0] == OURS
        address = ["--listen", f"127.0.0.1:{self.port}"] if ours else ["--port", str(self.port)]
        prefix = ["taskset", "-c", cpus] if cpus else []
        self.folder = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            prefix + command + address, stdout=subprocess.DEVNULL, cwd=self.folder.name
        )
        for _ in range(500):
            try:
                self.client().close()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit(f"{command[0]} does not listen")

    def client(self):
        return Client(self.port)

    def resident(self):
        """The resident memory, in bytes."""
        with open(f"/proc/{self.process.pid}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def cpu_time(self):
        """The time that its threads have run, in seconds."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            # Behind the name, which may have spaces.
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


class Client:
    """A blocking client of RESP2 for commands whose replies are one line or one string."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def close(self):
        self.socket.close()

    def line(self):
        while b"\r\n" not in self.buffer:
            self.receive()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def receive(self):
        more = self.socket.recv(1 << 20)
        if not more:
            raise SystemExit("the server has closed the connection")
        self.buffer += more

    def reply(self):
        line = self.line()
        if line[:1] == b"-":
            raise SystemExit(line.decode())
        if line[:1] != b"$" or line == b"$-1":
            return line[1:]
        length = int(line[1:])
        while len(self.buffer) < length + 2:
            self.receive()
        value, self.buffer = self.buffer[:length], self.buffer[length + 2 :]
        return value

    def call(self, *words):
        self.socket.sendall(encode(words))
        return self.reply()

    def load(self, requests, chunk=5_000):
        """Sends requests whose replies are one line each, in pipelines."""
        batch = []

        def flush():
            self.socket.sendall(b"".join(batch))
            for _ in batch:
                if self.line()[:1] == b"-":
                    raise SystemExit("a key was refused")
            batch.clear()

        for request in requests:
            batch.append(request)
            if len(batch) == chunk:
                flush()
        flush()


def encode(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def others(count, ttl=3600, value=b"x" * 16):
    """Requests that set keys with a time to live of an hour."""
    return (encode((b"SET", b"other:%09d" % n, value, b"EX", ttl)) for n in range(count))


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


def millis(seconds):
    return f"{seconds * 1_000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def micros(seconds):
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else millis(seconds)
