// Prometheus' own consul_sd, as Prometheus runs it: CONSUL_PORT, CONSUL_NAMESPACE and CONSUL_TOKEN say what it follows. After each change
// it prints one line of JSON: every target, with the labels that a relabelling could use.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/consul"
	"github.com/prometheus/prometheus/discovery/targetgroup"
)

func main() {
	settings := consul.DefaultSDConfig
	settings.Server = "127.0.0.1:" + os.Getenv("CONSUL_PORT")
	settings.Namespace = os.Getenv("CONSUL_NAMESPACE")
	settings.Token = config.Secret(os.Getenv("CONSUL_TOKEN"))
	// How often it asks for the list of services at most, and tries again after an error.
	settings.RefreshInterval = model.Duration(time.Second)
	registry := prometheus.NewRegistry()
	refresh := discovery.NewRefreshMetrics(registry)
	metrics := settings.NewDiscovererMetrics(registry, refresh)
	if err := metrics.Register(); err != nil {
		panic(err)
	}
	followed, err := consul.NewDiscovery(&settings, log.NewLogfmtLogger(os.Stderr), metrics)
	if err != nil {
		panic(err)
	}
	updates := make(chan []*targetgroup.Group)
	go followed.Run(context.Background(), updates)
	// Of each source the group that came last, as Prometheus keeps them.
	groups := map[string]*targetgroup.Group{}
	for update := range updates {
		for _, group := range update {
			groups[group.Source] = group
		}
		lines := []string{}
		for _, group := range groups {
			for _, target := range group.Targets {
				label := func(name string) string {
					if value, is := target[model.LabelName(name)]; is {
						return string(value)
					}
					return string(group.Labels[model.LabelName(name)])
				}
				names := []string{"service", "node", "health", "tags", "metadata_rack", "service_metadata_color"}
				line := []string{label("__address__")}
				for _, name := range names {
					line = append(line, label("__meta_consul_"+name))
				}
				lines = append(lines, strings.Join(line, " "))
			}
		}
		sort.Strings(lines)
		text, err := json.Marshal(lines)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}
