#!/usr/bin/env bash
# Measures the cache of examples/resp_cache beside redis, and prints the tables of
# benches/results/resp.md.
#
#     judge.sh [--short] [--only TABLES] [VALKEY-SERVER]
#
# VALKEY-SERVER is the server that a build of valkey's source gives. This script fetches nothing but
# Debian's packages of redis, where they are missing.
#
# It takes about half an hour on a machine with two cpus, which must be idle otherwise. `--short`
# takes about ten minutes without valkey: redis and valkey are not asked for their lateness beside
# 10,000 and 100,000 keys, and a round of evictions takes half of the time. `--only 'lateness memory'`
# prints these tables; judge.sh names all of them where one is wrong.
set -euo pipefail
short=
tables='lateness resident memory throughput eviction slow'
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
valkey=(${1:+--valkey "$(realpath "$1")"})
cd "$(dirname "$0")"

# One call for each name, as a call with several succeeds if one of them is found.
if ! { command -v redis-server && command -v redis-benchmark; } >/dev/null; then
    sudo=$(command -v sudo || true)
    $sudo apt-get update -qq
    $sudo apt-get install -qq -y redis-server redis-tools
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
[ -z "${1:-}" ] || "$1" --version
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
if table slow 'Slow clients'; then
    ./slow.py "${valkey[@]}"
fi
