#!/usr/bin/env python3
"""`redis-benchmark` for SET and GET, pipelined and not, on one core and on two.

    throughput.py [--rounds N] [--requests N] [--runtime NAME] [--only NAME] [--cores N ...]

On one core the server is pinned to the first cpu and the benchmark to the second. On two, both use
both cpus: redis with a second thread for input and output, ours with a second core, and the
benchmark with two threads. The rounds of the servers alternate; the median is shown.
"""

import argparse
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
    parser.add_argument("--only")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    print("| cores | command | pipeline | redis rps | ours rps | ours ÷ redis | redis p99 | ours p99 |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for cores in options.cores:
        both = commands(runtime=options.runtime, cores=cores)
        redis = both["redis"] + (["--io-threads", "2"] if cores > 1 else [])
        cpus = "0" if cores == 1 else None
        with Server(redis, cpus) as one, Server(both["ours"], cpus) as other:
            for pipeline in (1, 16):
                for test in ("set", "get"):
                    measured = {one: [], other: []}
                    for _ in range(options.rounds):
                        for server, results in measured.items():
                            results.append(
                                rounds_of(server, test, pipeline, options.requests, cores)
                            )
                    rates = [statistics.median(r for r, _ in of) for of in measured.values()]
                    tails = [statistics.median(p for _, p in of) for of in measured.values()]
                    print(f"| {cores} | {test.upper()} | {pipeline} | {rates[0]:,.0f} | "
                          f"{rates[1]:,.0f} | {rates[1] / rates[0]:.2f} | {tails[0]:.2f} ms | "
                          f"{tails[1]:.2f} ms |", flush=True)


main()
