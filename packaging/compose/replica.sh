#!/usr/bin/env bash
# The replica: a base backup of PRIMARY the first time, then a standby that streams from it.
set -euo pipefail

export PGPASSWORD=$REPLICATION_PASSWORD
PGDATA=${PGDATA:-/var/lib/postgresql/data}
complete=$PGDATA/kingpost-backup-complete
if [ ! -e "$complete" ]; then
    # What an interrupted backup has left: pg_basebackup wants an empty directory.
    find "$PGDATA" -mindepth 1 -delete
    pg_basebackup --pgdata "$PGDATA" --write-recovery-conf --wal-method stream --checkpoint fast \
        --dbname "host=$PRIMARY user=replicator application_name=replica"
    chmod 700 "$PGDATA"
    touch "$complete"
fi
unset PGPASSWORD
exec postgres -D "$PGDATA" "$@"
