#!/usr/bin/env python3
"""What clients and tools try first, against redis and against the cache: whether the replies are the
same.

    answers.py [--valkey PATH] [--runtime NAME] [--cores N]

Each row is a conversation of inline commands on a fresh server. Replies are compared as values, and
errors by their first word. Where a reply has more than can be compared, the part is that its row
names. The first replies that differ are shown.
"""

import argparse
import subprocess

from common import Server, commands

# Keys have one tag, as a transaction and RENAME want them on one core.
CONVERSATIONS = {
    "quoted words": ['SET h "a b"', "GET h", r'SET h "\x41"', "STRLEN h", r"SET h 'it\'s'", "GET h"],
    "`CONFIG SET` with a name that is unknown": ["CONFIG SET timeout 7 bogus y", "CONFIG GET timeout"],
    "`SET … EX 5 EX 9`": ["SET k v EX 50 EX 90", "TTL k", "SET k v EX 5 PX 9"],
    "`GETEX … EX 5 EX 9`": ["SET k v", "GETEX k EX 50 EX 90", "TTL k", "GETEX k EX 5 PX 9"],
    "times beyond 146,000 years": [
        "SET k v PXAT 9000000000000000000", "PEXPIRETIME k", "EXPIREAT k 8000000000000001",
        "EXPIRETIME k", "SET k v EX 9223372036854775", "PEXPIREAT k 9223372036854775807",
        "PEXPIRETIME k", "PEXPIRE k 9223372036854775807",
    ],
    "a transaction": ["MULTI", "SET {t}n 1", "INCR {t}n", "EXEC", "GET {t}n"],
    "a transaction with `CONFIG GET`": ["MULTI", "INCR {t}n", "CONFIG GET timeout", "EXEC"],
    "a transaction with a command that is refused": ["MULTI", "INCR {t}n", "BOGUS", "EXEC", "GET {t}n"],
    "a transaction that is given up": ["MULTI", "INCR {t}n", "DISCARD", "GET {t}n", "EXEC", "DISCARD"],
    "`WATCH`": ["WATCH {t}n", "MULTI", "INCR {t}n", "EXEC"],
    "`SCAN`": ["MSET {t}a 1 {t}b 2", "SCAN 0 COUNT 100", "SCAN 0 MATCH *b COUNT 100", "SCAN x"],
    "`GETRANGE`, `SETRANGE`": ["SET k 0123456789", "GETRANGE k 3 -3", "SETRANGE k 12 x", "GET k"],
    "`GETSET`": ["GETSET k 1", "GETSET k 2", "GET k"],
    "`MSETNX`": ["MSETNX {t}a 1 {t}b 2", "MSETNX {t}b 3 {t}c 4", "EXISTS {t}c"],
    "`INCRBYFLOAT`": ["SET k 0.1", "INCRBYFLOAT k 0.2", "INCRBYFLOAT k 5e3", "INCRBYFLOAT k x"],
    "`RENAME`, `RENAMENX`": [
        "SET {t}a v EXAT 20000000000", "RENAME {t}a {t}b", "EXPIRETIME {t}b", "RENAME {t}none {t}x",
        "SET {t}c w", "RENAMENX {t}c {t}b", "RENAMENX {t}c {t}d",
    ],
    "`COPY`": [
        "SET {t}a v EXAT 20000000000", "COPY {t}a {t}b", "EXPIRETIME {t}b", "COPY {t}a {t}b",
        "COPY {t}a {t}b REPLACE", "GET {t}b",
    ],
    "`RANDOMKEY`": ["RANDOMKEY", "SET k v", "RANDOMKEY"],
    "`CLIENT LIST`: the number of clients": ["CLIENT LIST"],
    "`COMMAND INFO`: name, words and keys": ["COMMAND INFO get mset rename none"],
    "`EVAL`, by which locks are released": ["EVAL return(1) 0", "EVALSHA 0 0"],
}


