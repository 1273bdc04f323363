#!/usr/bin/env python3
"""The memory that slow clients make a server take.

    slow.py [--only NAME] [--valkey PATH] [--runtime NAME]

Ten subscribers do not read, while keys of 200 MB expire whose events they are sent. Then, on a fresh
server, a client sends GETs of values of 1 MB in one pipeline, 23 kB of them, and does not read. The
greatest resident memory is shown, less that before, and how many of the subscribers were ended.
"""

import argparse
import threading
import time

from common import Server, commands, encode

SUBSCRIBERS = 10
MESSAGE = b"x" * 100_000
MESSAGES = 2_000
VALUES = 8
PIPELINE = 1_000


class Peak:
    """The greatest resident memory of a server while the `with` block runs."""

    def __init__(self, server):
        self.server, self.before = server, server.resident()
        self.peak, self.over = self.before, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.over.wait(0.01):
            self.peak = max(self.peak, self.server.resident())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def grown(self):
        return f"{(self.peak - self.before) / 1e6:,.0f} MB"


def subscribers(command):
    with Server(command) as server:
        slow = [server.client() for _ in range(SUBSCRIBERS)]
        for client in slow:
            client.socket.sendall(encode((b"SUBSCRIBE", b"__keyevent@0__:expired")))
            client.receive()
        setter = server.client()
        with Peak(server) as peak:
            for number in range(MESSAGES):
                setter.call("SET", b"%d" % number + MESSAGE, b"x", b"PX", b"1")
            deadline = time.time() + 60
            while int(setter.call("DBSIZE")) and time.time() < deadline:
                time.sleep(0.1)
            time.sleep(1)
        text = setter.call("INFO").split(b"\r\n")
        connected = next(line for line in text if line.startswith(b"connected_clients:"))
        return peak.grown(), SUBSCRIBERS + 1 - int(connected.split(b":")[1])


def pipeline(command):
    with Server(command) as server:
        client = server.client()
        for number in range(VALUES):
            client.call("SET", f"k{number}", b"x" * 1_000_000)
        # Many small replies come first, so that nothing speaks for large ones.
        others = [server.client() for _ in range(VALUES)]
        for other in others:
            other.load([encode((b"GET", b"none"))] * 20_000)
        with Peak(server) as peak:
            for number, other in enumerate(others):
                other.socket.sendall(encode((b"GET", f"k{number}")) * (PIPELINE // VALUES))
            time.sleep(3)
        return peak.grown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only")
    parser.add_argument("--valkey")
    parser.add_argument("--runtime", default="tokio")
    options = parser.parse_args()
    print("| server | ten slow subscribers, 200 MB of events | of them ended | GETs of 1 GB, not read |")
    print("|---|--:|--:|--:|")
    # Two cores, as keys of another core take another way.
    for name, command in commands(options.valkey, options.runtime, 2, "Ex").items():
        if options.only and name != options.only:
            continue
        held, ended = subscribers(command)
        print(f"| {name} | {held} | {ended} | {pipeline(command)} |", flush=True)


main()
