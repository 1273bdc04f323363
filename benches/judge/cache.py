"""Judges the example resp_cache beside redis, for `corewheel-bench cache`.

Half an hour on a machine with two cpus, which must be idle otherwise; `--short` takes about ten
minutes. Nothing is fetched: redis is Debian's package, and valkey a path to a build of its source.

    apt-get install --no-install-recommends redis-server redis-tools
"""

import argparse
import bisect
import contextlib
import csv
import io
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from judge import Process, figure, free_port, machine, need, percentile, say, tell, version

TUNED = ["--hz", "500", "--active-expire-effort", "10"]
OPTIONS = None


class Server(Process):
    """One of the servers on a free port: on these cpus, with so many cores, with more options."""

    def __init__(self, name, cpus=None, cores=1, options=()):
        port = free_port()
        if name == "ours":
            command = [OPTIONS.program, "--runtime", OPTIONS.runtime, "--cores", str(cores),
                       "--stats", "127.0.0.1:0", "--listen", f"127.0.0.1:{port}"]
        else:
            binary = OPTIONS.valkey if name.startswith("valkey") else shutil.which("redis-server")
            command = [binary, "--save", "", "--appendonly", "no", "--port", str(port)]
            command += TUNED if name.endswith("tuned") else []
            command += ["--io-threads", "2"] if cores > 1 else []
        prefix = ["taskset", "-c", cpus] if cpus else []
        self.temporary = tempfile.TemporaryDirectory()
        super().__init__(name, [*prefix, *command, *options], port, self.temporary.name)

    def __exit__(self, *error):
        super().__exit__(*error)
        self.temporary.cleanup()

    def client(self):
        return Client(self.port)

    def info(self, name):
        text = self.client().call("INFO").split(b"\r\n")
        return int(next(line for line in text if line.startswith(name + b":")).split(b":")[1])


