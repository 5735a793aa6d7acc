// Command acl asks Consul's own authorizer the questions of a table, and writes the table with its answers: the oracle of
// crates/registry/src/rights. Run it after the table has changed:
//
//	cd tests/peers/acl && go run . ../../../crates/registry/src/rights/table.txt
//
// A line of the table is DEFAULT, POLICIES, QUESTION and RESULT, separated by tabs. DEFAULT is "allow" or "deny". Policies are separated by " && ", and
// "\n" is a line break in them. QUESTION is KIND, ACCESS and NAME. RESULT is "allow", "deny", or "error" for policies that Consul refuses.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/hashicorp/consul/acl"
)

// ask returns the authorizer's decision.
func ask(authorizer acl.Authorizer, kind, access, name string) (acl.EnforcementDecision, error) {
	if kind == "key-tree" {
		return authorizer.KeyWritePrefix(name, nil), nil
	}
	return acl.Enforce(authorizer, acl.Resource(kind), name, access, nil)
}

func answer(fallback, policies, question string) (string, error) {
	var parsed []*acl.Policy
	for _, text := range strings.Split(policies, " && ") {
		policy, err := acl.NewPolicyFromSource(strings.ReplaceAll(text, `\n`, "\n"), nil, nil)
		if err != nil {
			return "error", nil
		}
		parsed = append(parsed, policy)
	}
	parent := acl.DenyAll()
	if fallback == "allow" {
		parent = acl.AllowAll()
	}
	authorizer, err := acl.NewPolicyAuthorizerWithDefaults(parent, parsed, nil)
	if err != nil {
		return "error", nil
	}
	words := strings.SplitN(question, " ", 3)
	if len(words) < 2 {
		return "", fmt.Errorf("%q: expected KIND ACCESS NAME", question)
	}
	name := ""
	if len(words) == 3 {
		name = words[2]
	}
	decision, err := ask(authorizer, words[0], words[1], name)
	if err != nil {
		return "", fmt.Errorf("%q: %w", question, err)
	}
	if decision == acl.Allow {
		return "allow", nil
	}
	return "deny", nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: acl TABLE")
	}
	content, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var out strings.Builder
	for number, line := range strings.Split(strings.TrimRight(string(content), "\n"), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			out.WriteString(line + "\n")
			continue
		}
		columns := strings.Split(line, "\t")
		if len(columns) < 3 {
			log.Fatalf("line %d: expected DEFAULT, POLICIES and QUESTION, separated by tabs", number+1)
		}
		result, err := answer(columns[0], columns[1], columns[2])
		if err != nil {
			log.Fatalf("line %d: %v", number+1, err)
		}
		fmt.Fprintf(&out, "%s\t%s\t%s\t%s\n", columns[0], columns[1], columns[2], result)
	}
	if err := os.WriteFile(os.Args[1], []byte(out.String()), 0o644); err != nil {
		log.Fatal(err)
	}
}
