"""What the judges share: servers as processes, and figures, each a line of JSON for corewheel-bench."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


def say(line):
    print(line, file=sys.stderr, flush=True)


def tell(**line):
    print(json.dumps(line), flush=True)


def figure(table, row, contender, values, count=0):
    """A figure: a value, the values of all rounds, a text, or nothing."""
    if isinstance(values, str):
        return tell(table=table, row=row, count=count, contender=contender, text=values)
    values = values if isinstance(values, list) else [values]
    values = [value for value in values if value is not None]
    tell(table=table, row=row, count=count, contender=contender, values=values)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else None


def need(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        raise SystemExit(f"not installed: {' '.join(missing)}; see the top of this judge")


def version(pattern, *command):
    if not shutil.which(command[0]):
        return "unknown"
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    found = re.search(pattern, done.stdout)
    return found[1] if found else "unknown"


def machine():
    """What the servers and the judge share, as a sentence."""
    processor = version(r"model name\s*:\s*(.*)", "cat", "/proc/cpuinfo")
    return (f"The servers and their judge share one machine: {len(os.sched_getaffinity(0))} cpus"
            f" ({processor}), Linux {os.uname().release}. The load was {os.getloadavg()[0]:.1f} at"
            " the start.")


def ports():
    """Free ports, each once. They are none that the kernel gives to clients, or an attacker of one
    server could take the port of the next."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(lowest - 1, 1024, -1):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
    raise SystemExit("no port is free")


PORTS, PORTS_LOCK = ports(), threading.Lock()


def free_port():
    with PORTS_LOCK:
        return next(PORTS)


class Process:
    """A server in a process group of its own, which ends with the `with` block."""

    def __init__(self, name, command, port, folder):
        self.name, self.command, self.port, self.folder = name, command, port, folder
        self.log = Path(folder, re.sub(r"\W+", "-", name) + f"-{port}.log")

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True,
            )
        end = time.monotonic() + 15
        while time.monotonic() < end:
            self.check_runs()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            time.sleep(0.02)
        raise SystemExit(f"{self.name} does not listen on port {self.port}")

    def __exit__(self, *_):
        # The group is this process's own, so no other process is met.
        for number in [signal.SIGTERM, signal.SIGKILL]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(10)

    def check_runs(self):
        if self.popen.poll() is not None:
            log = self.log.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{self.name} has ended: {self.popen.returncode}\n{log}")

    def pids(self):
        """The process and its descendants."""
        children = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path("/proc", entry, "stat").read_text()
                parent = int(stat.rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry))
        found, left = [], [self.popen.pid]
        while left:
            found.append(left.pop())
            left.extend(children.get(found[-1], []))
        return found

    def processor_s(self):
        """The processor time of the process and its descendants since their start."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mb(self):
        """The proportional resident memory; the kernel's socket buffers are not in it."""
        kib = 0
        for pid in self.pids():
            with contextlib.suppress(OSError, TypeError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                kib += int(re.search(r"^Pss:\s+(\d+)", rollup, re.M)[1])
        return kib * 1024 / 1e6

    def descriptors(self):
        count = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{pid}/fd"))
        return count
