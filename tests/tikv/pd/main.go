// Program pd runs one member of a real PD (github.com/tikv/pd, as a library) on the loopback, for the tests of the TiKV
// store. It prints "ready" once the member serves.
//
// The etcd inside this PD registers a path that the ServeMux of Go 1.22 refuses; the directive below brings the old one back.
//
//go:debug httpmuxgo121=1
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/pingcap/log"
	"github.com/spf13/pflag"
	"github.com/tikv/pd/pkg/schedule/schedulers"
	"github.com/tikv/pd/pkg/utils/logutil"
	"github.com/tikv/pd/pkg/versioninfo"
	"github.com/tikv/pd/server"
	"github.com/tikv/pd/server/api"
	"github.com/tikv/pd/server/apiv2"
	"github.com/tikv/pd/server/config"
)

type flags struct {
	name, client, advertise, peer, cluster, secure, dir, ca, cert, key string
}

func main() {
	var f flags
	flag.StringVar(&f.name, "name", "pd1", "name of the member")
	flag.StringVar(&f.client, "client", "", "host:port for clients, required")
	flag.StringVar(&f.advertise, "advertise", "", "host:port that clients are told, if another one: of a forwarder in front")
	flag.StringVar(&f.peer, "peer", "", "host:port for the other members, required")
	flag.StringVar(&f.cluster, "cluster", "", "NAME=http://HOST:PORT,… of all members; empty: this one alone")
	flag.StringVar(&f.dir, "dir", "", "data directory, required")
	flag.StringVar(&f.secure, "secure", "", "host:port for clients over TLS; needs -ca, -cert and -key")
	flag.StringVar(&f.ca, "ca", "", "PEM file: who signs clients' certificates")
	flag.StringVar(&f.cert, "cert", "", "PEM file: certificate")
	flag.StringVar(&f.key, "key", "", "PEM file: key of the certificate")
	flag.Parse()
	if f.client == "" || f.peer == "" || f.dir == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(f); err != nil {
		fmt.Fprintln(os.Stderr, "pd:", err)
		os.Exit(1)
	}
}

func run(f flags) error {
	// A store says its version when it joins, and PD refuses one that is too new.
	versioninfo.PDReleaseVersion = "v8.1.0"
	schedulers.Register()

	cfg := config.NewConfig()
	cfg.Name, cfg.DataDir = f.name, f.dir
	cfg.ClientUrls, cfg.PeerUrls = "http://"+f.client, "http://"+f.peer
	cfg.AdvertiseClientUrls = cfg.ClientUrls
	if f.advertise != "" {
		cfg.AdvertiseClientUrls = "http://" + f.advertise
	}
	if f.secure != "" {
		cfg.AdvertiseClientUrls += ",https://" + f.secure
	}
	if f.cluster != "" {
		cfg.InitialCluster = f.cluster
	}
	cfg.Replication.MaxReplicas = 1
	cfg.Log.Level = "warn"
	if err := cfg.Parse(pflag.NewFlagSet("pd", pflag.ContinueOnError)); err != nil {
		return err
	}
	if err := logutil.SetupLogger(cfg.Log, &cfg.Logger, &cfg.LogProps, cfg.Security.RedactInfoLog); err != nil {
		return err
	}
	log.ReplaceGlobals(cfg.Logger, cfg.LogProps)

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	member, err := server.CreateServer(ctx, cfg, nil, api.NewHandler, apiv2.NewV2Handler)
	if err != nil {
		return err
	}
	if err := member.Run(); err != nil {
		return err
	}
	defer member.Close()
	if f.secure != "" {
		if err := secure(f); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	<-ctx.Done()
	return nil
}

// secure accepts TLS at f.secure, from clients with a certificate, and passes the plaintext on to f.client: the store of
// this rig speaks to PD without TLS, so PD itself has to stay without.
func secure(f flags) error {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(pem) {
		return errors.New("no certificate in " + f.ca)
	}
	listener, err := tls.Listen("tcp", f.secure, &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    clients,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		NextProtos:   []string{"h2"},
	})
	if err != nil {
		return err
	}
	go func() {
		for {
			outside, err := listener.Accept()
			if err != nil {
				return
			}
			go forward(outside, f.client)
		}
	}()
	return nil
}

func forward(outside net.Conn, to string) {
	defer outside.Close()
	inside, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer inside.Close()
	done := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		done <- struct{}{}
	}
	go pass(inside, outside)
	go pass(outside, inside)
	<-done
}
