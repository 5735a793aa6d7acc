// Go's consul/api at its usual work: register, heartbeat, discover, watch, expire, deregister. CONSUL_PORT says where.
package main

import (
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/consul/api/watch"
)

const limit = 20 * time.Second

type check struct {
	name string
	work func(*api.Client) error
}

func until(what string, condition func() bool) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if condition() {
			return nil
		}
	}
	return fmt.Errorf("in vain: %s", what)
}

func passing(c *api.Client, name string) int {
	entries, _, err := c.Health().Service(name, "", true, nil)
	if err != nil {
		return -1
	}
	return len(entries)
}

func cycle(c *api.Client) error {
	name := fmt.Sprintf("go-%d", os.Getpid())
	service := &api.AgentServiceRegistration{
		ID: name + "-1", Name: name, Address: "10.0.0.1", Port: 80, Tags: []string{"a"}, Meta: map[string]string{"v": "1"},
		Weights: &api.AgentWeights{Passing: 2, Warning: 1},
		Check:   &api.AgentServiceCheck{TTL: "10s", DeregisterCriticalServiceAfter: "1m"},
	}
	if err := c.Agent().ServiceRegister(service); err != nil {
		return err
	}
	if n := passing(c, name); n != 0 {
		return fmt.Errorf("%d passing before the first report", n)
	}
	if err := c.Agent().UpdateTTL("service:"+name+"-1", "all is well", api.HealthPassing); err != nil {
		return err
	}
	entries, meta, err := c.Health().Service(name, "a", true, &api.QueryOptions{Filter: `Service.Meta.v == "1"`})
	if err != nil || len(entries) != 1 || entries[0].Service.Weights.Passing != 2 {
		return fmt.Errorf("discovery: %v %v", entries, err)
	}
	if meta.LastIndex == 0 || !meta.KnownLeader {
		return fmt.Errorf("headers: %+v", meta)
	}
	woken := make(chan int, 1)
	go func() {
		seen, _, err := c.Health().Service(name, "", false, &api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: limit})
		if err != nil {
			woken <- -1
			return
		}
		woken <- len(seen)
	}()
	second := &api.AgentServiceRegistration{ID: name + "-2", Name: name, Address: "10.0.0.2", Port: 80}
	if err := c.Agent().ServiceRegister(second); err != nil {
		return err
	}
	select {
	case n := <-woken:
		if n != 2 {
			return fmt.Errorf("woken with %d entries", n)
		}
	case <-time.After(limit):
		return fmt.Errorf("not woken")
	}
	services, _, err := c.Catalog().Services(nil)
	if err != nil || len(services[name]) != 1 {
		return fmt.Errorf("catalog: %v %v", services, err)
	}
	if nodes, _, err := c.Catalog().Service(name, "", nil); err != nil || len(nodes) != 2 {
		return fmt.Errorf("catalog service: %v %v", nodes, err)
	}
	for _, id := range []string{"-1", "-2"} {
		if err := c.Agent().ServiceDeregister(name + id); err != nil {
			return err
		}
	}
	return until("nothing is left", func() bool { return passing(c, name) == 0 })
}

func expiry(c *api.Client) error {
	name := fmt.Sprintf("go-silent-%d", os.Getpid())
	service := &api.AgentServiceRegistration{
		Name: name, Address: "h", Check: &api.AgentServiceCheck{TTL: "1s", Status: api.HealthPassing},
	}
	if err := c.Agent().ServiceRegister(service); err != nil {
		return err
	}
	if n := passing(c, name); n != 1 {
		return fmt.Errorf("%d passing", n)
	}
	return until("it expires", func() bool { return passing(c, name) == 0 })
}

