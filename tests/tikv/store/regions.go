package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/pd"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/tikv"
	"github.com/pingcap/tidb/pkg/util/codec"
)

// Calls for these regions are answered with what a busy store, or one that does not lead the region, answers.
const (
	busyRegion       = math64 - 1
	leaderlessRegion = math64 - 2
	math64           = 1<<64 - 1
)

// regions is what the store has of its key space. It takes the place of unistore's own region manager, which reports a
// region to PD once, so that a PD that was started again never learns where regions are, and which splits nothing.
type regions struct {
	placement pd.Client
	file      string
	stop      chan struct{}
	latches   *latches

	mu    sync.RWMutex
	store *metapb.Store
	byID  map[uint64]*region
}

// kept is what is in the file.
type kept struct {
	Store   *metapb.Store
	Regions []*metapb.Region
}

func openRegions(placement pd.Client, address, file string) (*regions, error) {
	r := &regions{
		placement: placement,
		file:      file,
		stop:      make(chan struct{}),
		latches:   &latches{busy: map[uint64]bool{}},
		byID:      map[uint64]*region{},
	}
	r.latches.free = sync.NewCond(&r.latches.mu)
	ctx := context.Background()
	known, err := placement.IsBootstrapped(ctx)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	switch {
	case err == nil && known:
		var k kept
		if err := json.Unmarshal(text, &k); err != nil {
			return nil, err
		}
		r.store = k.Store
		for _, meta := range k.Regions {
			r.put(meta)
		}
	case errors.Is(err, os.ErrNotExist) && !known:
		if err := r.bootstrap(ctx, address); err != nil {
			return nil, err
		}
	case err == nil || errors.Is(err, os.ErrNotExist):
		return nil, errors.New("PD and the store are not of one age: start both with empty directories")
	default:
		return nil, err
	}
	r.store.Address = address
	if err := placement.PutStore(ctx, r.store); err != nil {
		return nil, err
	}
	if err := r.keep(); err != nil {
		return nil, err
	}
	go r.beat()
	return r, nil
}

