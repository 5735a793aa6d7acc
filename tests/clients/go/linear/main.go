// Writes a history of registers through several proxies and has porcupine check that it is linearizable.
//
// A register is a row: clients write a number nobody else writes, or read. Each operation is noted with when it was begun and when it was
// answered. A write whose outcome is not known (the connection was lost, 08007) may take effect at any later time, or never: it ends when the
// history does. What was refused (nothing was executed) is left out.
//
// Environment: PROXIES, connection strings, one a line. SESSION, statements of each session (a line each). HINTS, one a line:
// one of them, at random, is put before each read. RULE:
// "linear", or "recent", which asks for less: a read may also be placed later, up to the end of the writes that run at the same time. Then what is
// checked is that no read misses a write that was acknowledged before the read was begun; a write that is not acknowledged yet may be seen by one
// read and not by the next.
//
// It says "ready" when all clients are at work, "done N" after each N hundred operations, and stops when its input ends. It exits with 0 if the
// history is as the rule wants it, with 1 if not, and with 2 if it could not be checked.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	clients = 12
	// Registers in use at a time, and operations until others take their place: the checker's work grows fast with the length of one history.
	registers = 3
	turnover  = 60
	// Longest time that an operation may take, and that the check of one register may take.
	limit      = 60 * time.Second
	checkLimit = 20 * time.Second
)

type call struct {
	register int64
	write    bool
	value    int64
}

type world struct {
	start   time.Time
	count   atomic.Int64
	values  atomic.Int64
	ids     atomic.Int64
	stop    atomic.Bool
	unknown atomic.Int64
	refused atomic.Int64

	mutex      sync.Mutex
	operations []porcupine.Operation
	errors     map[string]int
}

func (w *world) now() int64 { return int64(time.Since(w.start)) }

func (w *world) note(client int64, call call, begun, ended, output int64) {
	operation := porcupine.Operation{ClientId: int(client), Input: call, Call: begun, Output: output, Return: ended}
	w.mutex.Lock()
	w.operations = append(w.operations, operation)
	w.mutex.Unlock()
}

func (w *world) failed(err error) {
	w.mutex.Lock()
	w.errors[err.Error()]++
	w.mutex.Unlock()
}

// Nothing was executed: no primary, no proof, no server connection.
func refused(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && slices.Contains([]string{"57P03", "53300"}, said.Code)
}

func connect(proxy string, session []string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	connection, err := pgx.Connect(ctx, proxy)
	if err != nil {
		return nil, err
	}
	for _, statement := range session {
		if _, err := connection.Exec(ctx, statement); err != nil {
			connection.Close(ctx)
			return nil, err
		}
	}
	return connection, nil
}

// One client: it goes on until the history is to end, by a new connection after each that is lost.
func (w *world) client(proxy string, session, hints []string, atWork *sync.WaitGroup) {
	var connection *pgx.Conn
	id := w.ids.Add(1)
	random := rand.New(rand.NewSource(id))
	begun := sync.OnceFunc(atWork.Done)
	for !w.stop.Load() {
		if connection == nil || connection.IsClosed() {
			fresh, err := connect(proxy, session)
			if err != nil {
				w.failed(err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			connection = fresh
		}
		number := w.count.Add(1)
		if number%100 == 0 {
			fmt.Println("done", number/100)
		}
		call := call{register: number/turnover*registers + random.Int63n(registers), write: random.Intn(3) == 0}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		at := w.now()
		if call.write {
			call.value = w.values.Add(1)
			sql := "INSERT INTO register VALUES ($1, $2) ON CONFLICT (n) DO UPDATE SET value = excluded.value"
			_, err := connection.Exec(ctx, sql, call.register, call.value)
			switch {
			case err == nil:
				w.note(id, call, at, w.now(), 0)
			case refused(err):
				w.refused.Add(1)
			default:
				w.failed(err)
				w.unknown.Add(1)
				// Whoever goes on is somebody else: this operation never ends.
				w.note(id, call, at, -1, 0)
				id = w.ids.Add(1)
			}
		} else {
			var value int64
			hint := ""
			if len(hints) > 0 {
				hint = hints[random.Intn(len(hints))]
			}
			err := connection.QueryRow(ctx, hint+"SELECT value FROM register WHERE n = $1", call.register).Scan(&value)
			switch {
			case err == nil || errors.Is(err, pgx.ErrNoRows):
				w.note(id, call, at, w.now(), value)
			case refused(err):
				w.refused.Add(1)
			default:
				w.failed(err)
			}
		}
		cancel()
		begun()
	}
	if connection != nil {
		connection.Close(context.Background())
	}
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := map[int64][]porcupine.Operation{}
		for _, operation := range history {
			register := operation.Input.(call).register
			parts[register] = append(parts[register], operation)
		}
		var all [][]porcupine.Operation
		for _, part := range parts {
			all = append(all, part)
		}
		return all
	},
	// What is in no row yet is 0.
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		if call := input.(call); call.write {
			return true, call.value
		}
		return output.(int64) == state.(int64), state
	},
	Equal: func(one, other any) bool { return one == other },
	DescribeOperation: func(input, output any) string {
		if call := input.(call); call.write {
			return fmt.Sprintf("write %d", call.value)
		}
		return fmt.Sprintf("read %d", output)
	},
}

