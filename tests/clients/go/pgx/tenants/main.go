// pgx for tenants (../../../tenants/README.md), in its default way: statements are prepared, and its cache keeps them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	program = "pgx"
	perTurn = 8
	rounds  = 9
	enough  = 100
	limit   = 60 * time.Second
)

type tenant struct {
	Name, Datestyle, Timezone string
	Days, Epoch               int32
	Orders, Notes             map[string]int32
}

type statement struct {
	Name, Text, Rows string
	Args             []any
	Columns          map[string][]string
}

type way struct {
	Name                   string
	Outside, Inside, Reset [][]any
}

var world struct {
	Tenants          []tenant
	Databases, Users []string
	Ways             []way
	Statements       []statement
	Insert           []any
	Entry            statement
}

type counts struct {
	reads, inserts int
	faults         []string
}

// What all clients have counted, by way.
var (
	lock   sync.Mutex
	tally  = map[string]*counts{}
	faults int
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(err)
	return n
}

func fault(way, text string) {
	lock.Lock()
	defer lock.Unlock()
	tally[way].faults = append(tally[way].faults, text)
	faults++
}

func isEnough() bool {
	lock.Lock()
	defer lock.Unlock()
	return faults >= enough
}

// Who a client is in a round.
type who struct {
	tenant *tenant
	// Whose DateStyle and TimeZone the connection has.
	home   *tenant
	client string
	round  int
}

func (w who) text(template string) string {
	return strings.NewReplacer("{tenant}", w.tenant.Name, "{datestyle}", w.home.Datestyle, "{timezone}", w.home.Timezone).Replace(template)
}

func (w who) values(templates []any) []any {
	values := make([]any, len(templates))
	for i, template := range templates {
		switch value := template.(type) {
		case float64:
			values[i] = int32(value)
		case string:
			switch value {
			case "{client}":
				values[i] = w.client
			case "{home}":
				values[i] = w.home.Name
			case "{round}":
				values[i] = int32(w.round)
			default:
				values[i] = w.text(value)
			}
		}
	}
	return values
}

// What is wrong with the rows that a reader of this tenant (nil: of nobody's) got; "" if nothing is.
func wrong(s *statement, columns []string, rows [][]any, t, home *tenant, database string) string {
	if t == nil {
		if len(rows) > 0 {
			return fmt.Sprintf("%d rows for nobody: %v", len(rows), rows[0])
		}
		return ""
	}
	count := map[string]int32{"single": 1, "orders": t.Orders[database], "notes": t.Notes[database]}[s.Rows]
	if len(rows) != int(count) {
		return fmt.Sprintf("%d rows, not %d: %v", len(rows), count, rows[:min(1, len(rows))])
	}
	if !slices.Equal(columns, s.Columns[database]) {
		return fmt.Sprintf("columns %v", columns)
	}
	expected := map[string]any{"tenant": t.Name, "place": database, "days": home.Days, "epoch": home.Epoch, "n": t.Orders[database]}
	for _, row := range rows {
		for i, column := range columns {
			if want, told := expected[column]; told && row[i] != want {
				return fmt.Sprintf("%s is %v, not %v", column, row[i], want)
			}
		}
	}
	return ""
}

type client struct {
	number               int
	name, database, user string
	reads                int
	conn                 *pgx.Conn
}

func (c *client) told(round int, t *tenant) string {
	name := "nobody"
	if t != nil {
		name = t.Name
	}
	return fmt.Sprintf("%s (%s, %s), round %d, as %s", c.name, c.user, c.database, round, name)
}

func (c *client) run(ctx context.Context, parts []any, w who) error {
	_, err := c.conn.Exec(ctx, w.text(parts[0].(string)), w.values(parts[1:])...)
	return err
}

