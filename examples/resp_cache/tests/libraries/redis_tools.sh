#!/usr/bin/env bash
# redis-cli, as it is started by hand and by scripts, and redis-benchmark.
set -euo pipefail
# Output that is no terminal is given as it comes.
timeout 2 redis-cli -p "$1" psubscribe '__keyevent@0__:*' || [[ $? == 124 ]]
redis-cli -3 -n 0 -p "$1" ping
printf 'set k 1 ex 100\nttl k\nget k\nquit\n' | redis-cli -p "$1"
redis-benchmark -q -p "$1" -n 1000 -P 4 -t ping,set,get,incr
echo done