def value(client):
    """The next reply. An error is its first word."""
    line = client.line()
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        return f"error {rest.split()[0].decode()}"
    if kind == b"*":
        return [value(client) for _ in range(int(rest))] if rest != b"-1" else None
    if kind == b"$":
        if rest == b"-1":
            return None
        while len(client.buffer) < int(rest) + 2:
            client.receive()
        text, client.buffer = client.buffer[: int(rest)], client.buffer[int(rest) + 2 :]
        return text.decode()
    return rest.decode()


def comparable(request, reply):
    if request == "CLIENT LIST":
        return len(reply.splitlines())
    if not isinstance(reply, list):
        return reply
    if request.startswith("SCAN"):
        return [reply[0], sorted(reply[1])]
    if request.startswith("COMMAND INFO"):
        return [one and [one[0], one[1], one[3], one[4], one[5]] for one in reply]
    return reply


def talk(command, requests):
    with Server(command) as server:
        client, replies = server.client(), []
        for request in requests:
            client.socket.sendall(request.encode() + b"\r\n")
            replies.append(comparable(request, value(client)))
        return replies


def keys_after_a_web_page(command):
    """A browser's request of another site, as `fetch` with `no-cors` sends it."""
    with Server(command) as server:
        server.client().call("SET", "stays", "v")
        browser = server.client()
        head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\r\n"
        browser.socket.sendall(f"{head}FLUSHALL\r\n".encode())
        browser.socket.settimeout(5)
        state = "closed"
        try:
            while browser.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            state = "open"
        return [f"{server.client().call('DBSIZE').decode()} key left, {state}"]


def one_client_too_many(command):
    with Server(command) as server:
        first = server.client()
        first.call("CONFIG", "SET", "maxclients", 1)
        second = value(server.client())
        stats = first.call("INFO", "stats").split(b"\r\n")
        return [second] + [line.decode() for line in stats if line.startswith(b"rejected_conn")]


def tool(words):
    """What a program of redis' own says at its end, and whether it ended well."""

    def run(command):
        with Server(command) as server:
            server.client().load(b"SET key:%d x\r\n" % n for n in range(1_000))
            words_with_port = [words[0], "-p", str(server.port)] + words[1:]
            ended = subprocess.run(words_with_port, capture_output=True, text=True, timeout=120)
            # A line of progress ends with a return.
            lines = ended.stdout.replace("\r", "\n").split("\n")
            sampled = [line for line in lines if line.startswith("Sampled")]
            done = [line for line in lines if "requests per second" in line]
            keys = sum(line.startswith("key:") for line in lines)
            return [f"code {ended.returncode}", *sampled, f"{len(done)} tests, {keys} keys"]

    return run


ATTEMPTS = {
    "`POST` of a web page with `FLUSHALL`": keys_after_a_web_page,
    "one client more than `maxclients`": one_client_too_many,
    "`redis-cli --scan`": tool(["redis-cli", "--scan"]),
    "`redis-cli --bigkeys`": tool(["redis-cli", "--bigkeys"]),
    "`redis-benchmark -t ping,set,get,incr,mset`": tool(
        ["redis-benchmark", "-q", "-n", "1000", "-t", "ping,set,get,incr,mset"]
    ),
    "`redis-benchmark`": tool(["redis-benchmark", "-q", "-n", "1000"]),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--valkey")
    parser.add_argument("--runtime", default="tokio")
    parser.add_argument("--cores", type=int, default=2)
    options = parser.parse_args()
    servers = commands(options.valkey, options.runtime, options.cores)
    # How they look for expired keys changes no reply.
    servers = {name: command for name, command in servers.items() if "tuned" not in name}
    others = [name for name in servers if name != "redis"]
    print("| conversation | " + " | ".join(f"as redis: {name}" for name in others) + " |")
    print("|---|" + "---|" * len(others))
    attempts = {
        title: lambda command, requests=requests: talk(command, requests)
        for title, requests in CONVERSATIONS.items()
    }
    for title, attempt in (attempts | ATTEMPTS).items():
        replies = {name: attempt(command) for name, command in servers.items()}
        cells = []
        for name in others:
            pairs = list(zip(replies["redis"], replies[name]))
            differing = [f"{theirs} → {other}" for theirs, other in pairs if theirs != other]
            cells.append("yes" if not differing else f"no: {differing[0]}".replace("|", "\\|"))
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


main()
