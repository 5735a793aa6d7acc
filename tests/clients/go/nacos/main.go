// Nacos' own client in Go (gRPC) that does as it is told. Addresses (separated by commas) and the namespace are its arguments, the environment has
// NACOS_PASSWORD. Each line of its input is a call, each line of its output an answer, or what a subscription brought.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/nacos-group/nacos-sdk-go/v2/clients"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/config_client"
	"github.com/nacos-group/nacos-sdk-go/v2/clients/naming_client"
	"github.com/nacos-group/nacos-sdk-go/v2/common/constant"
	"github.com/nacos-group/nacos-sdk-go/v2/model"
	"github.com/nacos-group/nacos-sdk-go/v2/vo"
)

type fields map[string]any

type asked struct {
	Do      string `json:"do"`
	Service string `json:"service"`
	IP      string `json:"ip"`
	Zone    string `json:"zone"`
	Content string `json:"content"`
	MD5     string `json:"md5"`
}

var saying sync.Mutex

func say(it fields) {
	saying.Lock()
	defer saying.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(it); err != nil {
		log.Fatal(err)
	}
}

// Address, health and metadata of each.
func told(instances []model.Instance) [][]any {
	hosts := [][]any{}
	for _, it := range instances {
		hosts = append(hosts, []any{it.Ip, it.Healthy, it.Metadata})
	}
	sort.Slice(hosts, func(i, j int) bool { return hosts[i][0].(string) < hosts[j][0].(string) })
	return hosts
}

var configs config_client.IConfigClient

// The client of the configuration service, which has a connection of its own.
func configClient() (config_client.IConfigClient, error) {
	if configs != nil {
		return configs, nil
	}
	var err error
	configs, err = clients.NewConfigClient(configured(os.Args[1], os.Args[2]))
	return configs, err
}

func carryOutConfig(it asked) (fields, error) {
	client, err := configClient()
	if err != nil {
		return nil, err
	}
	param := vo.ConfigParam{DataId: it.Service, Group: "g", Content: it.Content, CasMd5: it.MD5}
	switch it.Do {
	case "publish":
		done, err := client.PublishConfig(param)
		return fields{"published": done}, err
	case "get":
		content, err := client.GetConfig(param)
		if err == nil && content == "" {
			return fields{"got": nil}, nil
		}
		return fields{"got": content}, err
	case "remove":
		done, err := client.DeleteConfig(param)
		return fields{"removed": done}, err
	default:
		param.OnChange = func(namespace, group, dataId, data string) {
			say(fields{"heard": dataId, "content": data})
		}
		return fields{"listening": it.Service}, client.ListenConfig(param)
	}
}

func carryOut(client naming_client.INamingClient, it asked) (fields, error) {
	switch it.Do {
	case "publish", "get", "remove", "listen":
		return carryOutConfig(it)
	case "register":
		instance := vo.RegisterInstanceParam{
			ServiceName: it.Service, Ip: it.IP, Port: 80, Weight: 1, Enable: true, Healthy: true, Ephemeral: true,
		}
		if it.Zone != "" {
			instance.Metadata = map[string]string{"zone": it.Zone}
		}
		done, err := client.RegisterInstance(instance)
		return fields{"registered": done}, err
	case "deregister":
		done, err := client.DeregisterInstance(
			vo.DeregisterInstanceParam{ServiceName: it.Service, Ip: it.IP, Port: 80, Ephemeral: true})
		return fields{"deregistered": done}, err
	case "list":
		// Of a service that the client has not subscribed to: what the server says now. The client then subscribes to it by itself.
		found, err := client.SelectAllInstances(vo.SelectAllInstancesParam{ServiceName: it.Service})
		return fields{"listed": told(found)}, err
	case "services":
		found, err := client.GetAllServicesInfo(vo.GetAllServiceInfoParam{PageNo: 1, PageSize: 100})
		return fields{"services": found.Doms}, err
	case "subscribe":
		err := client.Subscribe(&vo.SubscribeParam{
			ServiceName: it.Service,
			SubscribeCallback: func(instances []model.Instance, err error) {
				say(fields{"heard": it.Service, "hosts": told(instances)})
			},
		})
		return fields{"subscribed": it.Service}, err
	}
	return nil, fmt.Errorf("%q is not a call", it.Do)
}

func configured(addresses, namespace string) vo.NacosClientParam {
	config := constant.NewClientConfig(
		constant.WithNamespaceId(namespace), constant.WithUsername("anybody"), constant.WithPassword(os.Getenv("NACOS_PASSWORD")),
		constant.WithNotLoadCacheAtStart(true), constant.WithLogDir("log"), constant.WithCacheDir("cache"), constant.WithTimeoutMs(3000),
	)
	var servers []constant.ServerConfig
	for _, address := range strings.Split(addresses, ",") {
		host, number, _ := strings.Cut(address, ":")
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			log.Fatal(err)
		}
		servers = append(servers, *constant.NewServerConfig(host, port))
	}
	return vo.NacosClientParam{ClientConfig: config, ServerConfigs: servers}
}

func main() {
	client, err := clients.NewNamingClient(configured(os.Args[1], os.Args[2]))
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
		answer, err := carryOut(client, it)
		if err != nil {
			answer = fields{"refused": err.Error()}
		}
		say(answer)
	}
}
