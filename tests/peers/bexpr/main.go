// Command bexpr evaluates the filters of a table with Consul's own library, over entries in JSON, and writes the table with the results:
// the oracle of crates/registry/src/api/consul/filter.rs. Run it after the table or the entries have changed:
//
//	cd tests/peers/bexpr && go run . ../../../crates/registry/src/api/consul/filter
//
// A line of the table is TYPE, FILTER and RESULT, separated by tabs. RESULT is the numbers of the entries that fit, or "error".
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/hashicorp/go-bexpr"
)

// The fields that Consul lets filters look at, by its documentation of each endpoint.

type address struct {
	Address string
	Port    int
}

type weights struct {
	Passing int
	Warning int
}

type locality struct {
	Region string
	Zone   string
}

type mode struct {
	Mode string
}

type upstream struct {
	DestinationType  string
	DestinationName  string
	LocalBindAddress string
	LocalBindPort    int
	MeshGateway      mode
}

type proxy struct {
	DestinationServiceName string
	DestinationServiceID   string
	LocalServiceAddress    string
	LocalServicePort       int
	Upstreams              []upstream
	MeshGateway            mode
}

type connect struct {
	Native bool
}

type node struct {
	ID              string
	Node            string
	Address         string
	Datacenter      string
	TaggedAddresses map[string]string
	Meta            map[string]string
}

type service struct {
	Kind              string
	ID                string
	Service           string
	Tags              []string
	Address           string
	TaggedAddresses   map[string]address
	Meta              map[string]string
	Port              int
	Weights           weights
	EnableTagOverride bool
	Proxy             proxy
	Connect           connect
	Locality          locality
}

type check struct {
	Node        string
	CheckID     string
	Name        string
	Status      string
	Notes       string
	Output      string
	ServiceID   string
	ServiceName string
	ServiceTags []string
	Type        string
}

type entry struct {
	Node    node
	Service service
	Checks  []check
}

type catalog struct {
	ID                       string
	Node                     string
	Address                  string
	Datacenter               string
	TaggedAddresses          map[string]string
	NodeMeta                 map[string]string
	ServiceKind              string
	ServiceID                string
	ServiceName              string
	ServiceTags              []string
	ServiceAddress           string
	ServiceTaggedAddresses   map[string]address
	ServiceWeights           weights
	ServiceMeta              map[string]string
	ServicePort              int
	ServiceEnableTagOverride bool
	ServiceProxy             proxy
	ServiceConnect           connect
}

var types = map[string]reflect.Type{
	"node":    reflect.TypeOf(node{}),
	"service": reflect.TypeOf(service{}),
	"check":   reflect.TypeOf(check{}),
	"entry":   reflect.TypeOf(entry{}),
	"catalog": reflect.TypeOf(catalog{}),
}

// evaluate returns the numbers of the entries that fit; an error of the library is a result, too.
func evaluate(kind reflect.Type, filter string, entries []json.RawMessage) string {
	evaluator, err := bexpr.CreateEvaluatorForType(filter, nil, kind)
	if err != nil {
		return "error"
	}
	fitting := []string{}
	for number, text := range entries {
		one := reflect.New(kind)
		if err := json.Unmarshal(text, one.Interface()); err != nil {
			log.Fatalf("entry %d: %v", number, err)
		}
		fits, err := evaluator.Evaluate(one.Elem().Interface())
		if err != nil {
			return "error"
		}
		if fits {
			fitting = append(fitting, strconv.Itoa(number))
		}
	}
	return strings.Join(fitting, ",")
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: bexpr DIRECTORY")
	}
	text, err := os.ReadFile(filepath.Join(os.Args[1], "entries.json"))
	if err != nil {
		log.Fatal(err)
	}
	entries := map[string][]json.RawMessage{}
	if err := json.Unmarshal(text, &entries); err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(os.Args[1], "table.txt")
	table, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(string(table)), "\n") {
		fields := strings.Split(line, "\t")
		kind, ok := types[fields[0]]
		if !ok || len(fields) < 2 {
			log.Fatalf("line %q: expected TYPE, FILTER and RESULT", line)
		}
		fmt.Fprintf(&out, "%s\t%s\t%s\n", fields[0], fields[1], evaluate(kind, fields[1], entries[fields[0]]))
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		log.Fatal(err)
	}
}
