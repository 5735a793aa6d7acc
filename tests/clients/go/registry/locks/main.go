// Go's consul/api on keys, sessions and locks, whose logic is the client's own: KV, Txn, Lock, Semaphore, watches. CONSUL_PORT says where;
// with the argument "lead" it takes part in an election until it is ended.
package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/consul/api"
)

const limit = 30 * time.Second

type check struct {
	name string
	work func(*api.Client) error
}

func client(namespace string) *api.Client {
	config := api.DefaultConfig()
	config.Address = "127.0.0.1:" + os.Getenv("CONSUL_PORT")
	config.Namespace = namespace
	c, err := api.NewClient(config)
	if err != nil {
		panic(err)
	}
	return c
}

func within(what string, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("in vain: %s", what)
	}
}

func keys(c *api.Client) error {
	kv := c.KV()
	value := bytes.Repeat([]byte{0, 255}, 1000)
	if _, err := kv.Put(&api.KVPair{Key: "go/a/b", Flags: 1<<63 + 7, Value: value}, nil); err != nil {
		return err
	}
	pair, meta, err := kv.Get("go/a/b", nil)
	if err != nil || pair == nil || !bytes.Equal(pair.Value, value) || pair.Flags != 1<<63+7 {
		return fmt.Errorf("get: %v %v", pair, err)
	}
	if meta.LastIndex != pair.ModifyIndex || pair.CreateIndex != pair.ModifyIndex {
		return fmt.Errorf("indexes: %+v %+v", pair, meta)
	}
	if other, _, err := client("other").KV().Get("go/a/b", nil); err != nil || other != nil {
		return fmt.Errorf("another namespace sees it: %v %v", other, err)
	}
	created := pair.CreateIndex
	pair.Value = []byte("x")
	if ok, _, err := kv.CAS(pair, nil); err != nil || !ok {
		return fmt.Errorf("cas: %v %v", ok, err)
	}
	if ok, _, err := kv.CAS(pair, nil); err != nil || ok {
		return fmt.Errorf("cas with an old index: %v %v", ok, err)
	}
	if ok, _, err := kv.DeleteCAS(pair, nil); err != nil || ok {
		return fmt.Errorf("delete with an old index: %v %v", ok, err)
	}
	pair, _, err = kv.Get("go/a/b", nil)
	if err != nil || pair.CreateIndex != created || pair.ModifyIndex <= created || string(pair.Value) != "x" {
		return fmt.Errorf("after cas: %+v %v", pair, err)
	}
	for _, key := range []string{"go/a/c", "go/d/", "go/é"} {
		if _, err := kv.Put(&api.KVPair{Key: key}, nil); err != nil {
			return err
		}
	}
	list, _, err := kv.Keys("go/", "/", nil)
	if err != nil || fmt.Sprint(list) != "[go/a/ go/d/ go/é]" {
		return fmt.Errorf("keys: %v %v", list, err)
	}
	pairs, _, err := kv.List("go/", nil)
	if err != nil || len(pairs) != 4 {
		return fmt.Errorf("list: %v %v", pairs, err)
	}
	if _, err := kv.DeleteTree("go/a", nil); err != nil {
		return err
	}
	if pairs, _, err = kv.List("go/", nil); err != nil || len(pairs) != 2 {
		return fmt.Errorf("after the tree is deleted: %v %v", pairs, err)
	}
	if pairs, _, err = kv.List("nothing/", nil); err != nil || len(pairs) != 0 {
		return fmt.Errorf("nothing: %v %v", pairs, err)
	}
	return nil
}

