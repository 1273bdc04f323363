"""A copy of the tree with changes in it, each of which an environment variable turns on, so that one
build has all of them."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def copy_tree(name, changed):
    """Copies what a build needs, with the changed texts in it, and returns the folder. A file that is
    there already stays, so that Cargo builds what has changed."""
    copy = ROOT / "target" / name
    files = [ROOT / file for file in ("Cargo.toml", "Cargo.lock", "README.md")]
    for folder in ("src", "shards", "adapters", "benches", "tests", "examples"):
        files += [f for f in (ROOT / folder).rglob("*") if f.is_file() and "target" not in f.parts[-3:]]
    paths = {file.relative_to(ROOT) for file in files}
    for path in paths:
        text = changed.get(path.as_posix())
        content = (ROOT / path).read_bytes() if text is None else text.encode()
        file = copy / path
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    for file in [f for f in copy.rglob("*") if f.is_file()]:
        if file.relative_to(copy) not in paths and file.name != "Cargo.lock":
            file.unlink()
    return copy


def build(copy, arguments, target, flags=None, profile="--release"):
    """Builds tests of the copy with `cargo test`. Returns the program of each package and target."""
    command = ["cargo", "test", *([profile] if profile else []), "--locked", "--no-run", *arguments]
    command += ["--message-format=json", "--target-dir", str(ROOT / "target" / target)]
    environment = {**os.environ, **({"RUSTFLAGS": flags} if flags else {})}
    built = subprocess.run(command, cwd=copy, env=environment, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    if built.returncode:
        for message in messages:
            if message.get("message", {}).get("level") == "error":
                sys.stderr.write(message["message"]["rendered"])
        raise SystemExit(f"the copy in {copy} cannot be built")
    return {
        (pathlib.Path(message["manifest_path"]).parent, message["target"]["name"]): message["executable"]
        for message in messages
        if message.get("executable") and message["profile"]["test"]
    }