func nodes(c *api.Client) error {
	name := fmt.Sprintf("go-nodes-%d", os.Getpid())
	for n, rack := range []string{"a", "b"} {
		registration := &api.CatalogRegistration{
			Node: fmt.Sprintf("%s-%s", name, rack), Address: fmt.Sprintf("10.1.0.%d", n+1), NodeMeta: map[string]string{"rack": rack},
			Service: &api.AgentService{ID: name, Service: name, Port: 80, Tags: []string{"v" + rack}},
		}
		if _, err := c.Catalog().Register(registration, nil); err != nil {
			return err
		}
	}
	for _, options := range []*api.QueryOptions{
		{NodeMeta: map[string]string{"rack": "b"}},
		{Filter: `ServiceTags contains "vb"`},
		{Filter: "Node matches `^" + name + ".*b$`"},
		{Filter: `any ServiceTags as tag { tag matches "b" }`},
	} {
		found, _, err := c.Catalog().Service(name, "", options)
		if err != nil || len(found) != 1 || found[0].Node != name+"-b" || found[0].NodeMeta["rack"] != "b" {
			return fmt.Errorf("%+v: %v %v", options, found, err)
		}
	}
	list, _, err := c.Catalog().NodeServiceList(name+"-a", nil)
	if err != nil || list.Node == nil || list.Node.Address != "10.1.0.1" || len(list.Services) != 1 || list.Services[0].ID != name {
		return fmt.Errorf("services of a node: %+v %v", list, err)
	}
	if list, _, err = c.Catalog().NodeServiceList(name+"-none", nil); err != nil || list.Node != nil || len(list.Services) != 0 {
		return fmt.Errorf("services of no node: %+v %v", list, err)
	}
	node, _, err := c.Catalog().Node(name+"-a", nil)
	if err != nil || node == nil || len(node.Services) != 1 {
		return fmt.Errorf("a node: %+v %v", node, err)
	}
	if node, _, err = c.Catalog().Node(name+"-none", nil); err != nil || node != nil {
		return fmt.Errorf("no node: %+v %v", node, err)
	}
	some, _, err := c.Catalog().Nodes(&api.QueryOptions{NodeMeta: map[string]string{"rack": "a"}})
	if err != nil || len(some) != 1 || some[0].Node != name+"-a" {
		return fmt.Errorf("nodes by metadata: %v %v", some, err)
	}
	for _, rack := range []string{"a", "b"} {
		if _, err := c.Catalog().Deregister(&api.CatalogDeregistration{Node: name + "-" + rack, ServiceID: name}, nil); err != nil {
			return err
		}
	}
	return nil
}

// several: a service with three checks, each by itself, and what they come to.
func several(c *api.Client) error {
	name := fmt.Sprintf("go-several-%d", os.Getpid())
	service := &api.AgentServiceRegistration{
		ID: name + "-1", Name: name, Address: "10.0.0.3", Port: 80,
		Checks: api.AgentServiceChecks{
			{TTL: "1m"},
			{CheckID: name + "-disk", Name: "Disk", TTL: "1m", Status: api.HealthPassing},
		},
	}
	if err := c.Agent().ServiceRegister(service); err != nil {
		return err
	}
	extra := &api.AgentCheckRegistration{
		ID: name + "-extra", Name: "Extra", ServiceID: name + "-1",
		AgentServiceCheck: api.AgentServiceCheck{TTL: "1m", Status: api.HealthPassing},
	}
	if err := c.Agent().CheckRegister(extra); err != nil {
		return err
	}
	ids := []string{"service:" + name + "-1:1", name + "-disk", name + "-extra"}
	expect := func(expected string) error {
		checks, _, err := c.Health().Checks(name, nil)
		if err != nil || len(checks) != len(ids) || checks.AggregatedStatus() != expected {
			return fmt.Errorf("expected %d checks and %s: %v %v", len(ids), expected, checks, err)
		}
		status, info, err := c.Agent().AgentHealthServiceByID(name + "-1")
		if err != nil || status != expected || len(info.Checks) != len(ids) {
			return fmt.Errorf("the service's health: expected %s: %s %v %v", expected, status, info, err)
		}
		entries, _, err := c.Health().Service(name, "", false, nil)
		if err != nil || len(entries) != 1 || entries[0].Checks.AggregatedStatus() != expected {
			return fmt.Errorf("discovery: expected %s: %v %v", expected, entries, err)
		}
		if n := passing(c, name); (n == 1) != (expected == api.HealthPassing) {
			return fmt.Errorf("%s, and %d are passing", expected, n)
		}
		return nil
	}
	for _, step := range []struct{ id, status, expected string }{
		{"", "", api.HealthCritical},
		{ids[0], api.HealthPassing, api.HealthPassing},
		{ids[2], api.HealthWarning, api.HealthWarning},
		{ids[1], api.HealthCritical, api.HealthCritical},
		{ids[2], api.HealthPassing, api.HealthCritical},
		{ids[1], api.HealthPassing, api.HealthPassing},
	} {
		if step.id != "" {
			if err := c.Agent().UpdateTTL(step.id, "by hand", step.status); err != nil {
				return err
			}
		}
		if err := expect(step.expected); err != nil {
			return fmt.Errorf("after %v: %w", step, err)
		}
	}
	all, err := c.Agent().Checks()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if all[id] == nil || all[id].ServiceID != name+"-1" {
			return fmt.Errorf("the agent's check %s: %v", id, all[id])
		}
	}
	if state, _, err := c.Health().State(api.HealthPassing, &api.QueryOptions{Filter: fmt.Sprintf("ServiceName == %q", name)}); err != nil || len(state) != 3 {
		return fmt.Errorf("by state: %v %v", state, err)
	}
	if err := c.Agent().CheckDeregister(ids[2]); err != nil {
		return err
	}
	if checks, _, err := c.Health().Checks(name, nil); err != nil || len(checks) != 2 {
		return fmt.Errorf("without one: %v %v", checks, err)
	}
	if err := c.Agent().UpdateTTL(ids[2], "", api.HealthPassing); err == nil {
		return fmt.Errorf("a check that is gone was updated")
	}
	if err := c.Agent().ServiceRegisterOpts(service, api.ServiceRegisterOpts{ReplaceExistingChecks: true}); err != nil {
		return err
	}
	return c.Agent().ServiceDeregister(name + "-1")
}

