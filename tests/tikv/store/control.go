package main

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// control stands between gRPC and the store: it counts unary calls and spoils those that it was told to spoil.
//
//	GET /            {"calls": {"KvGet": 7, …}, "regions": 3, "faults": 0}
//	GET /split?key=K splits the region that holds K, which becomes the first key of the right part; K as it is, not encoded
//	GET /fault?call=KvCommit&mode=MODE&count=N[&ms=M][&skip=S]
//	                 of the calls after the next S, spoils N: MODE is "request" (not carried out, Unavailable), "reply" (carried
//	                 out, Unavailable), "delay" (carried out M ms later), "epoch" (the store finds the region's epoch stale),
//	                 "busy" (the store says it is busy), "leader" (the store says it does not lead the region), "undetermined"
//	                 (carried out, and the answer is the region error undetermined_result), "newer" (the same with a region error
//	                 that is newer than any client), "abort" (carried out, and the answer says that the transaction is given up)
//	GET /clear       forgets faults and counts
type control struct {
	mu      sync.Mutex
	calls   map[string]uint64
	faults  []*fault
	regions *regions
}

type fault struct {
	call, mode  string
	skip, count int
	delay       time.Duration
}

// take returns the mode of a fault that meets this call.
func (c *control) take(call string) (string, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[call]++
	for _, f := range c.faults {
		if f.call != call || f.count == 0 {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		f.count--
		return f.mode, f.delay
	}
	return "", 0
}

// answers in place of the store's, for what its version of the protocol has no names for. A region error is field 1 of every answer, an
// error of the key field 2 of the answer to a commit.
var answers = map[string][]byte{
	"undetermined": {1<<3 | 2, 3, 22<<3&0x7f | 2 | 0x80, 22 >> 4, 0},
	"newer":        {1<<3 | 2, 3, 99<<3&0x7f | 2 | 0x80, 99 >> 4, 0},
	"abort":        {2<<3 | 2, 5, 3<<3 | 2, 3, 'r', 'i', 'g'},
}

// raw is a message that is encoded already.
type raw struct{ bytes []byte }

func (r *raw) Reset()                   {}
func (r *raw) String() string           { return "raw" }
func (r *raw) ProtoMessage()            {}
func (r *raw) Marshal() ([]byte, error) { return r.bytes, nil }

func (c *control) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	mode, delay := c.take(path.Base(info.FullMethod))
	switch mode {
	case "request":
		return nil, status.Error(codes.Unavailable, "the rig lost the request")
	case "delay":
		time.Sleep(delay)
	case "epoch", "busy", "leader":
		if r, ok := request.(interface{ GetContext() *kvrpcpb.Context }); ok && r.GetContext() != nil {
			switch mode {
			case "epoch":
				r.GetContext().RegionEpoch.Version = math.MaxUint64
			case "busy":
				r.GetContext().RegionId = busyRegion
			case "leader":
				r.GetContext().RegionId = leaderlessRegion
			}
		}
	}
	response, err := handle(ctx, request)
	if mode == "reply" {
		return nil, status.Error(codes.Unavailable, "the rig lost the reply")
	}
	if answer, ok := answers[mode]; ok && err == nil {
		return &raw{answer}, nil
	}
	// TiKV says so, unistore leaves the value empty.
	if got, ok := response.(*kvrpcpb.GetResponse); ok && err == nil && got.Error == nil && got.RegionError == nil && len(got.Value) == 0 {
		got.NotFound = true
	}
	return response, err
}

func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := c.order(r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left := 0
	for _, f := range c.faults {
		left += f.count
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"calls": c.calls, "regions": len(c.regions.all()), "faults": left})
}

func (c *control) order(r *http.Request) error {
	q := r.URL.Query()
	number := func(name string) int {
		n, err := strconv.Atoi(q.Get(name))
		if err != nil {
			return 0
		}
		return n
	}
	switch r.URL.Path {
	case "/":
		return nil
	case "/split":
		return c.regions.split([]byte(q.Get("key")))
	case "/fault":
		c.mu.Lock()
		defer c.mu.Unlock()
		delay := time.Duration(number("ms")) * time.Millisecond
		c.faults = append(c.faults, &fault{q.Get("call"), q.Get("mode"), number("skip"), number("count"), delay})
		return nil
	case "/clear":
		c.mu.Lock()
		defer c.mu.Unlock()
		c.faults, c.calls = nil, map[string]uint64{}
		return nil
	}
	return errors.New("unknown: " + r.URL.Path)
}
