// Command indexer keeps usage for good and answers questions about it.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/tallygate/tallygate/internal/bus"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/dashboard"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/indexer"
	"github.com/tallygate/tallygate/internal/service"
)

func main() { service.Main(run) }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	command := service.Command("indexer", "Keep usage for good and answer questions about it", getenv, serve)
	command.Long = command.Short + ".\n\nWithout a command it serves; the commands ask an indexer that does."
	command.AddCommand(indexer.Commands()...)
	var path string
	for _, c := range indexer.AdminCommands(func(ctx context.Context) (*history.Store, error) {
		c, err := config.Load(path, getenv)
		if err != nil {
			return nil, err
		}
		return history.Connect(ctx, string(c.History.URL))
	}) {
		service.ConfigFlag(c, &path, getenv)
		for _, sub := range c.Commands() {
			service.ConfigFlag(sub, &path, getenv)
		}
		command.AddCommand(c)
	}
	return service.Execute(ctx, command, args, stdout, stderr)
}

func serve(ctx context.Context, c *config.Config, stderr io.Writer) error {
	s := service.New("indexer", c.Log, stderr)
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

	kept, err := history.Open(ctx, string(c.History.URL))
	if err != nil {
		return err
	}
	defer kept.Close()
	s.Health.Add("history", kept.Ping)

	carrier, err := bus.Open(ctx, c, s)
	if err != nil {
		return err
	}
	defer carrier.Close()
	ingest := indexer.New(carrier, kept, indexer.Options{Log: s.Log, Registerer: s.Metrics})
	maintain := indexer.NewMaintenance(kept, indexer.MaintenanceOptions{KeepMinutes: c.History.KeepMinutes, Log: s.Log, Registerer: s.Metrics})
	answers, keepIndex, err := answerers(client, c, kept, s.Log)
	if err != nil {
		return err
	}
	queries, err := indexer.Handler(kept, indexer.APIOptions{Search: answers, ReadTokens: c.Indexer.ReadTokens, Log: s.Log})
	if err != nil {
		return fmt.Errorf("indexer.read_tokens: %w", err)
	}
	pages := dashboard.FromConfig(c, kept, s.Log)
	pages.Version, pages.Stopping = service.Version(), s.Health.Draining()
	board, err := dashboard.New(pages)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", board)
	mux.Handle("/v1/", queries)
	return s.Run(
		ctx, c.Indexer.Server, mux,
		service.Part{Name: "ingest", Run: ingest.Run}, service.Part{Name: "maintenance", Run: maintain.Run},
		service.Part{Name: "dashboard", Run: board.Run}, service.Part{Name: "search", Run: keepIndex},
	)
}
