#!/usr/bin/env python3
"""What a bound of the bytes that the system accepts and has not sent (TCP_NOTSENT_LOWAT) costs a
client that is not slow, and what it saves where a client is.

    python3 tests/readers/unsent.py fast many late5 late20 late100 held
    unshare --user --map-root-user --net \\
        python3 tests/readers/unsent.py --mtu 1500 --delay 50 fast late100

Prints a table with a column for each candidate: the median of the rounds, in MB/s, and for `held`
the most that the system has for one client. The candidates take turns within a round. With --mtu,
the clients are beyond a device of that MTU; with --delay, packets take so many milliseconds there
and back. Both need a network namespace.
"""

import argparse
import errno
import fcntl
import heapq
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

TCP_NOTSENT_LOWAT = 25
PIECE = b"\0" * (16 << 10)
# A client is quick whose wait has ended within this time.
QUICK_S = 0.25
KIB = 1 << 10

# How many bytes, and when: "start" from the accept on; "lifted" until a wait of a write was quick;
# "doubles" or "fourfold" with each wait that was quick, and begins anew after another; "late" once
# a write has waited for LATE_S.
CANDIDATES = {
    "none": ("start", 0),
    "64K": ("start", 64 * KIB),
    "256K": ("start", 256 * KIB),
    "1M": ("start", 1024 * KIB),
    "64K-lifted": ("lifted", 64 * KIB),
    "256K-lifted": ("lifted", 256 * KIB),
    "64K-doubles": ("doubles", 64 * KIB),
    "128K-doubles": ("doubles", 128 * KIB),
    "256K-doubles": ("doubles", 256 * KIB),
    "256K-fourfold": ("fourfold", 256 * KIB),
    "64K-late": ("late", 64 * KIB),
}
# By how much a quick wait multiplies the bound.
FACTORS = {"doubles": 2, "fourfold": 4}
LATE_S = 0.25
# A bound that would be larger is none.
BOUND_MAX = 4 << 20


class Sender:
    def __init__(self, connection, candidate):
        self.connection = connection
        self.kind, self.unsent_max = CANDIDATES[candidate]
        self.waits_since = None
        self.present = 0
        if self.kind != "late":
            self.bound(self.unsent_max)

    def bound(self, unsent_max):
        if unsent_max != self.present:
            self.connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent_max)
            self.present = unsent_max

    def was_quick(self, is_quick):
        if self.kind == "lifted" and is_quick:
            self.bound(0)
        elif self.kind in FACTORS and not is_quick:
            self.bound(self.unsent_max)
        elif self.kind in FACTORS and self.present > 0:
            bound = self.present * FACTORS[self.kind]
            self.bound(bound if bound <= BOUND_MAX else 0)

    def send(self, held_up_s):
        """Sends until the socket is full. False if the client has left."""
        if self.waits_since is not None:
            self.was_quick(time.monotonic() - self.waits_since <= QUICK_S)
            self.waits_since = None
        try:
            # Others are served, too.
            for _ in range(64 if held_up_s == 0 else 1 << 30):
                self.connection.send(PIECE)
            return True
        except BlockingIOError:
            self.waits_since = time.monotonic()
            if held_up_s > 0:
                time.sleep(held_up_s)
            return True
        except OSError:
            return False

    def look(self):
        is_late = self.waits_since is not None and time.monotonic() - self.waits_since > LATE_S
        if self.kind == "late" and is_late:
            self.bound(self.unsent_max)


def serve(listener, candidate, held_up_s):
    """One thread with edge-triggered epoll, as a runtime has."""
    poll, senders, ready = select.epoll(), {}, []
    poll.register(listener, select.EPOLLIN)
    looked = time.monotonic()
    while True:
        events = poll.poll(0 if ready else 0.1)
        again = [fd for fd in ready if fd in senders]
        ready = []
        for fd, _ in events:
            if fd != listener.fileno():
                again.append(fd)
                continue
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            connection.setblocking(False)
            senders[connection.fileno()] = Sender(connection, candidate)
            poll.register(connection, select.EPOLLOUT | select.EPOLLET)
        for fd in dict.fromkeys(again):
            sender = senders.get(fd)
            if sender is None:
                continue
            if not sender.send(held_up_s):
                poll.unregister(fd)
                senders.pop(fd).connection.close()
            elif sender.waits_since is None:
                ready.append(fd)
        if time.monotonic() - looked > 0.1:
            looked = time.monotonic()
            for sender in senders.values():
                sender.look()


class Server:
    """A process that serves, so that no lock of Python is shared with the clients."""

    def __init__(self, path, candidate, held_up_s):
        listener = socket.create_server((path.listen, 0), backlog=2048)
        listener.setblocking(False)
        self.address = (path.connect, listener.getsockname()[1])
        self.process = os.fork()
        if self.process == 0:
            try:
                serve(listener, candidate, held_up_s)
            finally:
                os._exit(1)
        listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.process, 9)
        os.waitpid(self.process, 0)


