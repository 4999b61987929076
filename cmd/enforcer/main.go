// Command enforcer decides which requests may pass.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/admin"
	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/forwardauth"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/rls"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/token"
)

func main() { service.Main(run) }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	// In the mode --compat the environment is another program's, translated.
	translated := getenv
	command := service.Command("enforcer", "Decide which requests may pass", func(name string) string { return translated(name) }, serve)
	compat := command.Flags().String("compat", "", "read another program's environment: "+rls.Compat)
	command.PreRunE = func(*cobra.Command, []string) (err error) {
		switch *compat {
		case "":
			return nil
		case rls.Compat:
			var notes []string
			translated, notes, err = rls.CompatEnv(getenv)
			for _, note := range notes {
				fmt.Fprintln(stderr, "note:", note)
			}
			return err
		}
		return fmt.Errorf("--compat: %q is not known; the only mode is %s", *compat, rls.Compat)
	}
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
	settings := conf.NewRedis(client, c.Namespace)
	e := enforcer.New(group, enforcer.Compile(c), enforcer.Options{
		Timeout: c.Enforcer.DecideTimeout, Settings: settings, OlderHeaders: c.Enforcer.OlderHeaders, Metrics: s.Metrics,
	})
	mux := http.NewServeMux()
	e.Register(mux)
	if len(c.ForwardAuth.TokenFrom) > 0 {
		forwardauth.New(c.ForwardAuth, e, token.Parse).Register(mux)
	}
	parts := []service.Part{
		s.Reload(c, func(changed *config.Config) { e.SetPolicies(enforcer.Compile(changed)) }),
		{Name: "settings", Run: e.Run},
		{Name: "counters", Run: func(ctx context.Context) error {
			<-ctx.Done()
			// The servers have drained: what is on its way to Redis goes last.
			flush, cancel := service.Linger(ctx, c.Enforcer.DrainTimeout)
			defer cancel()
			return group.Close(flush)
		}},
	}
	if c.RLS.ConfigDir != "" {
		gateway, err := rls.NewGateway(c.RLS, grouped{group, store}, rls.GatewayOptions{
			Timeout: c.Enforcer.DecideTimeout, DrainTimeout: c.Enforcer.DrainTimeout, Metrics: s.Metrics, Log: s.Log,
		})
		if err != nil {
			return err
		}
		defer gateway.Close()
		gateway.Service.Register(mux)
		s.Log.Info("rate limit service", "address", gateway.Addr().String(), "domains", len(gateway.Source.Rules().Domains()))
		parts = append([]service.Part{
			{Name: "rls", Run: gateway.Run},
			{Name: "rules", Run: gateway.Source.Run},
		}, parts...)
	}
	steer, err := admin.Parts(c, s, settings, e)
	if err != nil {
		return err
	}
	parts = append(steer, parts...)
	return s.Run(ctx, c.Enforcer.Server, mux, parts...)
}

// grouped decides in groups, and adjusts at once.
type grouped struct {
	*counters.Group
	store *counters.Store
}

func (g grouped) Adjust(ctx context.Context, j quota.Adjustment) error { return g.store.Adjust(ctx, j) }
