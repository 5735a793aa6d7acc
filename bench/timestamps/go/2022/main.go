// Program 2022 measures the timestamps of client-go 2.0.1, of April 2022, with the PD client that it names.
package main

import (
	"context"
	"time"

	"github.com/pingcap/log"
	"github.com/tikv/client-go/v2/oracle"
	"github.com/tikv/client-go/v2/oracle/oracles"
	pd "github.com/tikv/pd/client"
	"go.uber.org/zap/zapcore"

	"timestamps/measure"
)

type source struct{ oracle oracle.Oracle }

func (s source) Next(ctx context.Context) (uint64, error) {
	return s.oracle.GetTimestamp(ctx, &oracle.Option{TxnScope: oracle.GlobalTxnScope})
}

func main() {
	measure.Main(func(ctx context.Context, address string) (measure.Source, error) {
		log.SetLevel(zapcore.ErrorLevel)
		client, err := pd.NewClientWithContext(ctx, []string{address}, pd.SecurityOption{})
		if err != nil {
			return nil, err
		}
		oracle, err := oracles.NewPdOracle(client, 2*time.Second)
		return source{oracle}, err
	})
}
