// pgx at its usual work, in each of its ways to execute a query: parameters, transactions, batches, COPY, pools, LISTEN,
// large objects, cancel, database/sql. DATABASE_URL says where.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

const limit = 60 * time.Second

var modes = map[string]pgx.QueryExecMode{
	"cache statement": pgx.QueryExecModeCacheStatement,
	"cache describe":  pgx.QueryExecModeCacheDescribe,
	"describe exec":   pgx.QueryExecModeDescribeExec,
	"exec":            pgx.QueryExecModeExec,
	"simple protocol": pgx.QueryExecModeSimpleProtocol,
}

func unique(stem string) string {
	bytes := make([]byte, 6)
	_, _ = rand.Read(bytes)
	return stem + "_" + hex.EncodeToString(bytes)
}

func config(mode pgx.QueryExecMode) *pgx.ConnConfig {
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	config.DefaultQueryExecMode = mode
	return config
}

func connect(ctx context.Context, mode pgx.QueryExecMode) *pgx.Conn {
	conn, err := pgx.ConnectConfig(ctx, config(mode))
	must(err)
	return conn
}

// A failing check ends by a panic, which names the line.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func equal[T comparable](got, want T) {
	if got != want {
		panic(fmt.Sprintf("got %v, not %v", got, want))
	}
}

func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return fmt.Sprint(err)
}

func one[T any](ctx context.Context, q interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, text string, arguments ...any) T {
	var value T
	must(q.QueryRow(ctx, text, arguments...).Scan(&value))
	return value
}

func exec(ctx context.Context, conn *pgx.Conn, text string, arguments ...any) {
	_, err := conn.Exec(ctx, text, arguments...)
	must(err)
}

func table(ctx context.Context, conn *pgx.Conn, columns string) string {
	name := unique("pgx")
	exec(ctx, conn, "CREATE TABLE "+name+" ("+columns+")")
	return name
}

type check struct {
	name string
	work func(ctx context.Context, mode pgx.QueryExecMode)
}

func parametersAndTypes(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	for turn := range int32(20) {
		equal(one[int32](ctx, conn, "SELECT $1::int4 + $2::int4", turn, int32(2)), turn+2)
	}
	equal(one[string](ctx, conn, "SELECT $1::text || 'é✓'", "x'"), "x'é✓")
	equal(one[int64](ctx, conn, "SELECT $1::int8", int64(1)<<40), int64(1)<<40)
	at := time.Date(2024, 2, 29, 12, 30, 1, 5000, time.UTC)
	equal(one[time.Time](ctx, conn, "SELECT $1::timestamptz", at).UTC(), at)
	equal(string(one[[]byte](ctx, conn, "SELECT $1::bytea", []byte{0, 1, 255})), "\x00\x01\xff")
	equal(one[*string](ctx, conn, "SELECT $1::text", nil), nil)
	equal(slices.Equal(one[[]int32](ctx, conn, "SELECT $1::int4[]", []int32{1, 2, 3}), []int32{1, 2, 3}), true)
	equal(one[map[string]any](ctx, conn, "SELECT $1::jsonb", `{"a": 1.5}`)["a"], any(1.5))
	rows, err := conn.Query(ctx, "SELECT n::int4 FROM generate_series(1, 10000) n")
	must(err)
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	must(err)
	equal(len(numbers), 10000)
}

func transactions(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	name := table(ctx, conn, "n int4 PRIMARY KEY")
	must(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+name+" VALUES ($1)", int32(1))
		must(err)
		err = pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
			_, err := nested.Exec(ctx, "INSERT INTO "+name+" VALUES ($1)", int32(1))
			return err
		})
		equal(code(err), "23505")
		_, err = tx.Exec(ctx, "INSERT INTO "+name+" VALUES ($1)", int32(2))
		return err
	}))
	equal(one[int64](ctx, conn, "SELECT count(*) FROM "+name), int64(2))
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadOnly})
	must(err)
	equal(one[string](ctx, tx, "SHOW transaction_isolation"), "serializable")
	_, err = tx.Exec(ctx, "INSERT INTO "+name+" VALUES (9)")
	equal(code(err), "25006")
	_, err = tx.Exec(ctx, "SELECT 1")
	equal(code(err), "25P02")
	must(tx.Rollback(ctx))
	equal(one[int64](ctx, conn, "SELECT count(*) FROM "+name), int64(2))
}

func batches(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	name := table(ctx, conn, "n int4 PRIMARY KEY, t text")
	batch := &pgx.Batch{}
	for n := range int32(200) {
		batch.Queue("INSERT INTO "+name+" VALUES ($1, $2)", n, fmt.Sprint("row ", n))
	}
	for n := range int32(200) {
		batch.Queue("SELECT t FROM "+name+" WHERE n = $1", n).QueryRow(func(row pgx.Row) error {
			var text string
			err := row.Scan(&text)
			equal(text, fmt.Sprint("row ", n))
			return err
		})
	}
	must(conn.SendBatch(ctx, batch).Close())
	// It is one transaction: the error takes what was before it along.
	broken := &pgx.Batch{}
	broken.Queue("INSERT INTO "+name+" VALUES ($1, 'x')", int32(1000))
	broken.Queue("INSERT INTO "+name+" VALUES ($1, 'x')", int32(1))
	equal(code(conn.SendBatch(ctx, broken).Close()), "23505")
	equal(one[int64](ctx, conn, "SELECT count(*) FROM "+name), int64(200))
}

