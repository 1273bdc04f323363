#!/usr/bin/env python3
"""The test programs of client libraries, against redis and against the cache.

    libraries.py [--redis-py PATH] [--ioredis PATH] [--node-redis PATH] [--python PROGRAM]
                 [--cores N] [--list] [--only SERVER]

Each PATH is a checkout of a release with its dependencies installed: `npm ci` for the two of node,
`npm run build` too for node-redis, and for redis-py a PROGRAM of Python with `pip install PATH -r
PATH/dev_requirements.txt`. The ports from 6379 on must be free. A test that redis does not pass is
not counted. A test that redis passes and the cache does not has a reason: the command, the setting
or the word that the cache does not have, or `other`, which `--list` shows in full.
"""

import argparse
import collections
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

from common import commands

PORT = 6379
# Of address space, for each server and for Python. node reserves more than it uses: it gets a limit
# of its heap.
MEMORY = 2 << 30
HEAP = "--max-old-space-size=1024"
# What concerns strings, keys, times to live, transactions, messages and connections.
REDIS_PY = "pipeline pubsub lock encoding connection_pool commands".split()
REASONS = [
    (r"this server has no scripts", "scripts"),
    (r"unknown command[: ,]*.{0,3}?'?([A-Za-z_.]+)'", "the command {0}"),
    (r"unknown subcommand or wrong number of arguments for '([^']*)'", "a subcommand of {0}"),
    (r"CONFIG SET - '([^']*)'", "the setting {0}"),
    (r"possibly related to argument '([^']*)'", "the setting {0}"),
    (r"DB index is out of range", "several databases"),
    (r"CROSSSLOT|CrossSlot", "keys of two cores together"),
    (r"'([^']*)' cannot be in a transaction", "{0} in a transaction"),
    (r"this server has no users", "users"),
]
# A program in place of docker, which node-redis starts its servers by.
DOCKER = """#!/bin/sh
case "$1" in
run) while [ $# -gt 0 ]; do
         case "$1" in PORT=*) port=${{1#PORT=}};; *:*) shift; break;; esac
         shift
     done
     {refuse}
     ulimit -v {memory}
     cd "$(mktemp -d -p {folder})"
     {command} {port_option}$port {arguments} >/dev/null 2>&1 </dev/null &
     echo $! >> {pids}; echo $!;;
rm) kill "$3" 2>/dev/null; true;;
esac
"""

# Most tests of node-redis are for a client and for a cluster, and wait for both servers: so the tests
# for a cluster are taken out before any begins, and those for sentinels and TLS, too.
CLIENTS_ONLY = """
const path = require.resolve('@redis/test-utils', { paths: [process.cwd()] });
const tests = require(path).default.prototype;
for (const name of Object.getOwnPropertyNames(tests)) {
    if (/^test.*(Cluster|Sentinel|Tls|Proxied)/.test(name)) tests[name] = () => {};
}
"""


def server_of(name, cores):
    if name == "ours":
        # A server of node-redis that needs an argument is one that the cache cannot be. All but a few
        # of its tests ask for the command DEBUG, and do not use it.
        refuse = 'case "$*" in ""|"--enable-debug-command yes");; *) exit 1;; esac'
        return commands(cores=cores)["ours"], "--listen 127.0.0.1:", "", refuse
    return commands()["redis"], "--port ", '"$@"', ""


def start(name, cores):
    command, option, _, _ = server_of(name, cores)
    folder = tempfile.mkdtemp()
    words = (option + str(PORT)).split(" ")
    process = subprocess.Popen(
        command + words, cwd=folder, stdout=subprocess.DEVNULL, preexec_fn=bounded
    )
    for _ in range(300):
        time.sleep(0.1)
        try:
            socket.create_connection(("127.0.0.1", PORT), 1).close()
            break
        except OSError:
            pass
    if process.poll() is not None:
        raise SystemExit(f"{command[0]} has not started: is port {PORT} free?")
    return process


def bounded():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def run(words, folder, limit, output, before=None, **environment):
    """Runs a program with the processes that it starts, and ends them all at the limit."""
    process = subprocess.Popen(
        words, cwd=folder, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, preexec_fn=before, start_new_session=True,
    )
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"ended after {limit} s: {' '.join(words[-3:])}", file=sys.stderr)


def redis_py(path, name, options):
    """Each file on a fresh server, as some tests leave clients behind."""
    found = {}
    for unit in REDIS_PY:
        if not os.path.exists(f"{path}/tests/test_{unit}.py"):
            continue
        process = start(name, options.cores)
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            words = [options.python, "-m", "pytest", f"tests/test_{unit}.py", "-q"]
            # The time to write a long trace down is none of the test's.
            words += [f"--timeout={options.timeout}", "-o", "timeout_func_only=true"]
            words += ["--tb=native", "-o", "addopts="]
            words += [f"--redis-url=redis://127.0.0.1:{PORT}/0", f"--junitxml={report.name}"]
            words += ["-m", "not onlycluster and not redismod and not ssl and not replica"]
            words += ["-p", "no:cacheprovider"]
            run(words, path, options.limit, subprocess.DEVNULL, bounded)
            stop(process)
            text = open(report.name).read()
        for case in xml.fromstring(text).iter("testcase") if text else []:
            title = f"{unit}: {(case.get('classname') or '').rsplit('.', 1)[-1]}.{case.get('name')}"
            failed = [part for part in case if part.tag in ("failure", "error")]
            if any(part.tag == "skipped" for part in case):
                found[title] = ("skipped", "")
            elif failed:
                found[title] = ("failed", failed[0].get("message") + (failed[0].text or ""))
            else:
                found[title] = ("passed", "")
    return found


