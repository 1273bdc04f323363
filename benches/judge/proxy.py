"""Judges the example reverse_proxy by programs of others, for `corewheel-bench proxy`.

slowhttptest attacks the proxy, nginx and HAProxy in front of the same upstream server, while fast
clients measure the answers; the attacks of holds.py try to hold each of them by a few connections,
by HTTP/1 and HTTP/2; wrk drives the proxy with and without timeouts, for the processor time of a
request. No figure of the attacks is a speed. Needs Linux, Python 3.9, and for all parts

    apt-get install --no-install-recommends slowhttptest nginx haproxy wrk
"""

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import holds
from judge import Process, figure, free_port, machine, need, percentile, say, tell, version

# The programs that each part needs.
PROGRAMS = {
    "holds": ["nginx", "haproxy"],
    "attacks": ["slowhttptest", "nginx", "haproxy"],
    "cost": ["wrk"],
}

# --- settings ---------------------------------------------------------------------------------

# The kernel memory of a client that does not read: what its server has written to it, and what the
# upstream server has written to its server.
SLOW_READER_BYTES = 600_000


class Settings:
    """How long, how many, and the timeouts that all servers have, in seconds."""

    def __init__(self, args):
        quick = args.quick
        self.connections = 200 if quick else 4000
        self.attack_s = 8 if quick else 30
        self.follow_up_s = 1 if quick else 2
        self.timeout_s = 3 if quick else 10
        self.response_s = 2 * self.timeout_s
        self.rate = 64
        # How long the attacks that hold a few connections go on.
        self.patience_s = 3 * self.timeout_s
        self.held_connections = 5
        # The kernel's send buffers. Without a limit, thousands of clients that do not read take
        # all memory that the kernel has for TCP, whichever server it is.
        self.send_buffer = 1 << 16
        self.rounds = 2 if quick else args.rounds
        self.load_s = 2 if quick else 8
        self.load_connections = 32
        self.threads = len(os.sched_getaffinity(0))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.files = hard
        # A server has two sockets for each connection, and some to spare.
        most = (hard - 500) // 2
        if self.connections > most:
            say(f"{self.connections} connections need more files than {hard}: {most} are opened")
            self.connections = most
        # A client that does not read holds kernel memory on both sides of a server. Where all of
        # that is taken, every server on the machine waits, so the readers take half of it.
        pages = int(Path("/proc/sys/net/ipv4/tcp_mem").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE") // 2
        self.slow_readers = min(self.connections, memory // SLOW_READER_BYTES)

    def connections_of(self, kind):
        return self.slow_readers if kind == "slow reads" else self.connections

    def opened_per_s(self, kind):
        """All slow connections are opened in the first sixth of an attack."""
        return max(50, self.connections_of(kind) * 6 // self.attack_s)


# --- the servers ------------------------------------------------------------------------------


# The timers of the proxy: those of corewheel with all limits and with the few that hyper and tokio
# bring, those of tokio, and none.
FEW = "few"
TIMERS = ["corewheel", FEW, "none", "tokio"]
# The limits that hyper and tokio do not bring, turned off.
MORE_THAN_FEW = {
    "read-idle": "0s", "write-stall": "0s", "max-age": "0s", "read-rate": "0", "write-rate": "0",
    "upstream-stall": "0s",
}


def proxy_command(binary, settings, port, upstream, mode, timer, stats, is_http2):
    s = settings.timeout_s
    limits = {
        "header": f"{s}s", "first-byte": f"{s}s", "read-idle": f"{s}s", "write-stall": f"{s}s",
        "keep-alive": f"{s}s", "read-rate": str(settings.rate), "write-rate": str(settings.rate),
        "rate-grace": f"{s}s", "connect": "2s", "response": f"{settings.response_s}s",
        "upstream-stall": f"{s}s",
    }
    if timer == FEW:
        timer, limits = "corewheel", limits | MORE_THAN_FEW
    return [
        str(binary), "--listen", f"127.0.0.1:{port}", "--stats", f"127.0.0.1:{stats}",
        "--upstream", f"127.0.0.1:{upstream}", "--threads", str(settings.threads),
        "--mode", mode, "--timer", timer, "--drain", "1s",
        *(word for name, value in limits.items() for word in (f"--{name}", value)),
        "--send-buffer", str(settings.send_buffer), *(["--h2c"] if is_http2 else []),
    ]


NGINX = """\
daemon off;
{user}worker_processes {threads};
worker_rlimit_nofile {files};
pid {folder}/nginx.pid;
error_log {folder}/nginx.error.log crit;
events {{ worker_connections {worker_connections}; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    client_header_timeout {s}s;
    client_body_timeout {s}s;
    send_timeout {s}s;
    keepalive_timeout {s}s;
    upstream server {{ server 127.0.0.1:{upstream}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096 sndbuf={send_buffer}{http2};
        client_max_body_size 0;
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_connect_timeout 2s;
            proxy_request_buffering {buffering};
            proxy_send_timeout {server}s;
            proxy_read_timeout {server}s;
            proxy_max_temp_file_size 0;
        }}
    }}
}}
"""

HAPROXY = """\
global
    nbthread {threads}
    maxconn {maxconn}
    tune.sndbuf.client {send_buffer}
defaults
    mode http
    {buffering}
    timeout connect 2s
    timeout client {s}s
    timeout server {server}s
    timeout http-request {s}s
    timeout http-keep-alive {s}s
frontend clients
    bind 127.0.0.1:{port} backlog 4096{http2}
    default_backend servers
backend servers
    server upstream 127.0.0.1:{upstream}
"""


def nginx_command(settings, folder, port, upstream, is_http2, holds_few):
    conf = Path(folder, "nginx.conf")
    conf.write_text(NGINX.format(
        user="user root;\n" if os.geteuid() == 0 else "", threads=settings.threads, folder=folder,
        files=settings.files, worker_connections=settings.files - 200, s=settings.timeout_s,
        server=settings.timeout_s if holds_few else settings.response_s, port=port,
        upstream=upstream, send_buffer=settings.send_buffer, http2=" http2" if is_http2 else "",
        # An upload that is stored first never meets an upstream server that does not read.
        buffering="off" if holds_few else "on",
    ))
    return ["nginx", "-p", str(folder), "-c", str(conf), "-e", f"{folder}/nginx.error.log"]


def haproxy_command(settings, folder, port, upstream, is_http2, holds_few):
    conf = Path(folder, "haproxy.cfg")
    conf.write_text(HAPROXY.format(
        threads=settings.threads, maxconn=(settings.files - 200) // 2, s=settings.timeout_s,
        server=settings.timeout_s if holds_few else settings.response_s, port=port,
        upstream=upstream, send_buffer=settings.send_buffer,
        http2=" proto h2" if is_http2 else "", buffering="option http-buffer-request",
    ))
    return ["haproxy", "-db", "-f", str(conf)]


SERVERS = [
    "corewheel, multi-thread", "corewheel, per-core", "tokio, multi-thread", "nginx", "HAProxy",
]


def server(name, binary, settings, folder, upstream, is_http2=False, holds_few=False):
    port = free_port()
    if name == "nginx":
        command = nginx_command(settings, folder, port, upstream, is_http2, holds_few)
    elif name == "HAProxy":
        command = haproxy_command(settings, folder, port, upstream, is_http2, holds_few)
    else:
        timer, mode = name.split(", ")
        command = proxy_command(
            binary, settings, port, upstream, mode, timer, free_port(), is_http2)
    return Process(name, command, port, folder)


# --- fast clients -----------------------------------------------------------------------------

PROBE_PERIOD_S = 0.02
PROBE_PATIENCE_S = 5
PROBE = b"GET / HTTP/1.1\r\nHost: proxy\r\n%b\r\n"


class Probe:
    """A fast client: one request every 20 ms, each on a fresh connection or all on one."""

    def __init__(self, port, is_fresh):
        self.port, self.is_fresh = port, is_fresh
        self.times_ms, self.failed = [], 0
        self.connection = None

    def ask(self, end):
        if self.connection is None:
            left = max(0.001, end - time.monotonic())
            self.connection = socket.create_connection(("127.0.0.1", self.port), left)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        extra = b"Connection: close\r\n" if self.is_fresh else b""
        self.connection.settimeout(max(0.001, end - time.monotonic()))
        self.connection.sendall(PROBE % extra)
        answer = b""
        while True:
            received = self.connection.recv(4096)
            if not received:
                raise ConnectionError("the server closed the connection")
            answer += received
            head, separator, body = answer.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            if separator and length and len(body) >= int(length[1]):
                break
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(answer.split(b"\r\n")[0].decode(errors="replace"))
        if self.is_fresh or re.search(rb"(?i)\r\nconnection: close", head):
            self.close()

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def run(self, stop_at):
        due = time.monotonic()
        while due < stop_at:
            time.sleep(max(0, due - time.monotonic()))
            end = due + PROBE_PATIENCE_S
            # A connection that the server has closed between two requests is made again.
            for attempt in range(2):
                is_old = self.connection is not None
                try:
                    self.ask(end)
                    self.times_ms.append((time.monotonic() - due) * 1000)
                    break
                except OSError:
                    self.close()
                    if attempt == 1 or not is_old or time.monotonic() >= end:
                        self.failed += 1
                        break
            # The times count from when a request was due. One that took very long delays those
            # after it by no more than its patience.
            due = max(due + PROBE_PERIOD_S, time.monotonic() - PROBE_PATIENCE_S)
        self.close()

    def result(self):
        times = {f"{part:.0%}": percentile(self.times_ms, part) for part in (0.5, 0.99, 1)}
        return {"failed": self.failed, **times}


def run_probes(port, seconds):
    """The body of the process of the fast clients: prints their times as JSON."""
    stop_at = time.monotonic() + seconds
    probes = {"fresh": Probe(port, True), "keep_alive": Probe(port, False)}
    threads = [threading.Thread(target=probe.run, args=[stop_at]) for probe in probes.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({name: probe.result() for name, probe in probes.items()}))


# --- attacks ----------------------------------------------------------------------------------

ATTACKS = {
    "slow heads": "-H", "slow bodies": "-B", "slow reads": "-X",
}


def attack_command(kind, settings, port, folder):
    common = [
        "slowhttptest", "-c", str(settings.connections_of(kind)),
        "-r", str(settings.opened_per_s(kind)), "-l", str(settings.attack_s), "-p", "3", ATTACKS[kind], "-v", "1",
    ]
    url = f"http://127.0.0.1:{port}/"
    if kind == "slow heads":
        return common + ["-i", str(settings.follow_up_s), "-x", "24", "-u", url]
    if kind == "slow bodies":
        follow_up = ["-i", str(settings.follow_up_s), "-x", "10", "-s", "8192"]
        return common + follow_up + ["-u", url]
    read = ["-w", "512", "-y", "1024", "-n", "5", "-z", "32", "-k", "1"]
    return common + read + ["-u", f"{url}big?bytes=2000000"]


def established(port):
    """How many connections of a server are open, by the kernel's table."""
    pattern = b": [0-9A-F]{8}:%04X [0-9A-F]{8}:[0-9A-F]{4} 01 " % port
    return len(re.findall(pattern, Path("/proc/net/tcp").read_bytes()))


def attack(kind, name, binary, settings, folder, upstream):
    """One attack on one server."""
    with server(name, binary, settings, folder, upstream) as target:
        before_s = target.processor_s()
        start = time.monotonic()
        probe_command = [
            sys.executable, __file__, "-", "--probe", str(target.port), str(settings.attack_s),
        ]
        probes = subprocess.Popen(probe_command, stdout=subprocess.PIPE, text=True)
        attacker = subprocess.Popen(
            attack_command(kind, settings, target.port, folder), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        said = []
        reader = threading.Thread(target=lambda: said.append(attacker.stdout.read()))
        reader.start()
        samples, peak = [], 0
        try:
            # The last sample comes before the attacker closes its connections.
            while time.monotonic() - start < settings.attack_s - 1:
                time.sleep(1 - (time.monotonic() - start) % 1)
                target.check_runs()
                samples.append((time.monotonic() - start, established(target.port)))
                peak = max(peak, target.memory_mb())
            fast = json.loads(probes.communicate(timeout=60)[0])
            used_s = target.processor_s() - before_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                attacker.wait(20)
        finally:
            for process in [attacker, probes]:
                if process.poll() is None:
                    process.kill()
                process.wait()
            reader.join()
    said = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", b"".join(said).decode(errors="replace"))
    status = re.findall(r"Exit status:\s*(.*)", said)
    most, at_end, half_s, all_s = summary_of(samples)
    say(f"  {kind}, {name}: {most} open, {at_end} at the end; {status[-1:]}")
    rows = {"most open": most, "open at the end": at_end, "half closed, s": half_s,
            "all closed, s": all_s, "processor, s": used_s, "memory, MB": peak}
    for which, result in fast.items():
        for part, value in result.items():
            rows[f"{which}, {part}" + (", ms" if "%" in part else "")] = value
    for row, value in rows.items():
        figure(kind, row, name, value)


# The fast client that keeps its connection, and the probe of slowhttptest.
OWN_CONNECTIONS = 3


def summary_of(samples):
    """What the counts of open connections, one a second, say about the slow ones."""
    counts = [(at, max(0, count - OWN_CONNECTIONS)) for at, count in samples]
    peak_at, peak = max(counts, key=lambda sample: sample[1])
    after = [sample for sample in counts if sample[0] >= peak_at]
    first = lambda limit: next((round(at) for at, count in after if count <= limit), None)
    return peak, counts[-1][1], first(peak / 2), first(0)


# --- attacks by a few connections -----------------------------------------------------------------

HOLDERS = ["corewheel, multi-thread", "corewheel, per-core", "nginx", "HAProxy"]


def hold(kind, name, binary, settings, folder):
    """One attack of holds.py on one server, which has an upstream server of its own."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    folder.chmod(0o755)
    upstream = holds.Upstream()
    is_http2 = kind in holds.HTTP2
    with server(name, binary, settings, folder, upstream.port, is_http2, True) as target:
        # The process has made its threads and their descriptors by then.
        time.sleep(1)
        before, memory = target.descriptors(), target.memory_mb()
        start, clients, ended_s = time.monotonic(), [], None
        attacker = threading.Thread(
            target=lambda: clients.extend(
                holds.run(kind, target.port, settings.held_connections)))
        attacker.start()
        time.sleep(0.5)
        while attacker.is_alive() and ended_s is None:
            time.sleep(0.1)
            if established(target.port) == 0:
                ended_s = time.monotonic() - start
        attacker.join()
        if ended_s is None and all(client.said() != "open" for client in clients):
            ended_s = max(client.seconds for client in clients)
        said = sorted({client.said() for client in clients})
        upstream_open = upstream.open
        for client in clients:
            client.socket.close()
        time.sleep(3)
        target.check_runs()
        held = f"{upstream.most} / {upstream_open} / {upstream.open}"
        return {
            "ended, s": ended_s, "said last": ", ".join(said),
            "upstream connections: most / at the end / left": held,
            "descriptors left": target.descriptors() - before,
            "memory left, MB": target.memory_mb() - memory,
        }


def all_holds(names, binary, settings, folder):
    """All attacks of holds.py on each server. The attacks on a server go on at the same time, each
    on a process of its own: they wait nearly all the time."""
    holds.PATIENCE_S = settings.patience_s
    for name in names:
        with ThreadPoolExecutor(len(holds.ATTACKS)) as pool:
            found = {kind: pool.submit(hold, kind, name, binary, settings, folder)
                     for kind in holds.ATTACKS}
        for kind, row in found.items():
            for table, value in row.result().items():
                figure(table, kind, name, value)
        say(f"  {name}: the attacks by a few connections have ended")


# --- processor time ---------------------------------------------------------------------------

LOAD_TURN_S = 0.1


class Load:
    """wrk, which sends requests to a server without a pause while it is not stopped."""

    def __init__(self, target, settings, seconds):
        self.name = target.name
        self.popen = subprocess.Popen(
            ["wrk", "-t", "1", "-c", str(settings.load_connections), "-d", f"{seconds}s",
             "--timeout", "10s", f"http://127.0.0.1:{target.port}/"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )

    def stop(self):
        self.popen.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.popen.send_signal(signal.SIGCONT)

    def requests(self):
        """Waits for the end. The number of requests."""
        self.go_on()
        said, _ = self.popen.communicate()
        requests = re.search(r"(\d+) requests in ", said)
        if not requests or "Non-2xx" in said or "Socket errors" in said or requests[1] == "0":
            raise SystemExit(f"{self.name}: wrk says\n{said}")
        return int(requests[1])


def cost_round(targets, settings):
    """A round: the processor time of a request with each timer.

    The speed of a machine changes within seconds, so the load goes from server to server ten times
    a second."""
    before_s = {timer: target.processor_s() for timer, target in targets.items()}
    seconds = settings.load_s * len(targets)
    loads = {timer: Load(target, settings, seconds) for timer, target in targets.items()}
    for load in loads.values():
        load.stop()
    end, turn = time.monotonic() + seconds - 0.3, 0
    while time.monotonic() < end:
        # Each server is first, second and last as often.
        order = TIMERS[turn % len(TIMERS):] + TIMERS[:turn % len(TIMERS)]
        for timer in order if turn // len(TIMERS) % 2 == 0 else reversed(order):
            loads[timer].go_on()
            time.sleep(LOAD_TURN_S)
            loads[timer].stop()
        turn += 1
    requests = {timer: load.requests() for timer, load in loads.items()}
    return {timer: (target.processor_s() - before_s[timer]) / requests[timer] * 1e6
            for timer, target in targets.items()}


def cost(mode, binary, settings, folder, upstream):
    """The processor time of a request with each timer, interleaved.

    Each round has servers of its own: where the parts of a process lie in memory changes its speed by
    some percent, and stays for its life."""
    for number in range(settings.rounds):
        with contextlib.ExitStack() as stack:
            targets = {
                timer: stack.enter_context(
                    server(f"{timer}, {mode}", binary, settings, folder, upstream))
                for timer in TIMERS
            }
            # The connections to the upstream server are made, and the memory is touched.
            for target in targets.values():
                Load(target, settings, 1).requests()
                target.check_runs()
            us = cost_round(targets, settings)
        say(f"  {mode}, round {number + 1}: {us}")
        for timer in TIMERS:
            figure("a request, processor time, µs", mode, timer, us[timer])
            more = us[timer] / us["none"] * 100 - 100
            figure("a request, more than without timeouts in each round, %", mode, timer, more)


# --- what is told before the tables -----------------------------------------------------------


def explain(settings, binary, parts):
    s, rate = settings.timeout_s, settings.rate
    versions = [("reverse_proxy", r"(\d\S*)", str(binary), "--version"),
                ("slowhttptest", r"version (\S+)", "slowhttptest", "-h"),
                ("nginx", r"nginx/(\S+)", "nginx", "-v"),
                ("HAProxy", r"version (\S+)", "haproxy", "-v"), ("wrk", r"wrk (\S+)", "wrk", "-v")]
    named = ", ".join(f"{name} {version(*how)}" for name, *how in versions)
    tell(text=f"# The reverse proxy, judged by programs of others\n\n{machine()}\n\nVersions: {named}.\n")
    slow = {
        "slow heads": f"Each connection sends a line of a head that never ends, every"
        f" {settings.follow_up_s} s. The time for a head is {s} s everywhere.",
        "slow bodies": f"Each connection sends up to 10 bytes of a body of 8,192, every"
        f" {settings.follow_up_s} s. The time without a byte is {s} s everywhere. corewheel has a"
        f" least rate of {rate} bytes a second besides, HAProxy `option http-buffer-request`, and the"
        f" proxy with either timer {settings.response_s} s for the whole request.",
        "slow reads": f"Each connection has a receive window of 512 to 1,024 bytes, asks for 2 MB and"
        f" reads 32 bytes every 5 s. The kernel's send buffers are limited to"
        f" {settings.send_buffer >> 10} KiB everywhere. The time in which a client takes no byte is"
        f" {s} s everywhere; corewheel has a least rate of {rate} bytes a second besides, and hyper"
        " with tokio's timer no such limit.",
    }
    for kind, note in slow.items() if "attacks" in parts else ():
        tell(table=kind, note=f"## {kind.capitalize()}\n\n{note} slowhttptest opens"
             f" {settings.connections_of(kind):,} connections in the first {settings.attack_s // 6} s"
             f" and goes on for {settings.attack_s} s. *Open* is what the kernel shows, once a second;"
             " *closed* counts from the start of the attack. Two fast clients send a request every"
             " 20 ms, on fresh connections and on one that is kept; their times count from when a"
             f" request was due, and an answer after {PROBE_PATIENCE_S} s has failed. *tokio* is the"
             " same binary with tokio's timers.")
    if "holds" in parts:
        tell(table="ended, s", note="## Attacks by a few connections\n\n"
             f"{settings.held_connections} connections each, for {settings.patience_s} s. All limits"
             f" are {s} s, and the time for a response {settings.response_s} s in the proxy. *Ended*"
             " is when the kernel shows no open connection of a client any more, while the clients"
             " hold theirs, or when an HTTP/2 client has received RST_STREAM; – for not before the"
             " end. What is *left* is for 3 s after the clients have left; connections that the"
             " server keeps for later requests are among it.")
    if "cost" in parts:
        tell(table="a request, processor time, µs", note="## Processor time of a request\n\n"
             f"wrk sends requests without a pause on {settings.load_connections} connections. A round"
             f" gives each server {settings.load_s} s, in turns of {LOAD_TURN_S * 1e3:.0f} ms, between"
             " which its wrk is stopped, and has processes of its own. The processor time is that of"
             " the server's process, user and system. *few* has the limits of *tokio*, by corewheel.")


# --- main -------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", type=Path, help="the proxy")
    parser.add_argument("--quick", action="store_true", help="a few seconds for each run")
    parser.add_argument("--part", choices=list(PROGRAMS), help="one of the parts")
    parser.add_argument("--servers", help="these servers, separated by semicolons")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the processor time")
    parser.add_argument("--probe", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        return run_probes(int(args.probe[0]), float(args.probe[1]))
    parts = [args.part] if args.part else list(PROGRAMS)
    need(*(program for part in parts for program in PROGRAMS[part]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings, binary = Settings(args), args.program
    names = args.servers.split(";") if args.servers else SERVERS
    explain(settings, binary, parts)
    with tempfile.TemporaryDirectory(prefix="proxy-judge-") as folder:
        # nginx's workers may run as another user.
        os.chmod(folder, 0o755)
        port = free_port()
        command = [str(binary), "--mode", "upstream", "--listen", f"127.0.0.1:{port}",
                   "--send-buffer", str(settings.send_buffer)]
        with Process("upstream", command, port, folder):
            for kind in ATTACKS if "attacks" in parts else ():
                for name in names:
                    attack(kind, name, binary, settings, folder, port)
            if "holds" in parts:
                all_holds([name for name in names if name in HOLDERS], binary, settings, folder)
            for mode in ["multi-thread", "per-core"] if "cost" in parts else ():
                cost(mode, binary, settings, folder, port)


if __name__ == "__main__":
    main()