// machine: checks and maintenance of the node that this client is on, which count for its services and for those of no other node.
func machine(c *api.Client) error {
	name := fmt.Sprintf("go-machine-%d", os.Getpid())
	if err := c.Agent().ServiceRegister(&api.AgentServiceRegistration{ID: name + "-1", Name: name, Port: 80}); err != nil {
		return err
	}
	far := &api.CatalogRegistration{
		Node: name + "-far", Address: "10.1.0.9", Service: &api.AgentService{ID: name, Service: name, Port: 80},
		Checks: api.HealthChecks{{Node: name + "-far", CheckID: "up", Name: "Up", Status: api.HealthPassing}},
	}
	if _, err := c.Catalog().Register(far, nil); err != nil {
		return err
	}
	expect := func(status string, passes int) error {
		found, _, err := c.Agent().AgentHealthServiceByID(name + "-1")
		if err != nil || found != status {
			return fmt.Errorf("expected %s: %s %v", status, found, err)
		}
		if n := passing(c, name); n != passes {
			return fmt.Errorf("%s, and %d are passing, expected %d", status, n, passes)
		}
		return nil
	}
	if err := expect(api.HealthPassing, 2); err != nil {
		return err
	}
	check := &api.AgentCheckRegistration{Name: name, AgentServiceCheck: api.AgentServiceCheck{TTL: "1m"}}
	if err := c.Agent().CheckRegister(check); err != nil {
		return err
	}
	for _, step := range []struct {
		status string
		passes int
	}{{"", 1}, {api.HealthPassing, 2}, {api.HealthWarning, 1}, {api.HealthCritical, 1}} {
		if step.status == "" {
			step.status = api.HealthCritical
		} else if err := c.Agent().UpdateTTL(name, "", step.status); err != nil {
			return err
		}
		if err := expect(step.status, step.passes); err != nil {
			return err
		}
		of, _, err := c.Health().Node("127.0.0.1", nil)
		if err != nil || len(of) != 1 || of[0].CheckID != name || of[0].ServiceID != "" || of.AggregatedStatus() != step.status {
			return fmt.Errorf("the node's checks: %v %v", of, err)
		}
	}
	if err := c.Agent().EnableNodeMaintenance("for a disk"); err != nil {
		return err
	}
	// From the status of the answer the client makes "critical"; the service itself is said to be in maintenance.
	if err := expect(api.HealthCritical, 1); err != nil {
		return err
	}
	if _, info, err := c.Agent().AgentHealthServiceByID(name + "-1"); err != nil || info.AggregatedStatus != api.HealthMaint {
		return fmt.Errorf("in maintenance: %+v %v", info, err)
	}
	if all, err := c.Agent().Checks(); err != nil || all[api.NodeMaint] == nil || all[api.NodeMaint].Notes != "for a disk" {
		return fmt.Errorf("the agent's checks: %v %v", all, err)
	}
	if err := c.Agent().CheckDeregister(name); err != nil {
		return err
	}
	if err := c.Agent().DisableNodeMaintenance(); err != nil {
		return err
	}
	if err := expect(api.HealthPassing, 2); err != nil {
		return err
	}
	if of, _, err := c.Health().Node(name+"-far", nil); err != nil || len(of) != 1 || of[0].CheckID != "up" {
		return fmt.Errorf("the other node's checks: %v %v", of, err)
	}
	if _, err := c.Catalog().Deregister(&api.CatalogDeregistration{Node: name + "-far"}, nil); err != nil {
		return err
	}
	return c.Agent().ServiceDeregister(name + "-1")
}

// Requests that go through a transport.
type counted struct {
	requests atomic.Int64
}

func (c *counted) RoundTrip(request *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return http.DefaultTransport.RoundTrip(request)
}

