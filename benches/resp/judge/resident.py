#!/usr/bin/env python3
"""A million keys expire within ten seconds: how many stay too long, and what a GET takes meanwhile.

    resident.py [--valkey PATH] [--only NAME] [--keys N] [--runtime NAME]

`DBSIZE` is asked every 100 ms. Its excess over the keys whose time has not come is the number of
keys that are resident but expired; the columns show the greatest excess over the keys whose time
had not come at that moment, and 50 ms before. The memory is read again three seconds after the last
key. A process of its own asks GET without a pause, first before any key is due, then while they
expire.
"""

import argparse
import bisect
import multiprocessing
import random
import time

from common import Client, Server, commands, encode, micros, percentile

SPAN = 10.0
CALM = 4.0


def ask(port, until, results):
    """Asks GET without a pause, and sends the times that it took, with the moments."""
    client = Client(port)
    request, samples = encode((b"GET", b"stays")), []
    while time.time() < until:
        begin = time.perf_counter()
        client.socket.sendall(request)
        client.reply()
        samples.append((time.time(), time.perf_counter() - begin))
    results.send(samples)


def measure(command, keys):
    with Server(command) as server:
        client = server.client()
        client.call("SET", "stays", "x" * 32)
        empty = server.resident()
        begin = time.time() + keys / 60_000 + CALM + 2
        seeds = random.Random(1)
        due = sorted(int((begin + seeds.random() * SPAN) * 1_000) for _ in range(keys))
        shuffled = due[:]
        seeds.shuffle(shuffled)
        client.load(
            encode((b"SET", b"k:%d" % n, b"x" * 32, b"PXAT", at)) for n, at in enumerate(shuffled)
        )
        if time.time() > begin - CALM:
            raise SystemExit("loading took too long")
        results, sender = multiprocessing.Pipe(False)
        asker = multiprocessing.Process(
            target=ask, args=(server.port, begin + SPAN + 1, sender)
        )
        time.sleep(max(0, begin - CALM - time.time()))
        asker.start()
        excess, late, full, series = 0, 0, server.resident(), []
        gone_at = None
        while time.time() < begin + SPAN + 20:
            sent = time.time()
            size = int(client.call("DBSIZE")) - 1
            received = time.time()
            not_due = lambda now: keys - bisect.bisect_right(due, now * 1_000)
            excess = max(excess, size - not_due(received))
            late = max(late, size - not_due(sent - 0.05))
            series.append((sent - begin, size, server.resident()))
            if size == 0 and sent > begin + SPAN:
                gone_at = gone_at or received - due[-1] / 1_000
                if not asker.is_alive() or results.poll():
                    break
            time.sleep(max(0, 0.1 - (time.time() - sent)))
        samples = results.recv()
        time.sleep(3)
        series.append((time.time() - begin, int(client.call("DBSIZE")) - 1, server.resident()))
        asker.join()
    before = [took for at, took in samples if at < begin - 0.5]
    while_they_expire = [took for at, took in samples if begin <= at < begin + SPAN]
    return empty, full, series, excess, late, gone_at, before, while_they_expire


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--valkey")
    parser.add_argument("--only")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--runtime", default="tokio")
    options = parser.parse_args()
    print("| server | expired, resident | for more than 50 ms | last gone after | RSS full | RSS "
          "after | GET before p50, p99, p99.9 | GET meanwhile p50, p99, p99.9 |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, command in commands(options.valkey, options.runtime).items():
        if options.only and name != options.only:
            continue
        measured = measure(command, options.keys)
        empty, full, series, excess, late, gone_at, before, meanwhile = measured
        parts = lambda of: ", ".join(micros(percentile(of, p)) for p in (0.5, 0.99, 0.999))
        gone = "not in 20 s" if gone_at is None else micros(max(gone_at, 0))
        print(f"| {name} | {max(excess, 0):,} | {max(late, 0):,} | {gone} | "
              f"{full / 1e6:.0f} MB | {series[-1][2] / 1e6:.0f} MB | "
              f"{parts(before)} | {parts(meanwhile)} |", flush=True)
        every_second = [row for at, row in enumerate(series) if at % 20 == 0]
        shown = "; ".join(f"{at:.1f} s {size:,} {rss / 1e6:.0f} MB" for at, size, rss in every_second)
        print(f"<!-- {name}: {shown} -->", flush=True)


main()