def mocha(words, folder, options, **environment):
    """The outcomes in the order of the tests. A test that is skipped has none."""
    words = ["npx", "mocha", "--exit", "--timeout", str(options.timeout * 1_000)] + words
    words += ["--reporter", "json-stream"]
    found = {}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        run(words, folder, options.limit, output, NODE_OPTIONS=HEAP, **environment)
        output.seek(0)
        for line in output:
            if match := re.search(r'\["(pass|fail)",(\{.*\})\]$', line.rstrip()):
                test = json.loads(match[2])
                message = f"{test.get('err')} {test.get('stack')}"
                found[test["fullTitle"]] = (match[1] + "ed", message)
    return found


def ioredis(path, name, options):
    """Each group of files on a fresh server, as a hook that fails ends a run of mocha. Those of single
    commands are many and small; of the others, some leave a rejected promise that ends the run."""
    groups = []
    for folder, _, names in sorted(os.walk(f"{path}/test/functional")):
        files = [f"{folder}/{file}" for file in sorted(names)]
        files = [file for file in files if not re.search("cluster|sentinel|tls|elasticache", file)]
        size = 16 if folder.endswith("/commands") else 1
        groups += [files[begin : begin + size] for begin in range(0, len(files), size)]
    found = {}
    for files in groups:
        process = start(name, options.cores)
        words = ["-r", "ts-node/register", "test/helpers/*.ts"] + files
        found |= mocha(words, path, options, NODE_ENV="test", TS_NODE_TRANSPILE_ONLY="true")
        stop(process)
    return found


def node_redis(path, name, options):
    command, option, arguments, refuse = server_of(name, options.cores)
    with tempfile.TemporaryDirectory() as folder:
        pids = f"{folder}/pids"
        docker = DOCKER.format(
            command=" ".join(word or "''" for word in command), port_option=option,
            arguments=arguments, refuse=refuse, pids=pids, memory=MEMORY >> 10, folder=folder,
        )
        with open(f"{folder}/docker", "w") as file:
            file.write(docker)
        os.chmod(f"{folder}/docker", 0o755)
        with open(f"{folder}/clients-only.cjs", "w") as file:
            file.write(CLIENTS_ONLY)
        words = ["-r", "tsx", "--file", f"{folder}/clients-only.cjs"]
        words += ["--grep", "cluster|sentinel|Cluster|Sentinel", "--invert"]
        words += ["--redis-tag=7.0", "--redis-version=7.0"]
        words += ["lib/client/*.spec.ts", "lib/commands/*.spec.ts"]
        path_with_docker = f"{folder}:{os.environ['PATH']}"
        found = mocha(words, f"{path}/packages/client", options, PATH=path_with_docker)
        for pid in open(pids).read().split() if os.path.exists(pids) else []:
            try:
                os.kill(int(pid), signal.SIGTERM)
            except ProcessLookupError:
                pass
    time.sleep(1)
    return found


def reason_of(message):
    for pattern, reason in REASONS:
        if match := re.search(pattern, message):
            return reason.format(*(group.upper() for group in match.groups()))
    return "other"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis-py")
    parser.add_argument("--ioredis")
    parser.add_argument("--node-redis")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=20, help="of a test, in seconds")
    parser.add_argument("--limit", type=int, default=1_800, help="of a program, in seconds")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", choices=["redis", "ours"])
    options = parser.parse_args()
    judged = [("redis-py", options.redis_py, redis_py), ("ioredis", options.ioredis, ioredis)]
    judged += [("node-redis", options.node_redis, node_redis)]
    print("| library | passed by redis | passed by ours | the cache does not have it | other |")
    print("|---|--:|--:|--:|--:|", flush=True)
    reasons, others = {}, []
    for library, path, judge in judged:
        if not path:
            continue
        names = [options.only] if options.only else ["redis", "ours"]
        found = {name: judge(os.path.realpath(path), name, options) for name in names}
        first = found[names[0]]
        last = found[names[-1]]
        passed = [test for test, (outcome, _) in first.items() if outcome == "passed"]
        # Without its server, a test of node-redis does not begin. One of ioredis that is skipped, or
        # whose run has ended before, has no outcome.
        missing = "needs an argument of redis-server" if library == "node-redis" else "not reported"
        outcome = lambda test: last.get(test, ("failed", missing))
        lost = [test for test in passed if outcome(test)[0] != "passed"]
        why = {test: reason_of(outcome(test)[1]) for test in lost}
        for test in lost:
            if "needs an argument" in outcome(test)[1]:
                why[test] = "an option of redis-server"
            elif outcome(test)[1] == "not reported":
                why[test] = "not reported"
            elif outcome(test)[0] == "skipped":
                why[test] = "skipped by the test, for the version"
        reasons[library] = collections.Counter(why.values())
        other = reasons[library].pop("other", 0)
        others += [(library, test, outcome(test)[1]) for test in lost if why[test] == "other"]
        print(f"| {library} | {len(passed)} | {len(passed) - len(lost)} | "
              f"{len(lost) - other} | {other} |", flush=True)
    for library, counts in reasons.items():
        shown = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
        print(f"\n{library}: {shown or 'none'}.")
    for library, test, message in others if options.list else []:
        print(f"\n{library}: {test}\n{message[:1500]}")


main()
