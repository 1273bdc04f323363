#!/usr/bin/env python3
"""SETs of a cache that is full, and what other clients notice of them.

    eviction.py [--keys N ...] [--rounds N] [--seconds N] [--only NAME] [--valkey PATH]
                [--runtime NAME]

Each server is filled with keys until its limit of memory evicts, for each number of keys. Keys have
a time to live of 1 to 2 hours, in a random order, and redis evicts by `volatile-ttl`, as ours does.
Then one client sends SETs of new keys in pipelines of 16, and another asks for a key that is there,
one request after the other. The rounds of the servers alternate; medians are shown. The last rows of
a number are those of keys without a time to live, where each SET is refused. The first client may be
what limits the SETs a second, so the time is shown that the server's threads run for each of them.
"""

import argparse
import random
import statistics
import threading
import time

from common import Server, commands, encode, micros, percentile

VALUE = b"x" * 64
PIPELINE = 16
# How many keys a server is full of.
SIZES = [12_500, 50_000, 187_000, 373_000, 1_000_000]


def number_of(server, name):
    text = server.client().call("INFO", "memory")
    line = next(line for line in text.split(b"\r\n") if line.startswith(name + b":"))
    return int(line.split(b":")[1])


def fill(server, keys, is_timed):
    rng = random.Random(7)
    client = server.client()

    def request(n):
        tail = (b"EX", 3600 + rng.randrange(3600)) if is_timed else ()
        return encode((b"SET", b"key:%012d" % n, VALUE) + tail)

    client.load(request(n) for n in range(keys))
    # The key that the other client asks for, which is evicted last.
    client.load([encode((b"SET", b"asked", VALUE, b"EX", 86_400))])
    client.close()
    return number_of(server, b"used_memory")


def answers(client, count):
    """Reads as many replies of one line, and returns how many were refusals."""
    refused = 0
    for _ in range(count):
        refused += client.line()[:1] == b"-"
    return refused


def measure(server, seconds, is_timed, names):
    writer, asker = server.client(), server.client()
    rng, stop, late = random.Random(11), threading.Event(), []

    def ask():
        get = encode((b"GET", b"asked"))
        while not stop.is_set():
            begin = time.perf_counter()
            asker.socket.sendall(get)
            asker.reply()
            late.append(time.perf_counter() - begin)
            time.sleep(0.001)

    thread = threading.Thread(target=ask)
    thread.start()
    tail = lambda: (b"EX", 3600 + rng.randrange(3600)) if is_timed else ()
    begin, sets, refused, ran = time.perf_counter(), 0, 0, server.cpu_time()
    while time.perf_counter() - begin < seconds:
        words = [(b"SET", b"new:%012d" % next(names), VALUE) + tail() for _ in range(PIPELINE)]
        batch = [encode(of) for of in words]
        writer.socket.sendall(b"".join(batch))
        refused += answers(writer, PIPELINE)
        sets += PIPELINE
    rate, ran = sets / (time.perf_counter() - begin), server.cpu_time() - ran
    stop.set()
    thread.join()
    writer.close()
    asker.close()
    return rate, ran / sets, refused / sets, percentile(late, 0.5), percentile(late, 0.99)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only")
    parser.add_argument("--valkey")
    parser.add_argument("--runtime", default="tokio")
    options = parser.parse_args()
    print("| keys | time to live | server | SETs a second | ÷ redis | CPU time a SET | refused "
          "| GET p50 | GET p99 |")
    print("|--:|---|---|--:|--:|--:|--:|--:|--:|")
    for keys in options.keys:
        for is_timed in (True, False):
            rows(options, keys, is_timed)


def rows(options, keys, is_timed):
    policy = ["--maxmemory-policy", "volatile-ttl"]
    servers, all_of_them = {}, commands(options.valkey, options.runtime)
    option = lambda name: "--memory-max" if name == "ours" else "--maxmemory"
    try:
        for name, command in all_of_them.items():
            if options.only and name != options.only:
                continue
            # What the keys take without a limit is the limit of a second server.
            with Server(command, "0") as unlimited:
                limit = fill(unlimited, keys, is_timed)
            command = command + [option(name), str(limit)] + (policy if name != "ours" else [])
            servers[name] = Server(command, "0")
            fill(servers[name], keys, is_timed)
        results = {name: [] for name in servers}
        names = iter(range(1 << 60))
        for _ in range(options.rounds):
            for name, server in servers.items():
                results[name].append(measure(server, options.seconds, is_timed, names))
    finally:
        for server in servers.values():
            server.__exit__()
    medians = {name: [statistics.median(part) for part in zip(*of)] for name, of in results.items()}
    for name, (rate, ran, refused, p50, p99) in medians.items():
        share = f"{rate / medians['redis'][0]:.2f}" if "redis" in medians else "–"
        lives = "1 to 2 h" if is_timed else "none"
        print(f"| {keys:,} | {lives} | {name} | {rate:,.0f} | {share} | {ran * 1e6:.1f} µs | "
              f"{refused:.0%} | {micros(p50)} | {micros(p99)} |", flush=True)


if __name__ == "__main__":
    main()
