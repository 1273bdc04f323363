#!/usr/bin/env python3
"""The Tcl suite of redis or valkey against the cache: each test with its outcome.

    suite.py PATH [--runtime NAME] [--cores N] [--list]

PATH is a checkout of redis or valkey, which the caller fetches; it needs tclsh. A test that fails
for the want of a command or a setting does not apply, and its reason says which. Exits with 1 if
fewer than 20 tests of unit/expire pass, or a test that applies fails.
"""

import argparse
import collections
import re
import subprocess

from common import Server, commands

UNITS = ["unit/expire", "unit/type/string", "unit/keyspace", "unit/pubsub"]
OPTIONS = ["--singledb", "--ignore-encoding", "--ignore-digest", "--tags", "-needs:debug"]
ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Tests that fail by what another test, which does not apply, has left behind.
SUBSCRIBERS = "the test of PUBSUB NUMPAT before it ends early and leaves its subscribers"
REPLIES = "the test before it ends early and leaves replies that were not read"
LEFT_BEHIND = {
    "Mix SUBSCRIBE and PSUBSCRIBE": SUBSCRIBERS,
    "publish to self inside multi": SUBSCRIBERS,
    "publish to self inside script": REPLIES,
    "unsubscribe inside multi, and publish to self": REPLIES,
}
WANTS = [
    (r"unknown command '([^']*)'", "the cache has no {0}"),
    (r"CONFIG SET - '([^']*)'", "the cache has no setting {0}"),
    (r"argument '([^']*)'\) - can't set", "the setting {0} is fixed"),
    (r"this server has no (scripts)", "the cache has no {0}"),
    (r"(cannot be in a transaction)", "it has a command that {0} here"),
    (r"(CROSSSLOT)", "its keys are on two cores, and it wants them together: {0}"),
]


def run(path, unit, port):
    command = ["./runtest", "--host", "127.0.0.1", "--port", str(port), *OPTIONS]
    command += ["--durable", "--single", unit]
    # A unit that waits for a reply which never comes is ended after some minutes.
    ended = subprocess.run(command, cwd=path, capture_output=True, text=True, timeout=200)
    return ANSI.sub("", ended.stdout).splitlines()


def outcomes(lines):
    """Each test's name with its outcome and a reason."""
    found = {}
    for at, line in enumerate(lines):
        if line.startswith("***"):
            break
        if match := re.match(r"\[ok\]: (.*) \(\d+ ms\)$", line):
            found[match[1]] = ("passed", "")
        elif match := re.match(r"\[ignore\]: (.*): ((Tag|Not supported|large).*)$", line):
            found[match[1]] = ("left out", match[2])
        elif match := re.match(r"\[err\]: (.*) in tests/\S*$", line):
            # The trace up to the next outcome.
            trace = []
            for after in lines[at : at + 12]:
                if trace and after.startswith("["):
                    break
                trace.append(after)
            found[match[1]] = judge(match[1], "\n".join(trace))
    return found


def judge(name, trace):
    if name in LEFT_BEHIND:
        return "does not apply", LEFT_BEHIND[name]
    for pattern, reason in WANTS:
        if match := re.search(pattern, trace):
            return "does not apply", reason.format(match[1].upper() if "command" in pattern else match[1])
    rest = " ".join(trace.splitlines()[1:2])
    return "failed", rest


def named_in(path, unit):
    """The names of all tests in the source of a unit."""
    text = open(f"{path}/tests/{unit}.tcl").read()
    names = re.findall(r'^\s*test\s+(?:\{([^}]*(?:\{[^}]*\}[^}]*)*)\}|"([^"]*)")', text, re.M)
    return [one or other for one, other in names]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--runtime", default="tokio")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    table, listing, is_bad = [], [], False
    for unit in UNITS:
        with Server(commands(runtime=options.runtime, cores=options.cores)["ours"]) as server:
            lines = run(options.path, unit, server.port)
        found = outcomes(lines)
        # An error between the tests of a unit ends the unit.
        ends = [re.search(r"CONFIG SET - '([^']*)'", line) for line in lines if line[:5] == "[err]"]
        ends = [end[1] for end in ends if end]
        reason = "it needs a server of its own, or a cluster"
        if ends:
            reason = f"the unit ends where it sets {ends[0]}, which the cache does not have"
        for name in named_in(options.path, unit):
            if name not in found and "$" not in name:
                found[name] = ("not reached", reason)
        counts = collections.Counter(outcome for outcome, _ in found.values())
        columns = ["passed", "failed", "does not apply", "left out", "not reached"]
        table.append((unit, [counts[column] for column in columns]))
        listing += [(unit, name, *outcome) for name, outcome in found.items()]
        is_bad |= counts["failed"] > 0 or (unit == "unit/expire" and counts["passed"] < 20)
    print("| unit | passed | failed | does not apply | left out | not reached |")
    print("|---|--:|--:|--:|--:|--:|")
    for unit, counts in table:
        print(f"| {unit} | {' | '.join(map(str, counts))} |")
    if options.list:
        print("\n| unit | test | outcome | reason |\n|---|---|---|---|")
        for row in listing:
            print("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |")
    raise SystemExit(is_bad)


main()