// A watch on a key and one on a prefix wake by a change of it, and by none elsewhere.
func watches(c *api.Client) error {
	kv := c.KV()
	for _, subject := range []string{"watched/key", "watched/"} {
		read := func(q *api.QueryOptions) (int, uint64, error) {
			if subject == "watched/" {
				pairs, meta, err := kv.List(subject, q)
				if err != nil {
					return 0, 0, err
				}
				return len(pairs), meta.LastIndex, nil
			}
			pair, meta, err := kv.Get(subject, q)
			if err != nil {
				return 0, 0, err
			}
			if pair == nil {
				return 0, meta.LastIndex, nil
			}
			return 1, meta.LastIndex, nil
		}
		n, index, err := read(nil)
		if err != nil || n != 0 || index == 0 {
			return fmt.Errorf("%s: %d %d %v", subject, n, index, err)
		}
		woken := make(chan error, 1)
		go func() {
			found, after, err := read(&api.QueryOptions{WaitIndex: index, WaitTime: limit})
			if err == nil && (found != 1 || after <= index) {
				err = fmt.Errorf("%s: woken by nothing: %d %d after %d", subject, found, after, index)
			}
			woken <- err
		}()
		if _, err := kv.Put(&api.KVPair{Key: "elsewhere"}, nil); err != nil {
			return err
		}
		if _, err := kv.Put(&api.KVPair{Key: "watched/key", Value: []byte(subject)}, nil); err != nil {
			return err
		}
		if err := within("the change of "+subject, woken); err != nil {
			return err
		}
		n, index, err = read(nil)
		if err != nil || n != 1 {
			return err
		}
		go func() {
			found, after, err := read(&api.QueryOptions{WaitIndex: index, WaitTime: limit})
			if err == nil && (found != 0 || after <= index) {
				err = fmt.Errorf("%s: deleted: %d %d after %d", subject, found, after, index)
			}
			woken <- err
		}()
		if _, err := kv.Delete("watched/key", nil); err != nil {
			return err
		}
		if err := within("the end of "+subject, woken); err != nil {
			return err
		}
	}
	return nil
}

func transactions(c *api.Client) error {
	ops := api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVSet, Key: "txn/a", Value: []byte("1"), Flags: 3}},
		{KV: &api.KVTxnOp{Verb: api.KVSet, Key: "txn/b", Value: []byte("2")}},
		{KV: &api.KVTxnOp{Verb: api.KVGetTree, Key: "txn/"}},
	}
	ok, answer, _, err := c.Txn().Txn(ops, nil)
	if err != nil || !ok || len(answer.Results) != 4 || string(answer.Results[3].KV.Value) != "2" {
		return fmt.Errorf("%v %+v %v", ok, answer, err)
	}
	index := answer.Results[0].KV.ModifyIndex
	if answer.Results[1].KV.ModifyIndex != index || answer.Results[0].KV.Value != nil {
		return fmt.Errorf("results: %+v", answer.Results)
	}
	ops = api.TxnOps{
		{KV: &api.KVTxnOp{Verb: api.KVCheckIndex, Key: "txn/a", Index: index}},
		{KV: &api.KVTxnOp{Verb: api.KVDelete, Key: "txn/a"}},
		{KV: &api.KVTxnOp{Verb: api.KVCAS, Key: "txn/b", Index: index + 1}},
	}
	ok, answer, _, err = c.Txn().Txn(ops, nil)
	if err != nil || ok || len(answer.Errors) != 1 || answer.Errors[0].OpIndex != 2 {
		return fmt.Errorf("a stale one: %v %+v %v", ok, answer, err)
	}
	if pair, _, err := c.KV().Get("txn/a", nil); err != nil || pair == nil {
		return fmt.Errorf("half of it was done: %v %v", pair, err)
	}
	return nil
}

func sessions(c *api.Client) error {
	id, _, err := c.Session().Create(&api.SessionEntry{Name: "of go", TTL: "10s", Behavior: api.SessionBehaviorDelete}, nil)
	if err != nil {
		return err
	}
	info, _, err := c.Session().Info(id, nil)
	if err != nil || info == nil || info.Name != "of go" || info.LockDelay != 15*time.Second || info.TTL != "10s" {
		return fmt.Errorf("info: %+v %v", info, err)
	}
	list, _, err := c.Session().List(nil)
	if err != nil || len(list) == 0 {
		return fmt.Errorf("list: %v %v", list, err)
	}
	if list, _, err = client("other").Session().List(nil); err != nil || len(list) != 0 {
		return fmt.Errorf("another namespace sees it: %v %v", list, err)
	}
	if of, _, err := c.Session().Node(info.Node, nil); err != nil || len(of) == 0 {
		return fmt.Errorf("of the node: %v %v", of, err)
	}
	if entry, _, err := c.Session().Renew(id, nil); err != nil || entry == nil {
		return fmt.Errorf("renew: %v %v", entry, err)
	}
	if ok, _, err := c.KV().Acquire(&api.KVPair{Key: "held", Session: id}, nil); err != nil || !ok {
		return fmt.Errorf("acquire: %v %v", ok, err)
	}
	if _, err := c.Session().Destroy(id, nil); err != nil {
		return err
	}
	if pair, _, err := c.KV().Get("held", nil); err != nil || pair != nil {
		return fmt.Errorf("it outlives its session: %v %v", pair, err)
	}
	if entry, _, err := c.Session().Renew(id, nil); err != nil || entry != nil {
		return fmt.Errorf("renewed though it has ended: %v %v", entry, err)
	}
	if _, _, err := c.Session().Create(&api.SessionEntry{TTL: "1ms"}, nil); err == nil {
		return fmt.Errorf("a session of 1ms")
	}
	return nil
}

