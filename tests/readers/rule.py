#!/usr/bin/env python3
"""Which clients candidates of the rule of a least rate cut, and when.

    python3 tests/readers/rule.py [--seconds 150]

Sends to clients of several paces, notes each 100 ms how many bytes the kernel of each has
acknowledged, and applies the candidates to that: 64 bytes/s, with a grace of 5 s. In a network
namespace, the device `lo` may have another MTU.
"""

import argparse
import socket
import threading
import time

RATE, GRACE_S, LUMP_MAX_S, STEP_S = 64, 5, 60, 0.1
TCP_INFO, BYTES_ACKED_AT = 11, 120


def credit(longest_s):
    """Each byte gives the time that it takes at the rate, up to a bound."""
    def cut_at(trace):
        left = GRACE_S
        for index in range(1, len(trace)):
            left += (trace[index] - trace[index - 1]) / RATE - STEP_S
            left = min(left, longest_s)
            if left < 0 and index * STEP_S > GRACE_S:
                return index * STEP_S
        return None
    return cut_at


def window(trace):
    """In each span of the grace, as many bytes as the rate demands."""
    span = int(GRACE_S / STEP_S)
    for index in range(span, len(trace)):
        if trace[index] - trace[index - span] < RATE * GRACE_S:
            return index * STEP_S
    return None


def largest_lump(trace):
    """No progress for as long as the largest lump so far takes at the rate, up to a bound."""
    last, largest = 0, 0
    for index in range(1, len(trace)):
        lump = trace[index] - trace[index - 1]
        if lump > 0:
            last, largest = index, max(largest, lump)
        if (index - last) * STEP_S > min(max(largest / RATE, GRACE_S), LUMP_MAX_S):
            return index * STEP_S
    return None


CANDIDATES = {
    "each span of 5 s": window,
    "all bytes so far": credit(float("inf")),
    "largest lump, 60 s": largest_lump,
    "bytes, 60 s ahead": credit(LUMP_MAX_S),
}

# Bytes, each so many seconds; then what the client reads before, and the receive buffer.
CLIENTS = {
    "10 kB/s": (1_000, 0.1, 0, None),
    "30 kB/s": (3_000, 0.1, 0, None),
    "100 kB/s": (10_000, 0.1, 0, None),
    "10 kB/s, each 5 s": (50_000, 5, 0, None),
    "10 kB/s, receive buffer 16 KiB": (1_000, 0.1, 0, 16 << 10),
    "reads nothing": (0, 1, 0, None),
    "1 byte/s": (1, 1, 0, None),
    "5 MB, then nothing": (0, 1, 5_000_000, None),
    "32 bytes each 5 s, receive buffer 1 KiB": (32, 5, 0, 1 << 10),
}


def read(address, pace, ready):
    size, period, before, buffer = pace
    client = socket.socket()
    if buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.connect(address)
    ready.wait()
    taken, begin = 0, time.monotonic()
    while taken < before:
        taken += len(client.recv(1 << 16))
    count = 0
    while True:
        count += 1
        time.sleep(max(0, begin + count * period - time.monotonic()))
        left = size
        while left > 0:
            left -= len(client.recv(left))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=150)
    seconds = parser.parse_args().seconds
    ready, traces, sockets = threading.Event(), {}, {}
    listener = socket.create_server(("127.0.0.1", 0))
    for name, pace in CLIENTS.items():
        arguments = (listener.getsockname(), pace, ready)
        threading.Thread(target=read, args=arguments, daemon=True).start()
        sockets[name], traces[name] = listener.accept()[0], []
        sockets[name].setblocking(False)
    ready.set()
    piece, begin = bytes(1 << 16), time.monotonic()
    for step in range(int(seconds / STEP_S)):
        while time.monotonic() - begin < (step + 1) * STEP_S:
            for connection in sockets.values():
                try:
                    connection.send(piece)
                except BlockingIOError:
                    pass
            time.sleep(0.002)
        for name, connection in sockets.items():
            info = connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 216)
            traces[name].append(int.from_bytes(info[BYTES_ACKED_AT:BYTES_ACKED_AT + 8], "little"))
    print("| client | " + " | ".join(CANDIDATES) + " |\n|---|" + "--:|" * len(CANDIDATES))
    for name, trace in traces.items():
        cells = (cut_at([0, *trace]) for cut_at in CANDIDATES.values())
        print(f"| {name} | " + " | ".join(f"{at:.0f} s" if at else "kept" for at in cells) + " |")


main()
