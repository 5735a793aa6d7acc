-- Once a cluster: who there is. `boss` is who changes things past the proxy. `owners` own what sessions use, and everybody but `low` is a
-- member, so that every user may change every table.
create role boss superuser login;
create role owners;
create role low;
create role bob login;
create role carol login;
grant owners, low to alice, bob, carol;
-- Whose sessions take the client's user as their role.
create role pooled login;
grant alice, bob, carol to pooled;
create database shop;
grant all on database app, shop to public;
