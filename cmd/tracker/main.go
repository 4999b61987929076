// Command tracker turns changed counters into an exact account.
package main

import (
	"context"
	"io"
	"net/http"

	"github.com/tallygate/tallygate/internal/bus"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/tracker"
)

func main() { service.Main(run) }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	command := service.Command("tracker", "Account for what the counters count", getenv, serve)
	command.AddCommand(functionsCommand(getenv))
	return service.Execute(ctx, command, args, stdout, stderr)
}

func serve(ctx context.Context, c *config.Config, stderr io.Writer) error {
	s := service.New("tracker", c.Log, stderr)
	service.LogRedis(s.Log)
	client, err := service.NewRedis(c.Redis)
	if err != nil {
		return err
	}
	defer client.Close()
	reachable := func(ctx context.Context) error { return service.PingRedis(ctx, client, c.Redis) }
	if err := reachable(ctx); err != nil {
		return err
	}
	s.Health.Add("redis", reachable)

	namespace := counters.Namespace(c.Namespace)
	feed := tracker.NewRedisFeed(client, tracker.FeedOptions{Namespace: namespace, KeepConfig: !c.Tracker.ManageNotifications, Log: s.Log})
	if err := feed.Check(ctx); err != nil {
		return err
	}
	series, err := timeseries.Choose(ctx, client, c.Namespace)
	if err != nil {
		return err
	}
	s.Log.Info("series are kept", "in", series.String())
	ledger := tracker.NewRedisLedger(client, tracker.RedisOptions{Namespace: namespace, Grace: c.Counters.Grace, Series: series, Log: s.Log})
	carrier, err := bus.Open(ctx, c, s)
	if err != nil {
		return err
	}
	defer carrier.Close()
	options := tracker.Options{
		FlushEvery: c.Tracker.FlushInterval, RescanEvery: c.Tracker.RescanInterval, DrainTimeout: c.Tracker.DrainTimeout,
		Log: s.Log, Registerer: s.Metrics,
	}
	if c.Tracker.Share {
		options.Share = tracker.NewRedisShare(client, namespace)
	}
	t := tracker.New(feed, ledger, carrier, options)
	s.Health.Add("tracker", t.Ready)
	forward := tracker.NewForwarder(client, carrier, tracker.ForwarderOptions{Namespace: namespace, Log: s.Log})
	return s.Run(
		ctx, c.Tracker.Server, http.NotFoundHandler(),
		service.Part{Name: "tracker", Run: t.Run}, service.Part{Name: "events", Run: forward.Run},
	)
}
