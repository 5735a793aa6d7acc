#!/bin/sh
# Writes src/functions.txt: PostgreSQL's built-in functions all of whose overloads are declared immutable or stable,
# one name a line, sorted. What is wrong to run on a replica nevertheless is taken out in src/functions.rs, not here.
#
#   crates/sql/functions.sh [bindir]        (bindir: default /usr/lib/postgresql/15/bin)
#
# Uses a throw-away cluster in single-user mode: no port, no socket. As root it runs PostgreSQL as `nobody`.
set -eu
bin=${1:-/usr/lib/postgresql/15/bin}
out=$(dirname "$0")/src/functions.txt
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
run=
if [ "$(id -u)" = 0 ]; then
    chown nobody "$dir"
    run='setpriv --reuid=nobody --clear-groups'
fi
cd "$dir"
$run "$bin/initdb" -D "$dir/data" -A trust -U postgres --locale=C --no-sync >/dev/null
query="select proname from pg_proc where pronamespace = 11 group by 1 having bool_and(provolatile in ('i', 's') and prokind <> 'p') order by proname collate \"C\""
names=$(echo "$query" | $run "$bin/postgres" --single -j -D "$dir/data" template1 2>/dev/null | sed -n 's/.*proname = "\([^"]*\)".*/\1/p')
cd - >/dev/null
[ -n "$names" ] || { echo "no functions read from $bin/postgres" >&2; exit 1; }
echo "$names" | LC_ALL=C sort -u >"$out"
