// Command consul runs Consul's own agent out of its module: the registry beside which tests/peers/consul.py runs Kingpost's. Its arguments are those of
// `consul agent`.
package main

import (
	"os"

	"github.com/hashicorp/consul/command/agent"
	"github.com/hashicorp/consul/command/cli"
	mcli "github.com/mitchellh/cli"
)

func main() {
	ui := &cli.BasicUI{BasicUi: mcli.BasicUi{Writer: os.Stdout, ErrorWriter: os.Stderr}}
	os.Exit(agent.New(ui).Run(os.Args[1:]))
}