// bootstrap makes a cluster of one store with one region, which is everything.
func (r *regions) bootstrap(ctx context.Context, address string) error {
	var ids []uint64
	for len(ids) < 3 {
		id, err := r.placement.AllocID(ctx)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	r.store = &metapb.Store{Id: ids[0], Address: address, Version: "8.1.0"}
	whole := &metapb.Region{
		Id:          ids[1],
		RegionEpoch: &metapb.RegionEpoch{ConfVer: 1, Version: 1},
		Peers:       []*metapb.Peer{{Id: ids[2], StoreId: ids[0]}},
	}
	if _, err := r.placement.Bootstrap(ctx, r.store, whole); err != nil {
		return err
	}
	r.put(whole)
	return nil
}

func (r *regions) put(meta *metapb.Region) {
	one := &region{meta: meta, first: plain(meta.StartKey), end: plain(meta.EndKey), latches: r.latches}
	if len(one.end) == 0 {
		one.end = tikv.InternalKeyPrefix
	}
	r.byID[meta.Id] = one
}

// plain decodes a key as PD knows it.
func plain(key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	_, decoded, err := codec.DecodeBytes(key, nil)
	if err != nil {
		return nil
	}
	return decoded
}

func (r *regions) all() []*metapb.Region {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var list []*metapb.Region
	for _, one := range r.byID {
		list = append(list, one.meta)
	}
	slices.SortFunc(list, func(a, b *metapb.Region) int { return bytes.Compare(a.StartKey, b.StartKey) })
	return list
}

func (r *regions) keep() error {
	text, err := json.Marshal(kept{r.store, r.all()})
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(r.file+".new", r.file)
}

// beat tells PD of all regions and of the store, again and again.
func (r *regions) beat() {
	for tick := 0; ; tick++ {
		list := r.all()
		for _, meta := range list {
			r.tell(meta)
		}
		if tick%10 == 0 {
			stats := &pdpb.StoreStats{StoreId: r.store.Id, Capacity: 1 << 40, Available: 1 << 39, RegionCount: uint32(len(list))}
			_ = r.placement.StoreHeartbeat(context.Background(), stats)
		}
		select {
		case <-r.stop:
			return
		case <-time.After(time.Second):
		}
	}
}

func (r *regions) tell(meta *metapb.Region) {
	r.placement.ReportRegion(&pdpb.RegionHeartbeatRequest{Region: meta, Leader: meta.Peers[0], Term: 6, ApproximateSize: 1})
}

// split makes key the first of a region. The right part keeps the id, as in TiKV.
func (r *regions) split(key []byte) error {
	left, err := r.placement.AllocID(context.Background())
	if err != nil {
		return err
	}
	peer, err := r.placement.AllocID(context.Background())
	if err != nil {
		return err
	}
	r.mu.Lock()
	var whole *region
	for _, one := range r.byID {
		if bytes.Compare(one.first, key) < 0 && bytes.Compare(key, one.end) < 0 {
			whole = one
		}
	}
	if whole == nil {
		r.mu.Unlock()
		return errors.New("a region begins there already")
	}
	epoch := &metapb.RegionEpoch{ConfVer: whole.meta.RegionEpoch.ConfVer, Version: whole.meta.RegionEpoch.Version + 1}
	middle := codec.EncodeBytes(nil, key)
	parts := []*metapb.Region{
		{Id: left, StartKey: whole.meta.StartKey, EndKey: middle, RegionEpoch: epoch, Peers: []*metapb.Peer{{Id: peer, StoreId: r.store.Id}}},
		{Id: whole.meta.Id, StartKey: middle, EndKey: whole.meta.EndKey, RegionEpoch: epoch, Peers: whole.meta.Peers},
	}
	for _, part := range parts {
		r.put(part)
	}
	r.mu.Unlock()
	for _, part := range parts {
		r.tell(part)
	}
	return r.keep()
}

// The methods of tikv.RegionManager.

func (r *regions) GetRegionFromCtx(call *kvrpcpb.Context) (tikv.RegionCtx, *errorpb.Error) {
	switch call.GetRegionId() {
	case busyRegion:
		return nil, &errorpb.Error{Message: "busy", ServerIsBusy: &errorpb.ServerIsBusy{Reason: "the rig says so"}}
	case leaderlessRegion:
		return nil, &errorpb.Error{Message: "not leader", NotLeader: &errorpb.NotLeader{}}
	}
	if _, _, err := r.GetStoreInfoFromCtx(call); err != nil {
		return nil, err
	}
	r.mu.RLock()
	one := r.byID[call.GetRegionId()]
	r.mu.RUnlock()
	if one == nil {
		return nil, &errorpb.Error{Message: "no such region", RegionNotFound: &errorpb.RegionNotFound{RegionId: call.GetRegionId()}}
	}
	asked, is := call.GetRegionEpoch(), one.meta.RegionEpoch
	if asked.GetVersion() != is.Version || asked.GetConfVer() != is.ConfVer {
		return nil, &errorpb.Error{Message: "stale", EpochNotMatch: &errorpb.EpochNotMatch{CurrentRegions: []*metapb.Region{one.meta}}}
	}
	return one, nil
}

func (r *regions) GetStoreInfoFromCtx(call *kvrpcpb.Context) (string, uint64, *errorpb.Error) {
	if asked := call.GetPeer().GetStoreId(); asked != 0 && asked != r.store.Id {
		return "", 0, &errorpb.Error{Message: "another store", StoreNotMatch: &errorpb.StoreNotMatch{RequestStoreId: asked, ActualStoreId: r.store.Id}}
	}
	return r.store.Address, r.store.Id, nil
}

func (r *regions) GetStoreIDByAddr(string) (uint64, error)      { return r.store.Id, nil }
func (r *regions) GetStoreAddrByStoreID(uint64) (string, error) { return r.store.Address, nil }

func (r *regions) SplitRegion(*kvrpcpb.SplitRegionRequest) *kvrpcpb.SplitRegionResponse {
	return &kvrpcpb.SplitRegionResponse{}
}

func (r *regions) Close() error {
	close(r.stop)
	return nil
}

// region is a tikv.RegionCtx.
type region struct {
	meta       *metapb.Region
	first, end []byte
	size       int64
	latches    *latches
}

func (r *region) Meta() *metapb.Region           { return r.meta }
func (r *region) RawStart() []byte               { return r.first }
func (r *region) RawEnd() []byte                 { return r.end }
func (r *region) Diff() *int64                   { return &r.size }
func (r *region) AcquireLatches(hashes []uint64) { r.latches.acquire(hashes) }
func (r *region) ReleaseLatches(hashes []uint64) { r.latches.release(hashes) }

// latches let one writer at a time have a key, by its hash. They belong to the store and not to a region, so that a split
// during a write changes nothing.
type latches struct {
	mu   sync.Mutex
	free *sync.Cond
	busy map[uint64]bool
}

func (l *latches) acquire(hashes []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for slices.ContainsFunc(hashes, func(hash uint64) bool { return l.busy[hash] }) {
		l.free.Wait()
	}
	for _, hash := range hashes {
		l.busy[hash] = true
	}
}

func (l *latches) release(hashes []uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, hash := range hashes {
		delete(l.busy, hash)
	}
	l.free.Broadcast()
}
