#!/usr/bin/env python3
"""How late the events of 1,000 keys come that are due at one instant, beside other keys.

    lateness.py [--valkey PATH] [--only NAME] [--others N ...] [--wait SECONDS] [--runtime NAME]
                [--short]
"""

import argparse
import socket
import time

from common import Server, commands, encode, millis, others, percentile

DUE = 1_000


def measure(command, other_keys, wait):
    with Server(command) as server:
        client = server.client()
        client.load(others(other_keys))
        subscriber = server.client()
        subscriber.socket.sendall(encode((b"SUBSCRIBE", b"__keyevent@0__:expired")))
        while subscriber.buffer.count(b"\r\n") < 6:
            subscriber.receive()
        time.sleep(1)
        due = time.time() + 1.5
        at = b"%d" % int(due * 1_000)
        due = int(at) / 1_000
        client.load(encode((b"SET", b"due:%d" % n, b"x", b"PXAT", at)) for n in range(DUE))
        if time.time() > due:
            raise SystemExit("the keys were due before all were set")
        chunks, events = [], 0
        subscriber.socket.settimeout(0.2)
        while events < DUE and time.time() < due + wait:
            try:
                chunk = subscriber.socket.recv(1 << 20)
            except socket.timeout:
                continue
            now = time.time()
            chunks.append((now, chunk.count(b"\r\ndue:")))
            events += chunks[-1][1]
    late = [now - due for now, count in chunks for _ in range(count)]
    return late


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--valkey")
    parser.add_argument("--only")
    parser.add_argument("--others", type=int, nargs="+", default=[0, 10_000, 100_000, 1_000_000])
    parser.add_argument("--wait", type=float, default=60)
    parser.add_argument("--runtime", default="tokio")
    parser.add_argument("--short", action="store_true", help="fewest and most others, but for ours")
    options = parser.parse_args()
    print("| server | other keys with a time to live | events | p50 | p99 | max |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, command in commands(options.valkey, options.runtime, events="Ex").items():
        if options.only and name != options.only:
            continue
        ends = [options.others[0], options.others[-1]]
        for count in ends if options.short and name != "ours" else options.others:
            late = measure(command, count, options.wait)
            parts = [percentile(late, 0.5), percentile(late, 0.99), max(late, default=0)]
            shown = " | ".join(millis(part) if late else "–" for part in parts)
            print(f"| {name} | {count:,} | {len(late):,} | {shown} |", flush=True)


main()
