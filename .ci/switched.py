"""A copy of the tree with changes in it, each of which an environment variable turns on, so that one
build has all of them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def copy_tree(name):
    """Copies what a build needs, and returns the folder."""
    copy = ROOT / "target" / name
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("src", "shards", "adapters", "benches", "tests", "examples"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("target"))
    for file in ("Cargo.toml", "Cargo.lock", "README.md"):
        shutil.copy(ROOT / file, copy / file)
    return copy


def build(copy, arguments, target, flags=None):
    """Builds tests of the copy with `cargo test`, and returns the programs, the last one last."""
    command = ["cargo", "test", "--release", "--locked", "--no-run", *arguments]
    command += ["--message-format=json", "--target-dir", str(ROOT / "target" / target)]
    environment = {**os.environ, **({"RUSTFLAGS": flags} if flags else {})}
    built = subprocess.run(command, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    if built.returncode:
        for message in messages:
            if message.get("message", {}).get("level") == "error":
                sys.stderr.write(message["message"]["rendered"])
        raise SystemExit(f"the copy in {copy} cannot be built")
    return [message["executable"] for message in messages if message.get("executable")]
