// Program today measures the timestamps of PD's Go client of June 2026, which is what client-go asks for them. It is the newest one
// that the module registry serves; of client-go itself it serves none of that year.
package main

import (
	"context"

	"github.com/pingcap/log"
	pd "github.com/tikv/pd/client"
	"go.uber.org/zap/zapcore"

	"timestamps/measure"
)

type source struct{ client pd.Client }

func (s source) Next(ctx context.Context) (uint64, error) {
	physical, logical, err := s.client.GetTS(ctx)
	return uint64(physical)<<18 | uint64(logical), err
}

func main() {
	measure.Main(func(ctx context.Context, address string) (measure.Source, error) {
		log.SetLevel(zapcore.ErrorLevel)
		client, err := pd.NewClientWithContext(ctx, []string{address}, pd.SecurityOption{})
		return source{client}, err
	})
}
