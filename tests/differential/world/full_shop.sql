-- What is in `shop` alone: types and tables have other OIDs than in `app`, and `t` has other columns.
set role owners;
create type color as enum ('red', 'green');
create table t (id int primary key, w text, x numeric, c color);
grant all on t to public;
reset role;
