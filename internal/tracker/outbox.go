package tracker

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/conf"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

//go:embed mirror.lua
var mirrorLua string

var mirrorScript = redis.NewScript(metadata.Lua + mirrorLua)

// ForwarderOptions of NewForwarder; the zero value of each field stands for its
// default.
type ForwarderOptions struct {
	// Namespace of the keys, overriding counters.DefaultNamespace.
	Namespace counters.Namespace
	// ScanEvery is the pause between two looks at all outboxes, overriding the
	// default 1 minute: hints of changes may be lost.
	ScanEvery time.Duration
	// Log gets what an operator should know, overriding slog.Default.
	Log *slog.Logger
}

// Forwarder puts the events on the bus that were written beside what they are
// about, and keeps the searchable part of a token's settings in its metadata.
//
//	conf:{api:T}      hash, what is set for the token
//	events:{api:T}    list, its events that are not on the bus yet: its outbox
//	channel api:conf  says T when either has changed; a hint that may be lost
//
// An event leaves the outbox after the bus has it, so it arrives at least once;
// several forwarders do no harm.
type Forwarder struct {
	client    redis.UniversalClient
	publisher usage.Publisher
	opts      ForwarderOptions
}

// NewForwarder returns a forwarder; run it once with Run.
func NewForwarder(client redis.UniversalClient, publisher usage.Publisher, opts ForwarderOptions) *Forwarder {
	if opts.Namespace == "" {
		opts.Namespace = counters.DefaultNamespace
	}
	if opts.ScanEvery <= 0 {
		opts.ScanEvery = time.Minute
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	return &Forwarder{client, publisher, opts}
}

func (f *Forwarder) outboxPrefix() string { return "events:{" + string(f.opts.Namespace) + ":" }

// Run forwards until ctx ends. Whatever fails is tried again.
func (f *Forwarder) Run(ctx context.Context) error {
	sub := f.client.Subscribe(ctx, conf.Channel(string(f.opts.Namespace)))
	defer sub.Close()
	hints := sub.ChannelWithSubscriptions()
	tick := time.NewTicker(f.opts.ScanEvery)
	defer tick.Stop()
	for failing := false; ; {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			err = f.forwardAll(ctx)
		case hint, ok := <-hints:
			switch m := hint.(type) {
			case *redis.Message:
				err = f.forward(ctx, token.ID(m.Payload))
			case *redis.Subscription: // at first, and whenever hints may have been missed
				err = f.forwardAll(ctx)
			}
			if !ok {
				return errors.New("the subscription to changes of settings was closed")
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			f.opts.Log.Warn("events cannot be forwarded; they wait in their outboxes", "error", err)
		case err == nil && failing:
			f.opts.Log.Info("events are being forwarded again")
		}
		failing = err != nil
	}
}

// forwardAll forwards every outbox there is.
func (f *Forwarder) forwardAll(ctx context.Context) error {
	scan := func(ctx context.Context, node *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := node.ScanType(ctx, cursor, f.outboxPrefix()+"*", scanCount, "list").Result()
			if err != nil {
				return fmt.Errorf("scan the outboxes: %w", err)
			}
			for _, key := range keys {
				id := token.ID(strings.TrimSuffix(strings.TrimPrefix(key, f.outboxPrefix()), "}"))
				if err := f.forward(ctx, id); err != nil {
					return err
				}
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	switch client := f.client.(type) {
	case *redis.Client:
		return scan(ctx, client)
	case *redis.ClusterClient:
		return client.ForEachMaster(ctx, scan)
	}
	return fmt.Errorf("events cannot be forwarded from a %T", f.client)
}

// eventsPerPublish bounds the events of one Publish call.
const eventsPerPublish = 100

// forward empties one outbox. The metadata comes first: an event that is on the
// bus has been followed.
func (f *Forwarder) forward(ctx context.Context, id token.ID) error {
	if _, err := token.FromTag(string(id)); err != nil {
		return nil // somebody else's message: there is no such outbox
	}
	keys := []string{conf.Key(string(f.opts.Namespace), id), metadata.Key(string(f.opts.Namespace), id)}
	if err := mirrorScript.Run(ctx, f.client, keys).Err(); err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("mirror settings: %w", err)
	}
	for {
		entries, err := f.client.LRange(ctx, conf.EventsKey(string(f.opts.Namespace), id), 0, eventsPerPublish-1).Result()
		if err != nil {
			return fmt.Errorf("read an outbox: %w", err)
		}
		if len(entries) == 0 {
			return nil
		}
		var batch usage.Batch
		for _, entry := range entries {
			if err := usage.Decode([]byte(entry), &batch); err != nil {
				f.opts.Log.Error("removed an event that nobody can read", "key", conf.EventsKey(string(f.opts.Namespace), id), "error", err)
			}
		}
		if err := f.publisher.Publish(ctx, batch); err != nil {
			return fmt.Errorf("publish %d events: %w", len(batch.Events), err)
		}
		// By value: another forwarder may have removed some, and others were added.
		_, err = f.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, entry := range entries {
				pipe.LRem(ctx, conf.EventsKey(string(f.opts.Namespace), id), 1, entry)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("remove %d events from an outbox: %w", len(entries), err)
		}
	}
}
