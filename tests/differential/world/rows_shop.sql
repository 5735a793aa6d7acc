delete from t; insert into t values (1, 'first', 1.5, 'red'), (2, 'second', 2.5, 'green');
