delete from t; insert into t values (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three');
