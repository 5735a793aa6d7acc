#!/bin/sh
# Writes two lists of PostgreSQL's built-in functions, one name a line, sorted: src/functions.txt has those all of whose overloads
# are declared immutable or stable, src/functions-other.txt all others. What is wrong to run on a replica nevertheless, or leaves
# something in the session, is said in src/functions.rs, not here.
#
#   crates/sql/functions.sh [bindir…]       (bindir: default /usr/lib/postgresql/15/bin)
#
# The first list is that of the first version given. The second one has what any of the versions has beyond it.
# Uses throw-away clusters in single-user mode: no port, no socket. As root it runs PostgreSQL as `nobody`.
set -eu
[ $# -gt 0 ] || set -- /usr/lib/postgresql/15/bin
src=$(cd "$(dirname "$0")/src" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
run=
if [ "$(id -u)" = 0 ]; then
    chmod 755 "$dir"
    run='setpriv --reuid=nobody --clear-groups'
fi
query="select proname, bool_and(provolatile in ('i', 's') and prokind <> 'p')::text as kind from pg_proc where pronamespace = 11 group by 1"
: >"$dir/all"
for bin; do
    rm -rf "$dir/one"
    mkdir "$dir/one"
    [ -z "$run" ] || chown nobody "$dir/one"
    (cd "$dir/one" && $run "$bin/initdb" -D "$dir/one/data" -A trust -U postgres --locale=C --no-sync >/dev/null)
    (cd "$dir/one" && echo "$query" | $run "$bin/postgres" --single -j -D "$dir/one/data" template1 2>/dev/null) |
        sed -n 's/.*proname = "\([^"]*\)".*/\1/p; s/.*kind = "\([^"]*\)".*/\1/p' | paste -d ' ' - - >"$dir/found"
    [ -s "$dir/found" ] || { echo "no functions read from $bin/postgres" >&2; exit 1; }
    [ -s "$dir/all" ] || awk '$2 == "true" { print $1 }' "$dir/found" | LC_ALL=C sort >"$src/functions.txt"
    awk '{ print $1 }' "$dir/found" >>"$dir/all"
done
LC_ALL=C sort -u "$dir/all" | LC_ALL=C comm -23 - "$src/functions.txt" >"$src/functions-other.txt"
