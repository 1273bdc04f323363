#!/usr/bin/env python3
"""The resident memory of a key, with and without a time to live.

    memory.py [--valkey PATH] [--only NAME] [--keys N ...] [--runtime NAME]

Keys have 16 bytes and values 32. Each figure is the growth of the resident memory of a fresh server,
divided by the number of keys.
"""

import argparse
import time

from common import Server, commands, encode


def grow(command, keys, ttl):
    with Server(command) as server:
        client = server.client()
        client.load([encode((b"SET", b"first", b"x"))])
        time.sleep(0.3)
        before = server.resident()
        tail = (b"EX", b"3600") if ttl else ()
        client.load(encode((b"SET", b"key:%012d" % n, b"x" * 32) + tail) for n in range(keys))
        client.close()
        time.sleep(1.5)
        return (server.resident() - before) / keys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--valkey")
    parser.add_argument("--only")
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--runtime", default="tokio")
    options = parser.parse_args()
    print("| server | keys | bytes a key without | bytes a key with | for the time to live |")
    print("|---|--:|--:|--:|--:|")
    for name, command in commands(options.valkey, options.runtime).items():
        if options.only and name != options.only:
            continue
        for keys in options.keys:
            plain, timed = grow(command, keys, False), grow(command, keys, True)
            print(f"| {name} | {keys:,} | {plain:.0f} | {timed:.0f} | {timed - plain:.0f} |",
                  flush=True)


main()
