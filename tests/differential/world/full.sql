-- Before a session, when the last one may have changed the schema: everything that sessions find, made anew.
select world.clear();
create schema public;
create schema a;
create schema b;
create schema alice;
create schema bob;
create schema carol;
grant all on schema public, a, b, alice, bob, carol to public;
set role owners;

-- The same in every database, with other OIDs.
create type mood as enum ('sad', 'glad');
create table m (id int primary key, m mood);
create table kv (k text primary key, v int);
create table log (n int);
create table cp (id int, v text);
create table sw (id int, w text);
create table sw_next (id int, w text);
create table secret (s text);
create table rls (tenant text, n int);
create table a.here (w text);
create table b.here (w text);
create table a.shape (x int);
create table b.shape (y text, z int);
create table alice.own (al int, alice_has text);
create table bob.own (bo text);
create table carol.own (ca int, carol_has text, more int);
create sequence seq;
create view names as select k from kv;

-- Tenants see their own rows.
alter table rls enable row level security;
alter table rls force row level security;
create policy mine on rls using (tenant = current_setting('app.t', true));

-- What functions leave behind, and what is in none of a statement's words.
create function enter(t text) returns text language sql as $$ select set_config('app.t', t, false) $$;
create function enter_local(t text) returns text language sql as $$ select set_config('app.t', t, true) $$;
create function take(n int) returns bool language plpgsql as $$ begin return pg_try_advisory_lock(n); end $$;
create function scratch() returns void language plpgsql as $$ begin create temp table scratch (n int); insert into scratch values (1); end $$;
create function tell(channel text, payload text) returns void language plpgsql as $$ begin perform pg_notify(channel, payload); end $$;
create function noted(n int) returns int language sql as $$ insert into log values (n) returning n $$;
create view noting as select noted(7) as n;
create procedure put(n int) language plpgsql as $$ begin insert into log values (n); commit; perform 1; end $$;
reset role;

grant all on all tables in schema public, a, b, alice, bob, carol to public;
grant all on all sequences in schema public to public;
revoke all on secret from public;
