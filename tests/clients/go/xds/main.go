// grpc-go as a client that finds its servers by xDS (xds:///NAME). Reads a command a line, writes an answer a line, both JSON.
// GRPC_XDS_BOOTSTRAP says where the registry is.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	_ "google.golang.org/grpc/xds"
)

const who = "/kingpost.test.Echo/Who"

type asked struct {
	Name  string `json:"name"`
	Times int    `json:"times"`
}

type said struct {
	Answered map[string]int `json:"answered"`
	Failed   map[string]int `json:"failed"`
}

// Messages as the bytes that they are.
type plain struct{}

func (plain) Name() string { return "plain" }

func (plain) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (plain) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func call(connection *grpc.ClientConn, told said) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var request, answer []byte
	err := connection.Invoke(ctx, who, &request, &answer, grpc.ForceCodec(plain{}))
	if err != nil {
		told.Failed[fmt.Sprintf("%s: %s", status.Code(err), err)]++
		return
	}
	told.Answered[string(answer)]++
}

func main() {
	connections := map[string]*grpc.ClientConn{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var it asked
		if err := json.Unmarshal(lines.Bytes(), &it); err != nil {
			log.Fatal(err)
		}
		if connections[it.Name] == nil {
			connection, err := grpc.NewClient("xds:///"+it.Name, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				log.Fatal(err)
			}
			connections[it.Name] = connection
		}
		told := said{Answered: map[string]int{}, Failed: map[string]int{}}
		for range it.Times {
			call(connections[it.Name], told)
		}
		if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
			log.Fatal(err)
		}
	}
}
