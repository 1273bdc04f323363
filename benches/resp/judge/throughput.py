#!/usr/bin/env python3
"""`redis-benchmark` for SET and GET, pipelined and not, on one core and on two.

    throughput.py [--rounds N] [--requests N] [--runtime NAME] [--only NAME] [--cores N ...]
                  [--valkey PATH]

On one core the server is pinned to the first cpu and the benchmark to the second. On two, both use
both cpus: redis with a second thread for input and output, ours with a second core, and the
benchmark with two threads. The rounds of the servers alternate; the median is shown.
"""

import argparse
import contextlib
import csv
import io
import statistics
import subprocess

from common import Server, commands


def rounds_of(server, test, pipeline, requests, cores):
    command = ["redis-benchmark", "-p", str(server.port), "-t", test, "-c", "50", "--csv"]
    command += ["-n", str(requests * (4 if pipeline > 1 else 1)), "-P", str(pipeline)]
    command += ["-r", "100000", "-d", "32"]
    prefix = ["taskset", "-c", "1"] if cores == 1 else []
    if cores > 1:
        command += ["--threads", "2"]
    text = subprocess.run(prefix + command, capture_output=True, text=True, check=True).stdout
    row = list(csv.DictReader(io.StringIO(text)))[-1]
    return float(row["rps"]), float(row["p99_latency_ms"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=150_000)
    parser.add_argument("--runtime", default="tokio")
    parser.add_argument("--valkey")
    parser.add_argument("--only")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    print("| cores | command | pipeline | server | requests a second | ÷ redis | p99 |")
    print("|--:|---|--:|---|--:|--:|--:|")
    for cores in options.cores:
        with contextlib.ExitStack() as stack:
            servers = {}
            for name, command in commands(options.valkey, options.runtime, cores).items():
                if options.only and name != options.only:
                    continue
                threads = ["--io-threads", "2"] if cores > 1 and name != "ours" else []
                server = Server(command + threads, "0" if cores == 1 else None)
                servers[name] = stack.enter_context(server)
            for pipeline in (1, 16):
                for test in ("set", "get"):
                    rows(options, servers, cores, pipeline, test)


def rows(options, servers, cores, pipeline, test):
    measured = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name, server in servers.items():
            measured[name].append(rounds_of(server, test, pipeline, options.requests, cores))
    medians = {name: [statistics.median(of) for of in zip(*all)] for name, all in measured.items()}
    for name, (rate, tail) in medians.items():
        share = f"{rate / medians['redis'][0]:.2f}" if "redis" in medians else "–"
        print(f"| {cores} | {test.upper()} | {pipeline} | {name} | {rate:,.0f} | {share} | "
              f"{tail:.2f} ms |", flush=True)


main()
