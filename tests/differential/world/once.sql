-- Once a database: what no session changes.
create schema world;
grant usage on schema world to public;

-- Drops what the last session has left, in every schema of users.
create function world.clear() returns void language plpgsql as $$
declare
    one record;
begin
    for one in select nspname from pg_namespace
        where nspname !~ '^pg_' and nspname not in ('information_schema', 'world')
    loop
        execute format('drop schema %I cascade', one.nspname);
    end loop;
end $$;

-- All that a session may have changed, as lines.
create function world.dump() returns setof text language plpgsql as $$
declare
    one record;
    line text;
begin
    for one in select c.oid, n.nspname, c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'world') and c.relkind in ('r', 'v', 'S')
        order by n.nspname, c.relname
    loop
        return next format('%s %I.%I (%s)', one.relkind, one.nspname, one.relname,
            (select string_agg(format('%s %s', attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
                from pg_attribute where attrelid = one.oid and attnum > 0 and not attisdropped));
        if one.relkind = 'r' then
            for line in execute format('select x::text from %I.%I x order by 1', one.nspname, one.relname) loop
                return next '  ' || line;
            end loop;
        end if;
    end loop;
    for line in select format('role %s %s', rolname, rolconfig) from pg_roles where rolname !~ '^pg_' order by 1 loop
        return next line;
    end loop;
end $$;

-- A RowDescription of more than 64 KiB.
do $$
begin
    execute (select 'create table world.wide (' || string_agg(format('a_column_with_a_long_name_%s int', n), ', ') || ')'
        from generate_series(1, 1590) n);
    execute 'insert into world.wide (a_column_with_a_long_name_1) values (1)';
end $$;
grant select on world.wide to public;
