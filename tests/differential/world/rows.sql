-- Before each session: the rows.
delete from m; insert into m values (1, 'sad'), (2, 'glad');
delete from kv; insert into kv values ('x', 1), ('y', 2);
delete from log; insert into log values (1), (2), (3);
delete from cp; insert into cp values (1, 'one'), (2, 'two');
delete from sw; insert into sw values (1, 'old');
delete from sw_next; insert into sw_next values (1, 'new');
delete from secret; insert into secret values ('hidden');
delete from rls; insert into rls values ('t1', 1), ('t2', 2), ('ta', 11), ('tb', 12), ('tc', 13), ('td', 14);
delete from a.here; insert into a.here values ('in a');
delete from b.here; insert into b.here values ('in b');
delete from a.shape; insert into a.shape values (1);
delete from b.shape; insert into b.shape values ('b', 2);
delete from alice.own; insert into alice.own values (1, 'of alice');
delete from bob.own; insert into bob.own values ('of bob');
delete from carol.own; insert into carol.own values (1, 'of carol', 2);
select setval('seq', 1, false);
