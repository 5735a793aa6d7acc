#!/usr/bin/env bash
# Runs once, when the primary's data directory has just been made (docker-entrypoint-initdb.d): roles, and who may replicate.
set -euo pipefail

psql -v ON_ERROR_STOP=1 --no-psqlrc --username "${POSTGRES_USER:-postgres}" --dbname "$POSTGRES_DB" <<'SQL'
\getenv kingpost KINGPOST_PASSWORD
\getenv replication REPLICATION_PASSWORD
\getenv app APP_PASSWORD
CREATE ROLE kingpost LOGIN PASSWORD :'kingpost';
GRANT pg_monitor TO kingpost;
CREATE ROLE replicator LOGIN REPLICATION PASSWORD :'replication';
CREATE ROLE app LOGIN PASSWORD :'app';
GRANT CREATE ON DATABASE app TO app;
GRANT CREATE ON SCHEMA public TO app;

-- For [proxy.auth_query]: one role's verifier, for kingpost and nobody else. Roles that have expired or may not log in, and superusers, are not found.
CREATE SCHEMA kingpost;
CREATE FUNCTION kingpost.lookup(wanted text, OUT name text, OUT secret text) RETURNS SETOF record
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END
    FROM pg_authid WHERE rolname = wanted AND rolcanlogin AND NOT rolsuper AND NOT rolreplication
$$;
REVOKE ALL ON FUNCTION kingpost.lookup(text) FROM PUBLIC;
GRANT USAGE ON SCHEMA kingpost TO kingpost;
GRANT EXECUTE ON FUNCTION kingpost.lookup(text) TO kingpost;
SQL
echo 'host replication replicator all scram-sha-256' >> "$PGDATA/pg_hba.conf"