func (c *client) all(ctx context.Context, statements [][]any, w who) error {
	for _, parts := range statements {
		if err := c.run(ctx, parts, w); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) read(ctx context.Context, way string, s *statement, w who, t *tenant) error {
	rows, err := c.conn.Query(ctx, s.Text, w.values(s.Args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	var all [][]any
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		all = append(all, values)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	var columns []string
	for _, field := range rows.FieldDescriptions() {
		columns = append(columns, field.Name)
	}
	c.reads++
	lock.Lock()
	tally[way].reads++
	lock.Unlock()
	if text := wrong(s, columns, all, t, w.home, c.database); text != "" {
		fault(way, fmt.Sprintf("%s, %s: %s", c.told(w.round, t), s.Name, text))
	}
	return nil
}

func (c *client) work(ctx context.Context, way string, w who, inserts bool) error {
	if inserts {
		if err := c.run(ctx, world.Insert, w); err != nil {
			return err
		}
		lock.Lock()
		tally[way].inserts++
		lock.Unlock()
	}
	for n := range perTurn {
		if err := c.read(ctx, way, &world.Statements[(c.number+w.round+n)%len(world.Statements)], w, w.tenant); err != nil {
			return err
		}
	}
	if inserts {
		return c.read(ctx, way, &world.Entry, w, w.tenant)
	}
	return nil
}

// Rolls back a transaction of the test's that is not to be committed.
var errRollback = errors.New("rolled back on purpose")

func (c *client) round(ctx context.Context, round int, way *way) error {
	at := c.number/16 + round + round/24
	// Whose the session is around a transaction that is another tenant's.
	tenant, other := &world.Tenants[at%6], &world.Tenants[(at+1+round%5)%6]
	w := who{tenant, &world.Tenants[(c.number/2+round/rounds)%6], c.name, round}
	inserts := (c.number+round)%4 == 0
	around := w
	if len(way.Inside) > 0 {
		around.tenant = other
	}
	if err := c.all(ctx, way.Outside, around); err != nil {
		return err
	}
	if len(way.Inside) == 0 {
		if err := c.work(ctx, way.Name, w, inserts); err != nil {
			return err
		}
	} else {
		err := pgx.BeginFunc(ctx, c.conn, func(pgx.Tx) error {
			if err := c.all(ctx, way.Inside, w); err != nil {
				return err
			}
			if err := c.work(ctx, way.Name, w, inserts); err != nil {
				return err
			}
			if round%3 == 0 && !inserts {
				return errRollback
			}
			return nil
		})
		if err != nil && !errors.Is(err, errRollback) {
			return err
		}
		if len(way.Outside) > 0 {
			if err := c.read(ctx, way.Name, &world.Statements[round%len(world.Statements)], w, other); err != nil {
				return err
			}
		}
	}
	if round%rounds == rounds-1 {
		// It leaves with all that it has set.
		return nil
	}
	if err := c.all(ctx, way.Reset, w); err != nil {
		return err
	}
	for n := range 2 {
		if err := c.read(ctx, way.Name, &world.Statements[(round+n)%(len(world.Statements)-1)], w, nil); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) start(reads int) {
	text := fmt.Sprintf("postgres://%s@127.0.0.1:%s/%s?sslmode=disable&connect_timeout=60", c.user, os.Getenv("TENANTS_PORT"), c.database)
	for round := 0; c.reads < reads && !isEnough(); round++ {
		ctx, done := context.WithTimeout(context.Background(), limit)
		way := &world.Ways[(c.number/2+round)%len(world.Ways)]
		var err error
		if c.conn == nil {
			c.conn, err = pgx.Connect(ctx, text)
		}
		if err == nil {
			err = c.round(ctx, round, way)
		}
		if err != nil {
			fault(way.Name, fmt.Sprintf("%s: %v", c.told(round, nil), err))
			// Its state is not known: the next round has a new connection.
		}
		if c.conn != nil && (err != nil || round%rounds == rounds-1) {
			_ = c.conn.Close(ctx)
			c.conn = nil
		}
		done()
	}
	if c.conn != nil {
		_ = c.conn.Close(context.Background())
	}
}

func main() {
	text, err := os.ReadFile(filepath.Join(os.Getenv("TENANTS_WORLD"), "world.json"))
	must(err)
	must(json.Unmarshal(text, &world))
	for _, way := range world.Ways {
		tally[way.Name] = &counts{}
	}
	first, clients, reads := number("TENANTS_FIRST", 0), number("TENANTS_CLIENTS", 48), number("TENANTS_READS", 10000)
	var all sync.WaitGroup
	for n := first; n < first+clients; n++ {
		c := &client{number: n, name: fmt.Sprintf("%s-%d", program, n), database: world.Databases[n%2], user: world.Users[0]}
		if n/2%4 == 3 {
			c.user = world.Users[1]
		}
		all.Go(func() { c.start(reads / clients) })
	}
	all.Wait()
	failed := false
	for i, way := range world.Ways {
		count := tally[way.Name]
		// Without a read, nothing was tested.
		word, end := "ok", ""
		if len(count.faults) > 0 {
			end = fmt.Sprintf(", %d faults", len(count.faults))
		}
		if len(count.faults) > 0 || count.reads == 0 {
			word, failed = "not ok", true
		}
		fmt.Printf("%s %d - %s: %d reads, %d inserts%s\n", word, i+1, way.Name, count.reads, count.inserts, end)
		for _, text := range count.faults[:min(3, len(count.faults))] {
			fmt.Println("#", text)
		}
	}
	fmt.Printf("1..%d\n", len(world.Ways))
	if failed {
		os.Exit(1)
	}
}