func lock(c *api.Client, key string) (*api.Lock, error) {
	return c.LockOpts(&api.LockOptions{Key: key, SessionTTL: "10s", LockWaitTime: 5 * time.Second})
}

func locks(c *api.Client) error {
	one, err := lock(c, "locks/a")
	if err != nil {
		return err
	}
	two, err := lock(client(""), "locks/a")
	if err != nil {
		return err
	}
	lost, err := one.Lock(nil)
	if err != nil || lost == nil {
		return fmt.Errorf("lock: %v %v", lost, err)
	}
	got := make(chan error, 1)
	go func() {
		lost, err := two.Lock(nil)
		if err == nil && lost == nil {
			err = fmt.Errorf("no lock")
		}
		got <- err
	}()
	select {
	case err := <-got:
		return fmt.Errorf("two hold it: %v", err)
	case <-lost:
		return fmt.Errorf("lost it")
	case <-time.After(500 * time.Millisecond):
	}
	if err := one.Unlock(); err != nil {
		return err
	}
	if err := within("the second one's turn", got); err != nil {
		return err
	}
	if err := one.Destroy(); err != api.ErrLockInUse {
		return fmt.Errorf("destroyed while it is used: %v", err)
	}
	if err := two.Unlock(); err != nil {
		return err
	}
	return two.Destroy()
}

// Whoever has the lock hears that somebody ended the session.
func loss(c *api.Client) error {
	one, err := lock(c, "locks/b")
	if err != nil {
		return err
	}
	lost, err := one.Lock(nil)
	if err != nil {
		return err
	}
	pair, _, err := c.KV().Get("locks/b", nil)
	if err != nil || pair.Session == "" || pair.LockIndex != 1 {
		return fmt.Errorf("%+v %v", pair, err)
	}
	if _, err := c.Session().Destroy(pair.Session, nil); err != nil {
		return err
	}
	select {
	case <-lost:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("nobody told it")
	}
}

func semaphores(c *api.Client) error {
	var held []*api.Semaphore
	for n := 0; n < 2; n++ {
		s, err := c.SemaphorePrefix("semaphore", 2)
		if err != nil {
			return err
		}
		if lost, err := s.Acquire(nil); err != nil || lost == nil {
			return fmt.Errorf("acquire: %v %v", lost, err)
		}
		held = append(held, s)
	}
	third, err := c.SemaphoreOpts(&api.SemaphoreOptions{
		Prefix: "semaphore", Limit: 2, SemaphoreTryOnce: true, SemaphoreWaitTime: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	if lost, err := third.Acquire(nil); err != nil || lost != nil {
		return fmt.Errorf("a third one: %v %v", lost, err)
	}
	for _, s := range held {
		if err := s.Release(); err != nil {
			return err
		}
	}
	if lost, err := third.Acquire(nil); err != nil || lost == nil {
		return fmt.Errorf("released: %v %v", lost, err)
	}
	return third.Release()
}

// Takes part in an election, and says when it leads; ended, it gives nothing back.
func lead() {
	for {
		lock, err := client("").LockOpts(&api.LockOptions{
			Key: "election/leader", Value: []byte(os.Args[2]), SessionTTL: "2s", LockDelay: time.Millisecond,
			MonitorRetries: 20, MonitorRetryTime: 200 * time.Millisecond,
		})
		if err != nil {
			panic(err)
		}
		lost, err := lock.Lock(nil)
		if err != nil || lost == nil {
			fmt.Println("again", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		fmt.Println("leads", os.Args[2])
		<-lost
		fmt.Println("lost", os.Args[2])
		_ = lock.Unlock()
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "lead" {
		lead()
	}
	failed := 0
	checks := []check{
		{"keys", keys}, {"watches", watches}, {"transactions", transactions}, {"sessions", sessions},
		{"a lock", locks}, {"the loss of a lock", loss}, {"a semaphore", semaphores},
	}
	for n, check := range checks {
		if err := check.work(client("")); err != nil {
			failed++
			fmt.Printf("not ok %d - %s: %v\n", n+1, check.name, err)
		} else {
			fmt.Printf("ok %d - %s\n", n+1, check.name)
		}
	}
	fmt.Printf("1..%d\n", len(checks))
	if failed > 0 {
		os.Exit(1)
	}
}
