// pgx logs in with a token by OAUTHBEARER. DATABASE_URL says where, GOOD and BAD are tokens.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func login(ctx context.Context, token string) (string, error) {
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		return "", err
	}
	config.OAuthTokenProvider = func(context.Context) (string, error) { return token, nil }
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var name string
	err = conn.QueryRow(ctx, "SELECT current_user").Scan(&name)
	return name, err
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	name, err := login(ctx, os.Getenv("GOOD"))
	if err != nil {
		panic(err)
	}
	if _, err := login(ctx, os.Getenv("BAD")); err == nil {
		panic("a bad token was let in")
	} else if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code != "28000" {
		panic(err)
	}
	fmt.Println(name)
}
