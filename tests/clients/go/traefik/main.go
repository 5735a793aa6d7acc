// Traefik's own provider of Consul's catalog, as Traefik runs it: CONSUL_PORT, CONSUL_NAMESPACE and CONSUL_TOKEN say what it follows. For each
// configuration that it makes it prints one line of JSON: every router's rule, with the addresses behind it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/provider/consulcatalog"
	"github.com/traefik/traefik/v3/pkg/safe"
)

func main() {
	var builder consulcatalog.ProviderBuilder
	builder.SetDefaults()
	builder.Endpoint.Scheme = "http"
	builder.Endpoint.Address = "127.0.0.1:" + os.Getenv("CONSUL_PORT")
	builder.Endpoint.Token = os.Getenv("CONSUL_TOKEN")
	builder.Namespaces = []string{os.Getenv("CONSUL_NAMESPACE")}
	builder.Watch = true
	provider := builder.BuildProviders()[0]
	if err := provider.Init(); err != nil {
		panic(err)
	}
	made := make(chan dynamic.Message)
	if err := provider.Provide(made, safe.NewPool(context.Background())); err != nil {
		panic(err)
	}
	for message := range made {
		lines := []string{}
		for _, router := range message.Configuration.HTTP.Routers {
			urls := []string{}
			if service, is := message.Configuration.HTTP.Services[router.Service]; is && service.LoadBalancer != nil {
				for _, server := range service.LoadBalancer.Servers {
					urls = append(urls, server.URL)
				}
			}
			sort.Strings(urls)
			lines = append(lines, router.Rule+" "+strings.Join(urls, " "))
		}
		sort.Strings(lines)
		text, err := json.Marshal(lines)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}
