-- What is in `app` alone: `t` and `shape` have other columns than in `shop`.
set role owners;
create table t (id int primary key, n int, w text);
grant all on t to public;
reset role;
