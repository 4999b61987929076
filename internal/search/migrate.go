package search

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Migrate makes the index of this version of the schema, waits until RediSearch
// has indexed every hash that there is, makes the alias point to it, and drops the
// indexes of earlier versions; the hashes stay as they are. Until the alias moves,
// queries are answered from the index before.
//
// Where that is done already it costs two calls. Several processes may do it at
// once. An index of a later version is left alone and used: a schema only grows.
// The error wraps ErrNoSearch when the server has no search.
func (x *Index) Migrate(ctx context.Context) error {
	if err := x.migrate(ctx); err != nil {
		return fmt.Errorf("make the search index: %w", err)
	}
	return nil
}

func (x *Index) migrate(ctx context.Context) error {
	switch s, err := x.client.info(ctx, x.alias); {
	case errors.Is(err, ErrNoIndex):
	case err != nil:
		return err
	default:
		if v, ok := indexVersion(x.alias, s.Index); ok && v >= version {
			return x.dropBefore(ctx, v)
		}
	}
	index := indexName(x.alias, version)
	if err := x.client.create(ctx, index, schema(x.prefix)); err != nil {
		return err
	}
	if err := x.wait(ctx, index); err != nil {
		return err
	}
	if err := x.client.point(ctx, x.alias, index); err != nil {
		return err
	}
	return x.dropBefore(ctx, version)
}

// wait returns when an index is complete.
func (x *Index) wait(ctx context.Context, index string) error {
	tick := time.NewTicker(x.poll)
	defer tick.Stop()
	for {
		s, err := x.client.info(ctx, index)
		if err != nil || s.Complete {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d tokens are indexed, not all: %w", s.Tokens, ctx.Err())
		case <-tick.C:
		}
	}
}

// dropBefore drops the indexes of versions before v, such as a crash between
// moving the alias and dropping has left behind.
func (x *Index) dropBefore(ctx context.Context, v int) error {
	names, err := x.client.list(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if old, ok := indexVersion(x.alias, name); ok && old < v {
			if err := x.client.drop(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Keep makes the index and keeps it until ctx ends: it looks every minute whether
// it is still there, as it goes with a FLUSHALL or with a server that was replaced,
// and whether the server has search meanwhile. Without it queries go elsewhere
// (Prefer), so what fails is logged, once, and tried again. It returns nil.
func (x *Index) Keep(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for said := ""; ; {
		if say := x.keepOnce(ctx); say.text() != said && ctx.Err() == nil {
			said = say.text()
			say.to(log)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// news is what Keep has to say.
type news struct {
	status Status
	err    error
}

func (x *Index) keepOnce(ctx context.Context) news {
	if err := x.Migrate(ctx); err != nil {
		return news{err: err}
	}
	s, err := x.Status(ctx)
	return news{s, err}
}

// text is equal for news that are not new.
func (n news) text() string {
	if n.err != nil {
		return n.err.Error()
	}
	return fmt.Sprintf("%s %d", n.status.Index, n.status.Failures)
}

func (n news) to(log *slog.Logger) {
	switch {
	case errors.Is(n.err, ErrNoSearch):
		log.Info("no search index", "reason", n.err)
	case n.err != nil:
		log.Warn("no search index, it will be tried again", "err", n.err)
	case n.status.Failures > 0:
		log.Warn("tokens are missing in the search index: figures of theirs are none", "index", n.status.Index, "failures", n.status.Failures)
	default:
		log.Info("search index is ready", "index", n.status.Index, "tokens", n.status.Tokens)
	}
}
