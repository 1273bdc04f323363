#!/usr/bin/env bash
# Judges the cache of examples/resp_cache by programs of others, and prints the tables of
# benches/results/resp.md.
#
#     judge.sh [--short] [--only TABLES] SUITE [VALKEY-SERVER [LIBRARIES]]
#
# SUITE is a checkout of redis or valkey with the Tcl suite. VALKEY-SERVER is the server that a build
# of valkey's source gives, or '' for none. LIBRARIES is a folder with checkouts of redis-py, ioredis
# and node-redis and a virtual environment `venv`, as libraries.py says. The caller fetches them all.
# This script fetches nothing but Debian's packages of redis and Tcl, where they are missing.
#
# It takes about half an hour on a machine with two cpus, which must be idle otherwise, and as long
# again with LIBRARIES. `--short` takes about ten minutes without valkey. It prints all tables, but
# the suite runs on tokio only and without its list, redis and valkey are not asked for their
# lateness beside 10,000 and 100,000 keys, and a round of evictions takes half of the time. `--only
# 'lateness memory'` prints these tables; judge.sh names all of them where one is wrong.
set -euo pipefail
short=
tables='suite answers lateness resident memory throughput eviction limit slow libraries'
only=$tables
while [[ ${1-} == --* ]]; do
    case $1 in
    --short) short=1 ;;
    --only) only=${2:?the names of tables} && shift ;;
    *) echo "there is no option '$1'" >&2 && exit 2 ;;
    esac
    shift
done
for table in $only; do
    if [[ " $tables " != *" $table "* ]]; then
        echo "there is no table '$table'; the tables are: $tables" >&2
        exit 2
    fi
done
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
# RESP_CACHE is a build that is to be judged in place of this one.
[ -n "${RESP_CACHE:-}" ] || (cd ../../.. && cargo build --release --locked -p corewheel-resp-cache)

# Whether a table is to be printed; if so, its heading is.
table() {
    [[ " $only " == *" $1 "* ]] && printf '\n## %s\n\n' "$2"
}

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
    if table suite "The suite, on $runtime"; then
        ./suite.py "$suite" --runtime "$runtime" "${list[@]}" || failed=1
    fi
done
if table answers 'Answers'; then
    ./answers.py "${valkey[@]}"
fi
if table lateness 'Lateness'; then
    ./lateness.py "${valkey[@]}" ${short:+--short}
fi
if table resident 'Resident but expired'; then
    ./resident.py "${valkey[@]}"
fi
if table memory 'Memory'; then
    ./memory.py "${valkey[@]}"
fi
if table throughput 'Throughput'; then
    ./throughput.py "${valkey[@]}" ${short:+--rounds 3 --requests 60000}
fi
if table eviction 'Eviction'; then
    ./eviction.py "${valkey[@]}" ${short:+--seconds 1.5}
fi
if table limit 'Room for more than one key'; then
    ./limit.py "${valkey[@]}"
fi
if table slow 'Slow clients'; then
    ./slow.py "${valkey[@]}"
fi
if [ -n "$libraries" ] && table libraries 'Client libraries'; then
    ./libraries.py --redis-py "$libraries/redis-py" --ioredis "$libraries/ioredis" \
        --node-redis "$libraries/node-redis" --python "$libraries/venv/bin/python" --list
fi
[ -z "$failed" ] || exit 1
