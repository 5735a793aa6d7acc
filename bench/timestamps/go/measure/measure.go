// Package measure counts the timestamps that callers get, as ../../src/main.rs does for the clients in Rust.
package measure

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Source is a client of PD. Next gives the next timestamp.
type Source interface {
	Next(ctx context.Context) (uint64, error)
}

// The command line is `PROGRAM PD CALLERS SECONDS BUSY`.
const usage = "PD CALLERS SECONDS BUSY"

// Before it counts, callers have asked for so long.
const warmUp = 500 * time.Millisecond

// Main reads the command line, opens the client, runs the callers and prints a line of JSON.
func Main(open func(ctx context.Context, pd string) (Source, error)) {
	if err := run(open); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}

func run(open func(ctx context.Context, pd string) (Source, error)) error {
	if len(os.Args) != 5 {
		return fmt.Errorf("usage: %s", usage)
	}
	numbers := make([]int, 3)
	for n, word := range os.Args[2:] {
		var err error
		if numbers[n], err = strconv.Atoi(word); err != nil {
			return fmt.Errorf("usage: %s: %w", usage, err)
		}
	}
	callers, seconds, busy := numbers[0], time.Duration(numbers[1])*time.Second, numbers[2]
	ctx := context.Background()
	source, err := open(ctx, os.Args[1])
	if err != nil {
		return err
	}
	var counting, stop atomic.Bool
	var spun atomic.Int64
	// Neighbours of the same runtime, as the other work of a service would be: they calculate all the time.
	var neighbours sync.WaitGroup
	for range busy {
		neighbours.Add(1)
		go func() {
			defer neighbours.Done()
			spun.Add(spin(&counting, &stop))
		}()
	}
	took := make([][]uint32, callers)
	failed := make([]error, callers)
	var running sync.WaitGroup
	for n := range took {
		running.Add(1)
		go func(n int) {
			defer running.Done()
			took[n], failed[n] = call(ctx, source, &counting, &stop)
		}(n)
	}
	time.Sleep(warmUp)
	before, began := cpu(), time.Now()
	counting.Store(true)
	time.Sleep(seconds)
	counting.Store(false)
	elapsed, used := time.Since(began), cpu()-before
	stop.Store(true)
	running.Wait()
	neighbours.Wait()
	var all []uint32
	for n := range took {
		if failed[n] != nil {
			return failed[n]
		}
		all = append(all, took[n]...)
	}
	slices.Sort(all)
	at := func(share float64) uint32 {
		if len(all) == 0 {
			return 0
		}
		return all[int(float64(len(all)-1)*share)]
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"timestamps": len(all), "seconds": elapsed.Seconds(), "p50_us": at(0.5), "p99_us": at(0.99),
		// Without the neighbours' own.
		"cpu": (used - time.Duration(spun.Load())).Seconds(), "batches": 0,
	})
}

// call asks again and again; it returns how long each call took, in microseconds.
func call(ctx context.Context, source Source, counting, stop *atomic.Bool) ([]uint32, error) {
	var took []uint32
	var last uint64
	for !stop.Load() {
		began := time.Now()
		at, err := source.Next(ctx)
		if err != nil {
			return nil, err
		}
		if at <= last {
			return nil, fmt.Errorf("the timestamp %d after %d", at, last)
		}
		last = at
		if counting.Load() {
			took = append(took, uint32(time.Since(began).Microseconds()))
		}
	}
	return took, nil
}

// spin calculates until stop, on a thread of its own; it returns the nanoseconds of CPU of that while counting.
func spin(counting, stop *atomic.Bool) int64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var sum atomic.Uint64
	wait := func(until bool) {
		for counting.Load() != until && !stop.Load() {
			for n := uint64(0); n < 1<<12; n++ {
				sum.Add(n)
			}
		}
	}
	wait(true)
	before := used(rusageThread)
	wait(false)
	return int64(used(rusageThread) - before)
}

// Linux: of the calling thread.
const rusageThread = 1

// cpu is what the process has used of the CPU.
func cpu() time.Duration { return used(syscall.RUSAGE_SELF) }

func used(who int) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(who, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
