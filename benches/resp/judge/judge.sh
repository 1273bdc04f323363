#!/usr/bin/env bash
# Judges the cache of examples/resp_cache by programs of others, and prints the tables of
# benches/results/resp.md.
#
#     judge.sh [--short] SUITE [VALKEY-SERVER [LIBRARIES]]
#
# SUITE is a checkout of redis or valkey with the Tcl suite. VALKEY-SERVER is the server that a build
# of valkey's source gives, or '' for none. LIBRARIES is a folder with checkouts of redis-py, ioredis
# and node-redis and a virtual environment `venv`, as libraries.py says. The caller fetches them all.
# This script fetches nothing but Debian's packages of redis and Tcl, where they are missing.
#
# It takes about half an hour on a machine with two cpus, which must be idle otherwise, and as long
# again with LIBRARIES. `--short` takes about ten minutes without valkey. It prints all tables, but
# the suite runs on tokio only and without its list, redis and valkey are not asked for their
# lateness beside 10,000 and 100,000 keys, and a round of evictions takes half of the time.
set -euo pipefail
short=
if [ "${1:-}" = --short ]; then
    short=1
    shift
fi
suite=$(realpath "${1:?the path of a checkout of redis or valkey}")
valkey=(${2:+--valkey "$(realpath "$2")"})
libraries=${3:+$(realpath "$3")}
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
# A table is of use where another fails: the suite exits with 1 if a test that applies fails.
failed=
runtimes=(tokio glommio)
list=(--list)
if [ -n "$short" ]; then
    runtimes=(tokio)
    list=()
fi
for runtime in "${runtimes[@]}"; do
    printf '\n## The suite, on %s\n\n' "$runtime"
    ./suite.py "$suite" --runtime "$runtime" "${list[@]}" || failed=1
done
printf '\n## Lateness\n\n'
./lateness.py "${valkey[@]}" ${short:+--short}
printf '\n## Resident but expired\n\n'
./resident.py "${valkey[@]}"
printf '\n## Memory\n\n'
./memory.py "${valkey[@]}"
printf '\n## Throughput\n\n'
./throughput.py ${short:+--rounds 3 --requests 60000}
printf '\n## Eviction\n\n'
./eviction.py "${valkey[@]}" ${short:+--seconds 1.5}
printf '\n## Slow clients\n\n'
./slow.py "${valkey[@]}"
if [ -n "$libraries" ]; then
    printf '\n## Client libraries\n\n'
    ./libraries.py --redis-py "$libraries/redis-py" --ioredis "$libraries/ioredis" \
        --node-redis "$libraries/node-redis" --python "$libraries/venv/bin/python" --list
fi
[ -z "$failed" ] || exit 1