// Gives each read until the end of the writes that run at the same time.
func recent(history []porcupine.Operation) []porcupine.Operation {
	writes := map[int64][]porcupine.Operation{}
	for _, operation := range history {
		if call := operation.Input.(call); call.write {
			writes[call.register] = append(writes[call.register], operation)
		}
	}
	for index := range history {
		read := &history[index]
		if read.Input.(call).write {
			continue
		}
		begun, ended := read.Call, read.Return
		for _, write := range writes[read.Input.(call).register] {
			if write.Call < ended && write.Return > begun {
				read.Return = max(read.Return, write.Return)
			}
		}
		// Two operations of one client may overlap now.
		read.ClientId = -1 - index
	}
	return history
}

func main() {
	lines := func(name string) []string {
		return slices.DeleteFunc(strings.Split(os.Getenv(name), "\n"), func(line string) bool { return line == "" })
	}
	proxies, session, hints := lines("PROXIES"), lines("SESSION"), lines("HINTS")
	if len(proxies) == 0 {
		fmt.Println("PROXIES is empty")
		os.Exit(2)
	}
	w := &world{start: time.Now(), errors: map[string]int{}}
	var atWork, all sync.WaitGroup
	atWork.Add(clients)
	for n := range clients {
		all.Go(func() { w.client(proxies[n%len(proxies)], session, hints, &atWork) })
	}
	atWork.Wait()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	w.stop.Store(true)
	all.Wait()

	end := w.now()
	for index := range w.operations {
		if w.operations[index].Return < 0 {
			w.operations[index].Return = end
		}
	}
	for text, count := range w.errors {
		fmt.Printf("error %d times: %s\n", count, text)
	}
	history := w.operations
	if os.Getenv("RULE") == "recent" {
		history = recent(history)
	}
	registersOf := model.Partition(history)
	fmt.Printf("%d operations on %d registers, %d of unknown outcome, %d refused\n",
		len(history), len(registersOf), w.unknown.Load(), w.refused.Load())
	odd, undecided := 0, 0
	for _, part := range registersOf {
		whole := model
		whole.Partition = nil
		switch porcupine.CheckOperationsTimeout(whole, part, checkLimit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			undecided++
			fmt.Printf("register %d could not be checked in time\n", part[0].Input.(call).register)
		case porcupine.Illegal:
			odd++
			if odd > 3 {
				continue
			}
			fmt.Printf("register %d is not linearizable:\n", part[0].Input.(call).register)
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
			for _, operation := range part {
				fmt.Printf("  client %3d  %10.3f ms to %10.3f ms  %s\n", operation.ClientId, float64(operation.Call)/1e6,
					float64(operation.Return)/1e6, model.DescribeOperation(operation.Input, operation.Output))
			}
		}
	}
	fmt.Printf("%d of %d registers are not linearizable\n", odd, len(registersOf))
	switch {
	case odd > 0:
		os.Exit(1)
	case undecided > 0:
		os.Exit(2)
	}
}
