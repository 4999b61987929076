// Command enforcer decides which requests may pass.
package main

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/service"
)

func main() { service.Main(run) }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	command := service.Command("enforcer", "Decide which requests may pass", getenv, serve)
	return service.Execute(ctx, command, args, stdout, stderr)
}

func serve(ctx context.Context, c *config.Config, stderr io.Writer) error {
	s := service.New("enforcer", c.Log, stderr)
	service.LogRedis(s.Log)
	client, err := service.NewRedis(c.Redis)
	if err != nil {
		return err
	}
	defer client.Close()
	reachable := func(ctx context.Context) error { return service.PingRedis(ctx, client, c.Redis) }
	switch err := reachable(ctx); {
	case errors.Is(err, service.ErrRedisUnreachable): // it may come; until then we are not ready
		s.Log.Warn("starting without Redis", "error", err)
	case err != nil:
		return err
	}
	s.Health.Add("redis", reachable)

	store := counters.NewStore(client, counters.Options{Namespace: counters.Namespace(c.Namespace), Grace: c.Counters.Grace})
	group := counters.NewGroup(store, counters.GroupOptions{})
	e := enforcer.New(group, enforcer.Compile(c), enforcer.Options{Timeout: c.Enforcer.DecideTimeout, Metrics: s.Metrics})
	mux := http.NewServeMux()
	e.Register(mux)
	return s.Run(ctx, c.Enforcer.Server, mux, service.Part{Name: "counters", Run: func(ctx context.Context) error {
		<-ctx.Done()
		// The HTTP server has drained: what is on its way to Redis goes last.
		flush, cancel := service.Linger(ctx, c.Enforcer.DrainTimeout)
		defer cancel()
		return group.Close(flush)
	}})
}