// watches: a watch of a service by its hash is told of each change once, and asks no more often than that.
func watches(c *api.Client) error {
	name := fmt.Sprintf("go-watch-%d", os.Getpid())
	register := func(port int) error {
		return c.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: name, Port: port})
	}
	if err := register(1); err != nil {
		return err
	}
	requests := &counted{}
	watcher, err := api.NewClient(&api.Config{Address: "127.0.0.1:" + os.Getenv("CONSUL_PORT"), HttpClient: &http.Client{Transport: requests}})
	if err != nil {
		return err
	}
	plan, err := watch.Parse(map[string]interface{}{"type": "agent_service", "service_id": name})
	if err != nil {
		return err
	}
	told := make(chan int, 100)
	plan.HybridHandler = func(_ watch.BlockingParamVal, result interface{}) {
		told <- result.(*api.AgentService).Port
	}
	go plan.RunWithClientAndHclog(watcher, nil)
	defer plan.Stop()
	for port := 1; port <= 3; port++ {
		if port > 1 {
			if err := register(port); err != nil {
				return err
			}
		}
		select {
		case found := <-told:
			if found != port {
				return fmt.Errorf("told of port %d, expected %d", found, port)
			}
		case <-time.After(limit):
			return fmt.Errorf("not told of port %d", port)
		}
	}
	// One request for each that was told of, and one that waits.
	if n := requests.requests.Load(); n > 4 {
		return fmt.Errorf("%d requests for three changes", n)
	}
	return c.Agent().ServiceDeregister(name)
}

// events: a watch of events by name is told of each once, in order, and not of others; with no more requests than events.
func events(c *api.Client) error {
	name := fmt.Sprintf("go-event-%d", os.Getpid())
	fire := func(event *api.UserEvent) (string, error) {
		id, _, err := c.Event().Fire(event, nil)
		return id, err
	}
	if _, err := fire(&api.UserEvent{Name: name, Payload: []byte("0")}); err != nil {
		return err
	}
	requests := &counted{}
	watcher, err := api.NewClient(&api.Config{Address: "127.0.0.1:" + os.Getenv("CONSUL_PORT"), HttpClient: &http.Client{Transport: requests}})
	if err != nil {
		return err
	}
	plan, err := watch.Parse(map[string]interface{}{"type": "event", "name": name})
	if err != nil {
		return err
	}
	told := make(chan []*api.UserEvent, 100)
	plan.HybridHandler = func(_ watch.BlockingParamVal, result interface{}) {
		told <- result.([]*api.UserEvent)
	}
	go plan.RunWithClientAndHclog(watcher, nil)
	defer plan.Stop()
	for n := 0; n <= 3; n++ {
		payload := fmt.Sprint(n)
		if n > 0 {
			// One of another name, and one that is for another node, come before.
			for _, other := range []*api.UserEvent{{Name: name + "-other"}, {Name: name, NodeFilter: "^nobody$"}} {
				if _, err := fire(other); err != nil {
					return err
				}
			}
			if _, err := fire(&api.UserEvent{Name: name, Payload: []byte(payload)}); err != nil {
				return err
			}
		}
		select {
		case found := <-told:
			if len(found) != 1 || string(found[0].Payload) != payload || found[0].LTime == 0 {
				return fmt.Errorf("told of %+v, expected one with %s", found, payload)
			}
		case <-time.After(limit):
			return fmt.Errorf("not told of %s", payload)
		}
	}
	if n := requests.requests.Load(); n > 5 {
		return fmt.Errorf("%d requests for four events", n)
	}
	if _, err := fire(&api.UserEvent{Name: name, NodeFilter: "("}); err == nil {
		return fmt.Errorf("an event with a filter that is none was fired")
	}
	id, err := fire(&api.UserEvent{Name: name})
	if err != nil {
		return err
	}
	list, meta, err := c.Event().List(name, nil)
	if err != nil || len(list) != 5 || list[4].ID != id || meta.LastIndex != c.Event().IDToIndex(id) {
		return fmt.Errorf("the list: %v %+v %v", list, meta, err)
	}
	return nil
}

func main() {
	client, err := api.NewClient(&api.Config{Address: "127.0.0.1:" + os.Getenv("CONSUL_PORT")})
	if err != nil {
		panic(err)
	}
	checks := []check{{"the usual cycle", cycle}, {"who is silent expires", expiry}, {"nodes, their metadata, filters", nodes}, {"several checks", several},
		{"checks of a node", machine}, {"a watch by hash", watches}, {"events", events}}
	failed := 0
	for n, check := range checks {
		if err := check.work(client); err != nil {
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
