package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/search"
)

// answerers returns what answers questions about many tokens: the search index of
// the Redis server where it has one, otherwise the history. keep makes the index and
// keeps it until its context ends.
func answerers(client redis.UniversalClient, c *config.Config, kept *history.Store, log *slog.Logger) (_ query.Source, keep func(context.Context) error, err error) {
	index, err := search.Open(client, search.Options{Namespace: c.Namespace})
	switch {
	case errors.Is(err, search.ErrUnsuited):
		log.Info("queries are answered by the history", "reason", err)
		return kept, func(context.Context) error { return nil }, nil
	case err != nil:
		return nil, nil, err
	}
	return search.Prefer(index, kept, log), func(ctx context.Context) error {
		defer index.Close()
		return index.Keep(ctx, log)
	}, nil
}
