// Polaris' own client in Go, of its configuration files, that does as it is told. Addresses (separated by commas) and the namespace are its arguments.
// Each line of its input is a call, each line of its output an answer, or what a listener was told.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"

	"github.com/polarismesh/polaris-go"
	"github.com/polarismesh/polaris-go/pkg/config"
	"github.com/polarismesh/polaris-go/pkg/model"
)

type fields map[string]any

type asked struct {
	Do      string `json:"do"`
	Service string `json:"service"`
	Content string `json:"content"`
}

var saying sync.Mutex

func say(it fields) {
	saying.Lock()
	defer saying.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(it); err != nil {
		log.Fatal(err)
	}
}

func carryOut(client polaris.ConfigAPI, namespace string, it asked) (fields, error) {
	switch it.Do {
	case "create":
		return fields{"created": it.Service}, client.CreateConfigFile(namespace, "g", it.Service, it.Content)
	case "update":
		return fields{"updated": it.Service}, client.UpdateConfigFile(namespace, "g", it.Service, it.Content)
	case "release":
		return fields{"released": it.Service}, client.PublishConfigFile(namespace, "g", it.Service)
	}
	file, err := client.GetConfigFile(namespace, "g", it.Service)
	if err != nil {
		return nil, err
	}
	switch it.Do {
	case "get":
		return fields{"got": file.GetContent()}, nil
	case "listen":
		file.AddChangeListener(func(event model.ConfigFileChangeEvent) {
			say(fields{"heard": it.Service, "content": event.NewValue})
		})
		return fields{"listening": it.Service}, nil
	}
	return nil, fmt.Errorf("%q is not a call", it.Do)
}

func main() {
	addresses := strings.Split(os.Args[1], ",")
	settings := config.NewDefaultConfiguration(addresses)
	settings.GetConfigFile().GetConfigConnectorConfig().SetAddresses(addresses)
	client, err := polaris.NewConfigAPIByConfig(settings)
	if err != nil {
		log.Fatal(err)
	}
	say(fields{"ready": true})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var it asked
		if err := json.Unmarshal(lines.Bytes(), &it); err != nil {
			log.Fatal(err)
		}
		answer, err := carryOut(client, os.Args[2], it)
		if err != nil {
			answer = fields{"refused": err.Error()}
		}
		say(answer)
	}
}
