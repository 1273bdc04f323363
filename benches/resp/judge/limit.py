#!/usr/bin/env python3
"""Room for more than one key: a large value for a full server, and a limit of memory that is lowered.

    limit.py [--keys N] [--only NAME] [--valkey PATH] [--runtime NAME]

Each server is full of keys with a time to live of 1 to 2 hours, and evicts by `volatile-ttl`. A client
sets a value of 1 MB. Then the limit is lowered to a fifth, while one client sets keys without a pause
and another asks for a key that is there. The time is shown until the memory is below the new limit,
how many SETs were refused until then, and what the GETs took.
"""

import argparse
import threading
import time

from common import Server, commands, encode, micros, millis, percentile
from eviction import VALUE, fill, number_of


def set_or_refused(client, *words):
    client.socket.sendall(encode((b"SET",) + words))
    return client.line()[:1] == b"+"


def lower(server, limit):
    """Returns the time until the limit is kept, the SETs and refusals, and the times of GETs."""
    asker, writer, stop, late = server.client(), server.client(), threading.Event(), []
    sets, refused = 0, 0

    def ask():
        while not stop.is_set():
            begin = time.perf_counter()
            asker.call("GET", "asked")
            late.append(time.perf_counter() - begin)
            time.sleep(0.0005)

    def write():
        nonlocal sets, refused
        while not stop.is_set():
            refused += not set_or_refused(writer, b"new:%012d" % sets, VALUE, b"EX", b"7200")
            sets += 1

    threads = [threading.Thread(target=one) for one in (ask, write)]
    for thread in threads:
        thread.start()
    # Both have begun.
    time.sleep(0.1)
    late.clear()
    begin = time.perf_counter()
    server.client().call("CONFIG", "SET", "maxmemory", limit)
    while number_of(server, b"used_memory") > limit and time.perf_counter() < begin + 60:
        time.sleep(0.002)
    took = time.perf_counter() - begin
    stop.set()
    for thread in threads:
        thread.join()
    return took, sets, refused, late


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=373_000)
    parser.add_argument("--only")
    parser.add_argument("--valkey")
    parser.add_argument("--runtime", default="tokio")
    options = parser.parse_args()
    print("| server | keys | a value of 1 MB | limit lowered to a fifth: kept after | SETs refused "
          "meanwhile | GET p50, p99, max meanwhile |")
    print("|---|--:|---|--:|--:|--:|")
    for name, command in commands(options.valkey, options.runtime).items():
        if options.only and name != options.only:
            continue
        policy = [] if name == "ours" else ["--maxmemory-policy", "volatile-ttl"]
        with Server(command + policy, "0") as server:
            fill(server, options.keys, True)
            is_set = set_or_refused(server.client(), b"large", b"x" * 1_000_000, b"EX", b"7200")
            took, sets, refused, late = lower(server, number_of(server, b"maxmemory") // 5)
        gets = ", ".join(micros(at) for at in (percentile(late, 0.5), percentile(late, 0.99), max(late)))
        print(f"| {name} | {options.keys:,} | {'stored' if is_set else 'refused'} | {millis(took)} | "
              f"{refused} of {sets} | {gets} |", flush=True)


main()