def measure(path, candidate, clients, held_up_s, seconds):
    """So many clients read for a time, after one fifth of it. Returns the MB/s of all."""
    with Server(path, candidate, held_up_s) as server:
        poll, sockets = select.epoll(), {}
        for _ in range(clients):
            connection = socket.create_connection(server.address)
            connection.setblocking(False)
            sockets[connection.fileno()] = connection
            poll.register(connection, select.EPOLLIN)
        buffer, taken = bytearray(256 * KIB), 0
        begin = time.monotonic()
        while (now := time.monotonic()) - begin < seconds:
            for fd, _ in poll.poll(0.01):
                taken += sockets[fd].recv_into(buffer)
        for connection in sockets.values():
            connection.close()
        return taken / 1e6 / (now - begin)


def unsent(server_port):
    """What the system has of each connection of the server, by the port of the client."""
    table = {}
    with open("/proc/net/tcp") as file:
        for line in file.readlines()[1:]:
            _, local, peer, state, queues = line.split()[:5]
            if int(local.split(":")[1], 16) == server_port and state == "01":
                table[int(peer.split(":")[1], 16)] = int(queues.split(":")[0], 16)
    return table


def held(path, candidate, seconds):
    """Clients that never read, one of 30 kB/s, and one that stops after two fast seconds."""
    with Server(path, candidate, 0) as server:
        connect = lambda: socket.create_connection(server.address)
        never, slow, stops = [connect() for _ in range(30)], connect(), connect()
        stops.setblocking(False)
        begin, taken = time.monotonic(), 0
        while (now := time.monotonic() - begin) < seconds:
            if now < 2:
                try:
                    while stops.recv(256 * KIB) and time.monotonic() - begin < 2:
                        pass
                except BlockingIOError:
                    pass
            taken += len(slow.recv(max(1, int(now * 30_000) - taken)))
            time.sleep(0.001 if now < 2 else 0.1)
        table = unsent(server.address[1])
        ports = lambda sockets: [each.getsockname()[1] for each in sockets]
        kinds = {"never reads": never, "30 kB/s": [slow], "fast, then stops": [stops]}
        most = lambda sockets: max(table.get(port, 0) for port in ports(sockets)) / 1e3
        return {kind: most(sockets) for kind, sockets in kinds.items()}


class Path:
    listen = connect = "127.0.0.1"


def delay(device, seconds):
    """A packet to the peer comes back as one from it: with both addresses swapped, which leaves the
    checksums right. So both ends of a connection are here, and each packet takes a time."""
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", device.encode(), 0x1001))

    def forward():
        waiting, count = [], 0
        os.set_blocking(tun, False)
        while True:
            timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
            select.select([tun], [], [], timeout)
            try:
                for _ in range(64):
                    packet = os.read(tun, 65_536)
                    swapped = packet[:12] + packet[16:20] + packet[12:16] + packet[20:]
                    count += 1
                    heapq.heappush(waiting, (time.monotonic() + seconds, count, swapped))
            except BlockingIOError:
                pass
            while waiting and waiting[0][0] <= time.monotonic():
                os.write(tun, heapq.heappop(waiting)[2])

    if os.fork() == 0:
        try:
            forward()
        finally:
            os._exit(1)
    os.close(tun)


def set_up(mtu, delay_ms):
    run = lambda *command: subprocess.run(["ip", *command], check=True)
    run("link", "set", "lo", "up")
    path = Path()
    if delay_ms == 0:
        run("link", "set", "lo", "mtu", str(mtu))
        return path
    run("tuntap", "add", "delay0", "mode", "tun")
    delay("delay0", delay_ms / 2_000)
    run("addr", "add", "10.9.0.1/24", "dev", "delay0")
    run("link", "set", "delay0", "mtu", str(mtu), "txqueuelen", "10000", "up")
    path.listen, path.connect = "10.9.0.1", "10.9.0.2"
    return path


ROWS = {"fast": (1, 0), "many": (1_000, 0), "late5": (1, 5), "late20": (1, 20), "late100": (1, 100)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=[*ROWS, "held"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--mtu", type=int)
    parser.add_argument("--delay", type=int, default=0)
    parser.add_argument("--candidates", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    options = parser.parse_args()
    path = set_up(options.mtu, options.delay) if options.mtu else Path()
    print(f"{'':16}", *(f"{name:>12}" for name in options.candidates))
    for row in options.rows:
        if row == "held":
            columns = [held(path, candidate, 10) for candidate in options.candidates]
            for kind in columns[0]:
                print(f"{kind:16}", *(f"{held[kind]:>9.0f} kB" for held in columns), flush=True)
            continue
        clients, held_up_ms = ROWS[row]
        rates = {candidate: [] for candidate in options.candidates}
        for _ in range(options.rounds):
            for candidate in options.candidates:
                one = measure(path, candidate, clients, held_up_ms / 1e3, options.seconds)
                rates[candidate].append(one)
        medians = (statistics.median(each) for each in rates.values())
        print(f"{row:16}", *(f"{median:>12.1f}" for median in medians), flush=True)


main()
