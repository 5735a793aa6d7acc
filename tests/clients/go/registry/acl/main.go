// Go's consul/api on tokens and policies: bootstrap, policies, tokens, what they allow, and what is left out. CONSUL_PORT says where.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/consul/api"
)

var root string

func client(token, namespace string) *api.Client {
	config := api.DefaultConfig()
	config.Address = "127.0.0.1:" + os.Getenv("CONSUL_PORT")
	config.Token = token
	config.Namespace = namespace
	c, err := api.NewClient(config)
	if err != nil {
		panic(err)
	}
	return c
}

// denied tells if err is a refusal that contains text.
func denied(err error, text string) bool {
	return err != nil && strings.Contains(err.Error(), "403") && strings.Contains(err.Error(), text)
}

func bootstrap() error {
	token, _, err := client("", "").ACL().Bootstrap()
	if err != nil {
		return err
	}
	root = token.SecretID
	if len(token.Policies) != 1 || token.Policies[0].Name != "global-management" || token.CreateTime.IsZero() {
		return fmt.Errorf("%+v", token)
	}
	if _, _, err := client("", "").ACL().Bootstrap(); !denied(err, "ACL bootstrap no longer allowed") {
		return fmt.Errorf("again: %v", err)
	}
	self, _, err := client(root, "").ACL().TokenReadSelf(nil)
	if err != nil || self.AccessorID != token.AccessorID || self.SecretID != root {
		return fmt.Errorf("%+v %v", self, err)
	}
	if _, err := client("b54fe110-7af5-cafc-d1fb-afc8ba432b1c", "").Catalog().Datacenters(); !denied(err, "ACL not found") {
		return fmt.Errorf("unknown: %v", err)
	}
	return nil
}

func policies() error {
	acl := client(root, "").ACL()
	made, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: "web", Description: "d", Rules: `service "web" { policy = "write" }`}, nil)
	if err != nil || made.ID == "" || made.ModifyIndex == 0 {
		return fmt.Errorf("%+v %v", made, err)
	}
	made.Rules += "\nnode_prefix \"\" { policy = \"read\" }\nkey_prefix \"web/\" { policy = \"write\" }\nsession_prefix \"\" { policy = \"write\" }"
	changed, _, err := acl.PolicyUpdate(made, nil)
	if err != nil || changed.ID != made.ID || changed.ModifyIndex <= made.ModifyIndex || string(changed.Hash) == string(made.Hash) {
		return fmt.Errorf("%+v %v", changed, err)
	}
	byName, _, err := acl.PolicyReadByName("web", nil)
	if err != nil || byName.ID != made.ID || byName.Rules != changed.Rules {
		return fmt.Errorf("%+v %v", byName, err)
	}
	byID, _, err := acl.PolicyRead(made.ID, nil)
	if err != nil || byID.Name != "web" {
		return fmt.Errorf("%+v %v", byID, err)
	}
	none, _, err := acl.PolicyReadByName("none", nil)
	if err != nil || none != nil {
		return fmt.Errorf("missing: %+v %v", none, err)
	}
	list, _, err := acl.PolicyList(nil)
	if err != nil || len(list) != 3 {
		return fmt.Errorf("%+v %v", list, err)
	}
	if _, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: "bad", Rules: `service "a" { policy = "list" }`}, nil); err == nil {
		return fmt.Errorf("a bad policy was taken")
	}
	return nil
}

func tokens() error {
	acl := client(root, "").ACL()
	made, _, err := acl.TokenCreate(&api.ACLToken{Description: "web", Policies: []*api.ACLLink{{Name: "web"}}}, nil)
	if err != nil || made.SecretID == "" {
		return fmt.Errorf("%+v %v", made, err)
	}
	copied, _, err := acl.TokenClone(made.AccessorID, "copy", nil)
	if err != nil || copied.SecretID == made.SecretID || copied.Description != "copy" {
		return fmt.Errorf("%+v %v", copied, err)
	}
	read, _, err := acl.TokenRead(made.AccessorID, nil)
	if err != nil || read.Policies[0].Name != "web" {
		return fmt.Errorf("%+v %v", read, err)
	}
	read.Description = "other"
	if changed, _, err := acl.TokenUpdate(read, nil); err != nil || changed.Description != "other" {
		return fmt.Errorf("%+v %v", changed, err)
	}
	list, _, err := acl.TokenList(nil)
	if err != nil || len(list) != 4 {
		return fmt.Errorf("%d tokens, %v", len(list), err)
	}

	web := client(made.SecretID, "")
	if err := web.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web", Port: 80}); err != nil {
		return err
	}
	text := fmt.Sprintf("token with AccessorID '%s' lacks permission 'service:write' on \"db\"", made.AccessorID)
	if err := web.Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "db", Port: 1}); !denied(err, text) {
		return fmt.Errorf("db: %v", err)
	}
	if err := client(root, "").Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "db", Port: 1}); err != nil {
		return err
	}
	services, meta, err := web.Catalog().Services(nil)
	if err != nil || len(services) != 1 || !meta.ResultsFilteredByACLs {
		return fmt.Errorf("%v %+v %v", services, meta, err)
	}
	services, meta, err = client(root, "").Catalog().Services(nil)
	if err != nil || len(services) != 2 || meta.ResultsFilteredByACLs {
		return fmt.Errorf("%v %+v %v", services, meta, err)
	}
	if _, err := web.KV().Put(&api.KVPair{Key: "web/a", Value: []byte("1")}, nil); err != nil {
		return err
	}
	if _, err := web.KV().Put(&api.KVPair{Key: "db/a", Value: []byte("1")}, nil); !denied(err, "key:write") {
		return fmt.Errorf("db/a: %v", err)
	}
	lock, err := web.LockKey("web/lock")
	if err != nil {
		return err
	}
	if lost, err := lock.Lock(nil); err != nil || lost == nil {
		return fmt.Errorf("lock: %v", err)
	}
	if err := lock.Unlock(); err != nil {
		return err
	}
	if _, err := acl.TokenDelete(made.AccessorID, nil); err != nil {
		return err
	}
	if _, _, err := web.Catalog().Services(nil); !denied(err, "ACL not found") {
		return fmt.Errorf("deleted: %v", err)
	}
	if services, _, err := client(copied.SecretID, "").Catalog().Services(nil); err != nil || len(services) != 1 {
		return fmt.Errorf("copy: %v %v", services, err)
	}
	return nil
}

func namespaces() error {
	acl := client(root, "shop").ACL()
	policy := &api.ACLPolicy{Name: "all", Rules: `service_prefix "" { policy = "write" } node_prefix "" { policy = "write" } acl = "write"`}
	if _, _, err := acl.PolicyCreate(policy, nil); err != nil {
		return err
	}
	made, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{Name: "all"}}}, nil)
	if err != nil || made.Namespace != "shop" {
		return fmt.Errorf("%+v %v", made, err)
	}
	if err := client(made.SecretID, "shop").Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "cart"}); err != nil {
		return err
	}
	if services, _, err := client(made.SecretID, "default").Catalog().Services(nil); err != nil || len(services) != 0 {
		return fmt.Errorf("%v %v", services, err)
	}
	if _, _, err := client(made.SecretID, "default").ACL().TokenList(nil); !denied(err, "acl:read") {
		return fmt.Errorf("tokens of another namespace: %v", err)
	}
	return nil
}

func main() {
	failed := 0
	checks := []struct {
		name string
		work func() error
	}{{"the first token", bootstrap}, {"policies", policies}, {"tokens", tokens}, {"namespaces", namespaces}}
	for n, check := range checks {
		if err := check.work(); err != nil {
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
