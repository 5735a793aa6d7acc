// Program store runs PingCAP's unistore, TiKV's transaction API in Go, as the one store of a PD on the loopback, for the
// tests of the TiKV store. It prints "ready" once it serves. Its control port (HTTP) counts calls, injects faults and
// splits regions: see control.go.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pingcap/badger"
	"github.com/pingcap/kvproto/pkg/tikvpb"
	"github.com/pingcap/log"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/config"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/lockstore"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/pd"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/tikv"
	"github.com/pingcap/tidb/pkg/store/mockstore/unistore/tikv/mvcc"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

type flags struct {
	pd, listen, control, dir, ca, cert, key string
}

func main() {
	var f flags
	flag.StringVar(&f.pd, "pd", "", "host:port,… of PD's members, required")
	flag.StringVar(&f.listen, "listen", "", "host:port of TiKV's gRPC API, required")
	flag.StringVar(&f.control, "control", "", "host:port of the control port, required")
	flag.StringVar(&f.dir, "dir", "", "data directory, required")
	flag.StringVar(&f.ca, "ca", "", "PEM file: who signs clients' certificates; with it the API speaks TLS only")
	flag.StringVar(&f.cert, "cert", "", "PEM file: certificate")
	flag.StringVar(&f.key, "key", "", "PEM file: key of the certificate")
	flag.Parse()
	if f.pd == "" || f.listen == "" || f.control == "" || f.dir == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(f); err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
}

func run(f flags) error {
	log.SetLevel(zapcore.WarnLevel)
	data := filepath.Join(f.dir, "kv")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	placement, err := pd.NewClient(strings.Split(f.pd, ","), "store")
	if err != nil {
		return err
	}
	physical, logical, err := placement.GetTS(context.Background())
	if err != nil {
		return err
	}

	safe := &tikv.SafePoint{}
	options := badger.DefaultOptions
	options.Dir, options.ValueDir = data, data
	options.ManagedTxns = true
	options.CompactionFilterFactory = safe.CreateCompactionFilter
	db, err := badger.Open(options)
	if err != nil {
		return err
	}
	locks := lockstore.NewMemStore(8 << 20)
	if err := restoreLocks(filepath.Join(f.dir, "lock_store"), locks); err != nil {
		return err
	}
	bundle := &mvcc.DBBundle{DB: db, LockStore: locks, StateTS: uint64(physical)<<18 | uint64(logical)}

	conf := config.DefaultConf
	conf.Server.StoreAddr = f.listen
	conf.Server.Raft = false
	conf.Engine.DBPath = f.dir
	regions, err := openRegions(placement, f.listen, filepath.Join(f.dir, "regions.json"))
	if err != nil {
		return err
	}
	store := tikv.NewMVCCStore(&conf, bundle, f.dir, safe, tikv.NewDBWriter(bundle), placement)
	store.DeadlockDetectSvr.ChangeRole(tikv.Leader)
	store.StartDeadlockDetection(false)
	api := tikv.NewServer(regions, store, tikv.NewStandAlongInnerServer(bundle))

	control := &control{calls: map[string]uint64{}, regions: regions}
	serverOptions := []grpc.ServerOption{grpc.UnaryInterceptor(control.intercept)}
	if f.ca != "" {
		security, err := mutual(f)
		if err != nil {
			return err
		}
		serverOptions = append(serverOptions, grpc.Creds(security))
	}
	server := grpc.NewServer(serverOptions...)
	tikvpb.RegisterTikvServer(server, api)
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	controls, err := net.Listen("tcp", f.control)
	if err != nil {
		return err
	}
	go func() { _ = http.Serve(controls, control) }()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	fmt.Println("ready")
	err = server.Serve(listener)
	api.Stop() // unistore has its locks in memory alone, and writes them to lock_store here
	return err
}

// restoreLocks reads what an orderly stop has written: pairs of key and value, each pair behind its two lengths.
func restoreLocks(file string, locks *lockstore.MemStore) error {
	rest, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for len(rest) > 0 {
		if len(rest) < 8 {
			return errors.New(file + " ends within a length")
		}
		key, value := uint64(binary.LittleEndian.Uint32(rest)), uint64(binary.LittleEndian.Uint32(rest[4:]))
		rest = rest[8:]
		if uint64(len(rest)) < key+value {
			return errors.New(file + " ends within a lock")
		}
		locks.Put(rest[:key], rest[key:key+value])
		rest = rest[key+value:]
	}
	return os.Remove(file)
}

func mutual(f flags) (credentials.TransportCredentials, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + f.ca)
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    clients,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}), nil
}