func copies(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	name := table(ctx, conn, "n int4, t text, at timestamptz")
	source := pgx.CopyFromSlice(5000, func(n int) ([]any, error) {
		return []any{int32(n), fmt.Sprint("row\t", n), time.Unix(int64(n), 0)}, nil
	})
	copied, err := conn.CopyFrom(ctx, pgx.Identifier{name}, []string{"n", "t", "at"}, source)
	must(err)
	equal(copied, int64(5000))
	out := &counting{}
	_, err = conn.PgConn().CopyTo(ctx, out, "COPY "+name+" TO STDOUT (FORMAT csv)")
	must(err)
	equal(out.lines, 5000)
	failing := pgx.CopyFromFunc(func() ([]any, error) { return nil, errors.New("on purpose") })
	if _, err = conn.CopyFrom(ctx, pgx.Identifier{name}, []string{"n", "t", "at"}, failing); err == nil {
		panic("a COPY that fails at the client went through")
	}
	equal(one[int64](ctx, conn, "SELECT count(*) FROM "+name), int64(5000))
}

type counting struct{ lines int }

func (c *counting) Write(bytes []byte) (int, error) {
	for _, b := range bytes {
		if b == '\n' {
			c.lines++
		}
	}
	return len(bytes), nil
}

func pools(ctx context.Context, mode pgx.QueryExecMode) {
	settings, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	settings.ConnConfig.DefaultQueryExecMode = mode
	settings.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	must(err)
	defer pool.Close()
	name := unique("pgx")
	_, err = pool.Exec(ctx, "CREATE TABLE "+name+" (n int4 PRIMARY KEY)")
	must(err)
	var workers sync.WaitGroup
	failures := make(chan any, 20)
	for worker := range int32(20) {
		workers.Add(1)
		go func() {
			defer workers.Done()
			defer func() {
				if failure := recover(); failure != nil {
					failures <- failure
				}
			}()
			for turn := range int32(10) {
				conn, err := pool.Acquire(ctx)
				must(err)
				n := worker*100 + turn
				_, err = conn.Exec(ctx, "INSERT INTO "+name+" VALUES ($1)", n)
				must(err)
				equal(one[int64](ctx, conn, "SELECT count(*) FROM "+name+" WHERE n = $1", n), int64(1))
				conn.Release()
			}
		}()
	}
	workers.Wait()
	select {
	case failure := <-failures:
		panic(failure)
	default:
	}
	equal(one[int64](ctx, pool, "/* kingpost.route=primary */ SELECT count(*) FROM "+name), int64(200))
}

func aTableThatChanges(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	name := table(ctx, conn, "a int4")
	exec(ctx, conn, "INSERT INTO "+name+" VALUES (1)")
	columns := func() (int, error) {
		rows, err := conn.Query(ctx, "SELECT * FROM "+name)
		if err != nil {
			return 0, err
		}
		rows.Next()
		values, err := rows.Values()
		rows.Close()
		if rows.Err() != nil {
			return 0, rows.Err()
		}
		return len(values), err
	}
	for turn := 1; turn < 4; turn++ {
		// Its own caches may be stale once, as with a direct connection; it drops them then.
		seen, err := columns()
		for tries := 0; err != nil && tries < 3; tries++ {
			seen, err = columns()
		}
		must(err)
		equal(seen, turn)
		exec(ctx, conn, fmt.Sprintf("ALTER TABLE %s ADD COLUMN c%d text", name, turn))
	}
}

func listening(ctx context.Context, mode pgx.QueryExecMode) {
	conn, other := connect(ctx, mode), connect(ctx, mode)
	defer conn.Close(ctx)
	defer other.Close(ctx)
	channel := unique("pgx")
	exec(ctx, conn, "LISTEN "+channel)
	for _, payload := range []string{"one", "two"} {
		exec(ctx, other, "SELECT pg_notify($1, $2)", channel, payload)
	}
	for _, payload := range []string{"one", "two"} {
		heard, err := conn.WaitForNotification(ctx)
		must(err)
		equal(heard.Payload, payload)
	}
	exec(ctx, conn, "UNLISTEN *")
}

