#!/usr/bin/env bash
# Judges the cache of examples/resp_cache by programs of others, and prints the tables of
# benches/results/resp.md.
#
#     judge.sh SUITE [VALKEY-SERVER]
#
# SUITE is a checkout of redis or valkey with the Tcl suite, and VALKEY-SERVER the server that a build
# of valkey's source gives; the caller fetches both. This script fetches nothing but Debian's packages
# of redis and Tcl, where they are missing. It takes about half an hour on a machine with two cpus,
# which must be idle otherwise.
set -euo pipefail
suite=$(realpath "${1:?the path of a checkout of redis or valkey}")
valkey=(${2:+--valkey "$(realpath "$2")"})
cd "$(dirname "$0")"

# One call for each name, as a call with several succeeds if one of them is found.
if ! { command -v redis-server && command -v redis-benchmark && command -v tclsh; } >/dev/null; then
    sudo=$(command -v sudo || true)
    $sudo apt-get update -qq
    $sudo apt-get install -qq -y redis-server redis-tools tcl
fi
(cd ../../.. && cargo build --release --locked -p corewheel-resp-cache)

lscpu | grep -E '^(Model name|CPU\(s\))'
uname -r
redis-server --version
[ -z "${2:-}" ] || "$2" --version
for runtime in tokio glommio; do
    printf '\n## The suite, on %s\n\n' "$runtime"
    ./suite.py "$suite" --runtime "$runtime" --list
done
printf '\n## Lateness\n\n'
./lateness.py "${valkey[@]}"
printf '\n## Resident but expired\n\n'
./resident.py "${valkey[@]}"
printf '\n## Memory\n\n'
./memory.py "${valkey[@]}"
printf '\n## Throughput\n\n'
./throughput.py
printf '\n## Eviction\n\n'
./eviction.py "${valkey[@]}"
printf '\n## Slow clients\n\n'
./slow.py "${valkey[@]}"