class Client:
    """A blocking client of RESP2 for commands whose replies are one line or one string."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

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

    def send(self, *words):
        self.socket.sendall(encode(words))

    def call(self, *words):
        self.send(*words)
        return self.reply()

    def load(self, requests, chunk=5_000):
        """Sends requests whose replies are one line each, in pipelines. How many were refused."""
        requests, refused = iter(requests), 0
        while batch := [request for _, request in zip(range(chunk), requests)]:
            self.socket.sendall(b"".join(batch))
            refused += sum(self.line()[:1] == b"-" for _ in batch)
        return refused


def encode(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def quantiles(table, row, name, values, scale, count=0):
    for part in (0.5, 0.99, 1):
        value = percentile(values, part)
        figure(table, f"{row}, {part:.0%}", name, value and value * scale, count)


# --- the tables -----------------------------------------------------------------------------------

DUE = 1_000


def lateness(names):
    """1,000 keys are due at one instant, beside other keys with a time to live of an hour. A client is
    subscribed to their events; a row ends when all have come, or after 60 s."""
    table = "lateness of 1,000 events, ms"
    for name in names:
        for others in (0, 10_000, 100_000, 1_000_000):
            if OPTIONS.short and name != "ours" and others in (10_000, 100_000):
                continue
            with Server(name, options=["--notify-keyspace-events", "Ex"]) as server:
                client, subscriber = server.client(), server.client()
                client.load(encode((b"SET", b"other:%09d" % n, b"x" * 16, b"EX", 3600))
                            for n in range(others))
                subscriber.send(b"SUBSCRIBE", b"__keyevent@0__:expired")
                while subscriber.buffer.count(b"\r\n") < 6:
                    subscriber.receive()
                time.sleep(1)
                at = int((time.time() + 1.5) * 1_000)
                client.load(encode((b"SET", b"due:%d" % n, b"x", b"PXAT", at)) for n in range(DUE))
                due, late = at / 1_000, []
                if time.time() > due:
                    raise SystemExit("the keys were due before all were set")
                subscriber.socket.settimeout(0.2)
                while len(late) < DUE and time.time() < due + 60:
                    with contextlib.suppress(socket.timeout):
                        chunk = subscriber.socket.recv(1 << 20)
                        late += [time.time() - due] * chunk.count(b"\r\ndue:")
            quantiles(table, "an event", name, late, 1e3, others)
            figure(table, "events that came", name, len(late), others)


def ask(port, until, results):
    """Asks GET without a pause, and sends the times that it took, with the moments."""
    client, samples = Client(port), []
    while time.time() < until:
        begin = time.perf_counter()
        client.call(b"GET", b"stays")
        samples.append((time.time(), time.perf_counter() - begin))
    results.send(samples)


def resident(names, keys=1_000_000, span=10, calm=4):
    """A million keys expire evenly within ten seconds. *Expired, resident* is the greatest excess of
    `DBSIZE`, asked every 100 ms, over the keys whose time had not come; the next row counts those
    whose time had come 50 ms before. A process of its own asks GET without a pause."""
    table = "a million keys expire in 10 s"
    for name in names:
        with Server(name) as server:
            client, rng = server.client(), random.Random(1)
            client.call("SET", "stays", "x" * 32)
            begin = time.time() + keys / 60_000 + calm + 2
            due = [int((begin + rng.random() * span) * 1_000) for _ in range(keys)]
            client.load(
                encode((b"SET", b"k:%d" % n, b"x" * 32, b"PXAT", at)) for n, at in enumerate(due))
            due.sort()
            if time.time() > begin - calm:
                raise SystemExit("loading took too long")
            results, sender = multiprocessing.Pipe(False)
            asker = multiprocessing.Process(target=ask, args=(server.port, begin + span + 1, sender))
            time.sleep(max(0, begin - calm - time.time()))
            asker.start()
            excess = late = 0
            full, gone = server.memory_mb(), None
            not_due = lambda now: keys - bisect.bisect_right(due, now * 1_000)
            while gone is None and time.time() < begin + span + 20:
                sent = time.time()
                size, received = int(client.call("DBSIZE")) - 1, time.time()
                excess = max(excess, size - not_due(received))
                late = max(late, size - not_due(sent - 0.05))
                if size == 0 and sent > begin + span:
                    gone = max(0, received - due[-1] / 1_000) * 1e3
                time.sleep(max(0, 0.1 - (time.time() - sent)))
            samples = results.recv()
            asker.join()
            time.sleep(3)
            after = server.memory_mb()
        for row, value in {"expired, resident": excess, "for more than 50 ms": late,
                           "last gone after, ms": gone, "memory full, MB": full,
                           "memory after, MB": after}.items():
            figure(table, row, name, value)
        for row, start, end in [("before", 0, begin - 0.5), ("meanwhile", begin, begin + span)]:
            times = [took for at, took in samples if start <= at < end]
            quantiles(table, f"GET {row}, µs", name, times, 1e6)


def memory(names, keys=1_000_000):
    """Keys of 16 bytes and values of 32, a million of them in a fresh server: by how much its resident
    memory grows."""
    for name in names:
        for row, tail in [("without a time to live", ()), ("with one", (b"EX", b"3600"))]:
            with Server(name) as server:
                client = server.client()
                client.call("SET", "first", "x")
                time.sleep(0.3)
                before = server.memory_mb()
                client.load(
                    encode((b"SET", b"key:%012d" % n, b"x" * 32) + tail) for n in range(keys))
                time.sleep(1.5)
                grown = server.memory_mb() - before
            figure("bytes a key", row, name, grown * 1e6 / keys, keys)


def throughput(names):
    """`redis-benchmark` with 50 clients and values of 32 bytes. On one core the server is pinned to the
    first cpu and the benchmark to the second. On two, both use both cpus, the server with two threads
    and the benchmark too."""
    rounds, requests = (3, 60_000) if OPTIONS.short else (5, 150_000)
    for cores in (1, 2):
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(Server(name, "0" if cores == 1 else None, cores))
                       for name in names]
            for pipeline in (1, 16):
                for test in ("set", "get"):
                    command = ["taskset", "-c", "1"] if cores == 1 else []
                    command += ["redis-benchmark", "-t", test, "-c", "50", "--csv", "-r", "100000"]
                    command += ["-n", str(requests * (4 if pipeline > 1 else 1)), "-d", "32"]
                    command += ["-P", str(pipeline), *(["--threads", "2"] if cores > 1 else [])]
                    row = f"{test.upper()}, pipeline of {pipeline}, {cores} cores"
                    for server in servers * rounds:
                        told = subprocess.run([*command, "-p", str(server.port)], check=True,
                                              capture_output=True, text=True).stdout
                        last = list(csv.DictReader(io.StringIO(told)))[-1]
                        figure("requests a second", row, server.name, float(last["rps"]))
                        figure("p99 of a request, ms", row, server.name,
                               float(last["p99_latency_ms"]))


def evict(server, seconds, tail, numbers):
    """One client sends SETs of new keys in pipelines of 16, and another asks for one key."""
    writer, asker, stop, late = server.client(), server.client(), threading.Event(), []

    def watch():
        while not stop.wait(0.001):
            begin = time.perf_counter()
            asker.call(b"GET", b"asked")
            late.append(time.perf_counter() - begin)

    thread = threading.Thread(target=watch)
    thread.start()
    begin, sets, refused, ran = time.perf_counter(), 0, 0, server.processor_s()
    while time.perf_counter() - begin < seconds:
        refused += writer.load(
            encode((b"SET", b"new:%012d" % next(numbers), b"x" * 64) + tail()) for _ in range(16))
        sets += 16
    rate, ran = sets / (time.perf_counter() - begin), server.processor_s() - ran
    stop.set()
    thread.join()
    return {
        "SETs a second": rate, "processor time, µs": ran / sets * 1e6,
        "refused, %": 100 * refused / sets, "GET p50, µs": percentile(late, 0.5) * 1e6,
        "GET p99, µs": percentile(late, 0.99) * 1e6,
    }


def eviction(names):
    """Each server is full of keys with a time to live of 1 to 2 hours, or with none, and shares one cpu.
    One client sends SETs of new keys in pipelines of 16, and another asks for one key. redis evicts by
    `volatile-ttl`."""
    for keys in (12_500, 50_000, 187_000, 373_000, 1_000_000):
        for row, is_timed in [("keys live 1 to 2 h", True), ("keys without an end", False)]:
            rng, numbers = random.Random(7), iter(range(1 << 60))
            tail = lambda: (b"EX", 3600 + rng.randrange(3600)) if is_timed else ()

            def fill(server):
                client = server.client()
                client.load(encode((b"SET", b"key:%012d" % n, b"x" * 64) + tail())
                            for n in range(keys))
                # The key that the other client asks for, which is evicted last.
                client.call("SET", "asked", "x" * 64, "EX", 86_400)
                return server.info(b"used_memory")

            with contextlib.ExitStack() as stack:
                servers = []
                for name in names:
                    # What the keys take without a limit is the limit of a second server.
                    with Server(name, "0") as unlimited:
                        limit = str(fill(unlimited))
                    options = ["--maxmemory", limit, "--maxmemory-policy", "volatile-ttl"]
                    options = ["--memory-max", limit] if name == "ours" else options
                    servers.append(stack.enter_context(Server(name, "0", options=options)))
                    fill(servers[-1])
                for server in servers * 3:
                    seconds = 1.5 if OPTIONS.short else 3
                    for table, value in evict(server, seconds, tail, numbers).items():
                        figure(f"a full cache: {table}", row, server.name, value, keys)


@contextlib.contextmanager
def growth(row, server):
    """Tells by how much the resident memory of a server grows at most in the `with` block."""
    before, peak, over = server.memory_mb(), [0], threading.Event()

    def watch():
        while not over.wait(0.01):
            peak[0] = max(peak[0], server.memory_mb() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    over.set()
    thread.join()
    figure("slow clients", row, server.name, peak[0])


def slow(names):
    """Ten subscribers do not read while keys of 200 MB expire whose events they are sent. Then, on a
    fresh server, clients send GETs of 1 GB, and do not read. Ours has two cores, as keys of another
    core take another way."""
    for name in names:
        with Server(name, None, 2, ["--notify-keyspace-events", "Ex"]) as server:
            clients = [server.client() for _ in range(10)]
            for client in clients:
                client.send(b"SUBSCRIBE", b"__keyevent@0__:expired")
                client.receive()
            setter = server.client()
            with growth("ten subscribers that do not read, MB", server):
                for number in range(2_000):
                    setter.call("SET", b"%d" % number + b"x" * 100_000, "x", "PX", 1)
                deadline = time.time() + 60
                while int(setter.call("DBSIZE")) and time.time() < deadline:
                    time.sleep(0.1)
                time.sleep(1)
            # Of the others, the setter and the one that asks are left.
            figure("slow clients", "of them ended", name, 12 - server.info(b"connected_clients"))
        with Server(name, None, 2) as server:
            clients = [server.client() for _ in range(8)]
            for number, client in enumerate(clients):
                client.call("SET", f"k{number}", b"x" * 1_000_000)
                # Many small replies come first, so that nothing speaks for large ones.
                client.load([encode((b"GET", b"none"))] * 20_000)
            with growth("GETs of 1 GB that are not read, MB", server):
                for number, client in enumerate(clients):
                    client.socket.sendall(encode((b"GET", f"k{number}")) * 125)
                time.sleep(3)


def main():
    global OPTIONS
    parts = {part.__name__: part for part in (lateness, resident, memory, throughput, eviction, slow)}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="the cache")
    parser.add_argument("--part", choices=parts, action="append", help="one of the tables")
    parser.add_argument("--short", action="store_true", help="ten minutes instead of thirty")
    parser.add_argument("--servers", default="redis,redis tuned,ours", help="separated by commas")
    parser.add_argument("--valkey", help="a valkey-server, for `valkey` and `valkey tuned`")
    parser.add_argument("--runtime", default="tokio")
    OPTIONS = parser.parse_args()
    need("redis-server", "redis-benchmark")
    redis = version(r"v=(\S+)", "redis-server", "--version")
    tell(text=f"# The cache `resp_cache` beside redis {redis}\n\n{machine()}\n")
    for name in OPTIONS.part or parts:
        say(name)
        tell(note=" ".join(parts[name].__doc__.split()))
        parts[name](OPTIONS.servers.split(","))


if __name__ == "__main__":
    main()
