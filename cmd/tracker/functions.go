package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/functions"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/timeseries"
)

// functionsCommand manages the library that accounts inside Redis, where the
// server runs triggers (Redis Stack 7.2 and 7.4).
func functionsCommand(getenv func(string) string) *cobra.Command {
	command := &cobra.Command{Use: "functions", Short: "Account inside Redis by triggers, where the server has them"}
	add := func(use, short string, run func(ctx context.Context, command *cobra.Command, client redis.UniversalClient, c *config.Config) error) {
		var path string
		sub := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(command *cobra.Command, _ []string) error {
			c, err := config.Load(path, getenv)
			if err != nil {
				return err
			}
			client, err := service.NewRedis(c.Redis)
			if err != nil {
				return err
			}
			defer client.Close()
			if err := service.PingRedis(command.Context(), client, c.Redis); err != nil {
				return err
			}
			return run(command.Context(), command, client, c)
		}}
		service.ConfigFlag(sub, &path, getenv)
		command.AddCommand(sub)
	}
	add("load", "Load the library, in place of an earlier version", func(ctx context.Context, _ *cobra.Command, client redis.UniversalClient, c *config.Config) error {
		return functions.Load(ctx, client, functions.Config{Namespace: c.Namespace, Grace: c.Counters.Grace, SeriesSpan: timeseries.DefaultSpan})
	})
	add("list", "List the libraries that are loaded", func(ctx context.Context, command *cobra.Command, client redis.UniversalClient, _ *config.Config) error {
		names, err := functions.List(ctx, client)
		for _, name := range names {
			fmt.Fprintln(command.OutOrStdout(), name)
		}
		return err
	})
	add("delete", "Delete the library", func(ctx context.Context, _ *cobra.Command, client redis.UniversalClient, _ *config.Config) error {
		return functions.Delete(ctx, client)
	})
	return command
}