func cancelling(ctx context.Context, mode pgx.QueryExecMode) {
	settings := config(mode)
	// By a cancel request, so that the connection goes on; its default is to close it.
	settings.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, CancelRequestDelay: 0, DeadlineDelay: 20 * time.Second}
	}
	conn, err := pgx.ConnectConfig(ctx, settings)
	must(err)
	defer conn.Close(ctx)
	for range 3 {
		soon, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		_, err := conn.Exec(soon, "SELECT pg_sleep(600)")
		stop()
		if err == nil {
			panic("slept for ten minutes")
		}
		equal(conn.IsClosed(), false)
		equal(one[int32](ctx, conn, "SELECT 7::int4"), 7)
	}
}

func errorsKeepTheConnection(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	for text, want := range map[string]string{"SELEC 1": "42601", "SELECT * FROM no_such_table": "42P01", "SELECT 1 / ($1::int4 - 1)": "22012"} {
		arguments := []any{}
		if want == "22012" {
			arguments = append(arguments, int32(1))
		}
		_, err := conn.Exec(ctx, text, arguments...)
		equal(code(err), want)
		equal(one[int32](ctx, conn, "SELECT 7::int4"), 7)
	}
}

func largeObjects(ctx context.Context, mode pgx.QueryExecMode) {
	conn := connect(ctx, mode)
	defer conn.Close(ctx)
	must(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		objects := tx.LargeObjects()
		oid, err := objects.Create(ctx, 0)
		must(err)
		object, err := objects.Open(ctx, oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		must(err)
		_, err = object.Write(make([]byte, 100_000))
		must(err)
		size, err := object.Seek(0, 2)
		must(err)
		equal(size, 100_000)
		return objects.Unlink(ctx, oid)
	}))
}

func databaseSQL(ctx context.Context, mode pgx.QueryExecMode) {
	db := stdlib.OpenDB(*config(mode))
	defer db.Close()
	db.SetMaxOpenConns(4)
	name := unique("pgx")
	_, err := db.ExecContext(ctx, "CREATE TABLE "+name+" (n int4 PRIMARY KEY, t text)")
	must(err)
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	must(err)
	insert, err := tx.PrepareContext(ctx, "INSERT INTO "+name+" VALUES ($1, $2)")
	must(err)
	for n := range 50 {
		_, err = insert.ExecContext(ctx, n, fmt.Sprint(n))
		must(err)
	}
	must(tx.Commit())
	// Prepared for the whole pool: in whichever connection it runs.
	find, err := db.PrepareContext(ctx, "/* kingpost.route=primary */ SELECT t FROM "+name+" WHERE n = $1")
	must(err)
	for n := range 50 {
		var text string
		must(find.QueryRowContext(ctx, n).Scan(&text))
		equal(text, fmt.Sprint(n))
	}
}

func settings(ctx context.Context, mode pgx.QueryExecMode) {
	with := config(mode)
	with.RuntimeParams["application_name"] = "pgx tests"
	with.RuntimeParams["search_path"] = "nowhere,public"
	conn, err := pgx.ConnectConfig(ctx, with)
	must(err)
	defer conn.Close(ctx)
	for range 8 {
		equal(one[string](ctx, conn, "SHOW application_name"), "pgx tests")
		equal(one[string](ctx, conn, "SHOW search_path"), "nowhere,public")
	}
	equal(conn.PgConn().ParameterStatus("application_name"), "pgx tests")
}

func tls(ctx context.Context, _ pgx.QueryExecMode) {
	url := os.Getenv("DATABASE_TLS_URL")
	if url == "" {
		return
	}
	// Without sslmode it prefers TLS.
	conn, err := pgx.Connect(ctx, url)
	must(err)
	defer conn.Close(ctx)
	equal(fmt.Sprintf("%T", conn.PgConn().Conn()), "*tls.Conn")
	equal(one[int32](ctx, conn, "SELECT 7::int4"), 7)
}

func main() {
	inEachMode := []check{
		{"parameters and types", parametersAndTypes}, {"transactions", transactions}, {"batches", batches}, {"COPY", copies},
		{"pools", pools}, {"a table that changes", aTableThatChanges}, {"listening", listening}, {"cancelling", cancelling},
		{"errors keep the connection", errorsKeepTheConnection}, {"large objects", largeObjects}, {"database/sql", databaseSQL},
		{"session settings", settings},
	}
	number, failed := 0, false
	run := func(name string, mode pgx.QueryExecMode, work func(context.Context, pgx.QueryExecMode)) {
		number++
		ctx, stop := context.WithTimeout(context.Background(), limit)
		defer stop()
		defer func() {
			if failure := recover(); failure != nil {
				failed = true
				fmt.Printf("not ok %d - %s\n%v\n", number, name, failure)
				return
			}
			fmt.Printf("ok %d - %s\n", number, name)
		}()
		work(ctx, mode)
	}
	for name, mode := range modes {
		for _, check := range inEachMode {
			run(name+": "+check.name, mode, check.work)
		}
	}
	run("TLS where it is offered", pgx.QueryExecModeCacheStatement, tls)
	fmt.Printf("1..%d\n", number)
	if failed {
		os.Exit(1)
	}
}
