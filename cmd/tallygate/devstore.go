package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/service"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

// devStore is where dev counts: in process or in Redis.
type devStore struct {
	name   string
	decide enforcer.Store
	feed   tracker.Feed
	ledger tracker.Ledger
	// settings returns what administrators set; its events go to the tracker or,
	// where there is no Redis to keep them, to the bus at once.
	settings func(bus usage.Publisher) conf.Store
	events   func(bus usage.Publisher) func(ctx context.Context) error // forwards those that Redis keeps
	drain    func(ctx context.Context) error                           // waits for ctx, then for what is on its way
	close    func()
}

func openStore(ctx context.Context, c *config.Config, s *service.Service, kept *history.Store) (*devStore, error) {
	if c.Redis.URL != "" {
		return openRedis(ctx, c, s)
	}
	store := memory.New(memory.Options{Grace: c.Counters.Grace})
	// A minute that was begun in an earlier run goes on, so that the absolute
	// values that this run publishes contain those of that run.
	var recent []usage.Record
	since := time.Now().Add(-c.Counters.Grace).Unix() / 60
	if err := kept.Recent(ctx, since, func(r usage.Record) error { recent = append(recent, r); return nil }); err != nil {
		return nil, err
	}
	store.Restore(recent)
	return &devStore{
		name: "in process", decide: store, feed: store, ledger: store,
		settings: func(bus usage.Publisher) conf.Store { return conf.NewMemory(bus) },
		events:   func(usage.Publisher) func(context.Context) error { return wait },
		drain:    wait,
		close:    func() {},
	}, nil
}

func openRedis(ctx context.Context, c *config.Config, s *service.Service) (*devStore, error) {
	client, err := service.NewRedis(c.Redis)
	if err != nil {
		return nil, err
	}
	if err := service.PingRedis(ctx, client, c.Redis); err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	namespace := counters.Namespace(c.Namespace)
	group := counters.NewGroup(counters.NewStore(client, counters.Options{Namespace: namespace, Grace: c.Counters.Grace}), counters.GroupOptions{})
	feed := tracker.NewRedisFeed(client, tracker.FeedOptions{Namespace: namespace, KeepConfig: !c.Tracker.ManageNotifications, Log: s.Log})
	if err := feed.Check(ctx); err != nil {
		return nil, err
	}
	return &devStore{
		name: c.Redis.URL.String(), decide: group, feed: feed,
		ledger:   tracker.NewRedisLedger(client, tracker.RedisOptions{Namespace: namespace, Grace: c.Counters.Grace, Log: s.Log}),
		settings: func(usage.Publisher) conf.Store { return conf.NewRedis(client, c.Namespace) },
		events: func(bus usage.Publisher) func(context.Context) error {
			return tracker.NewForwarder(client, bus, tracker.ForwarderOptions{Namespace: namespace, Log: s.Log}).Run
		},
		drain: func(ctx context.Context) error {
			<-ctx.Done()
			flush, cancel := service.Linger(ctx, c.Enforcer.DrainTimeout)
			defer cancel()
			return group.Close(flush)
		},
		close: func() { _ = client.Close() },
	}, nil
}

// wait is a part with nothing to do.
func wait(ctx context.Context) error { <-ctx.Done(); return nil }

// settle brings into the history what the counters hold already, so that
// whatever the history grows by afterwards was decided afterwards.
func settle(ctx context.Context, ledger tracker.Ledger, kept *history.Store) error {
	var failed error
	err := ledger.Scan(ctx, func(cells []usage.Key) {
		if failed != nil || len(cells) == 0 {
			return
		}
		var applied []usage.Applied
		if applied, failed = ledger.Apply(ctx, cells); failed != nil {
			return
		}
		records := make([]usage.Record, len(applied))
		for i, a := range applied {
			records[i] = a.Record
		}
		failed = kept.Ingest(ctx, usage.Batch{Records: records})
	})
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("account for the counters that are there already: %w", err)
	}
	return nil
}
