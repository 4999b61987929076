package tracker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/usage"
)

// FeedOptions of NewRedisFeed; the zero value of each field stands for its
// default.
type FeedOptions struct {
	// Namespace of the counters, overriding counters.DefaultNamespace.
	Namespace counters.Namespace
	// KeepConfig makes the feed check notify-keyspace-events and never set it.
	KeepConfig bool
	// Log gets what an operator should know, overriding slog.Default.
	Log *slog.Logger
}

// RedisFeed is the Feed of keyspace notifications. A notification is a hint: it
// may be lost, and it says that a counter changed, not to what.
type RedisFeed struct {
	client redis.UniversalClient
	opts   FeedOptions
}

var _ Feed = (*RedisFeed)(nil)

// NewRedisFeed returns a feed of the database that client uses.
func NewRedisFeed(client redis.UniversalClient, opts FeedOptions) *RedisFeed {
	if opts.Namespace == "" {
		opts.Namespace = counters.DefaultNamespace
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	return &RedisFeed{client, opts}
}

// channel is where a node publishes that INCRBY and its kin changed a string.
// Redis calls all of them incrby: INCR, INCRBY, DECR, in scripts and transactions.
func (f *RedisFeed) channel(node *redis.Client) string {
	return "__keyevent@" + strconv.Itoa(node.Options().DB) + "__:incrby"
}

// Check turns notifications on, or says why it cannot. The error wraps
// ErrNotifications if trying again will not help.
func (f *RedisFeed) Check(ctx context.Context) error {
	switch client := f.client.(type) {
	case *redis.Client:
		return f.ensureNotifications(ctx, client)
	case *redis.ClusterClient:
		return client.ForEachMaster(ctx, f.ensureNotifications)
	}
	return fmt.Errorf("a tracker cannot follow a %T", f.client)
}

// Watch implements Feed: over one subscription to a standalone server or a
// Sentinel's master, or over one to each master of a Cluster.
func (f *RedisFeed) Watch(ctx context.Context, changed func(usage.Key), resync func()) error {
	switch client := f.client.(type) {
	case *redis.Client:
		return f.watchNode(ctx, client, changed, resync)
	case *redis.ClusterClient:
		return f.watchCluster(ctx, client, changed, resync)
	}
	return fmt.Errorf("a tracker cannot follow a %T", f.client)
}

const (
	// idleLimit is how long a subscription may be silent before it is asked
	// whether it is alive, and then before it is given up.
	idleLimit = 3 * time.Second
	// retryPause is how long the feed waits before it connects again.
	retryPause = 250 * time.Millisecond
	// hearOutLimit bounds how long Watch hears a subscription out at its end.
	hearOutLimit = 2 * time.Second
)

// watchNode follows one server over all of its connections.
func (f *RedisFeed) watchNode(ctx context.Context, node *redis.Client, changed func(usage.Key), resync func()) error {
	log := f.opts.Log.With("server", node.Options().Addr)
	for down := false; ; {
		err := f.subscribe(ctx, node, changed, func() {
			if down {
				log.Info("the tracker follows the server again")
				down = false
			}
			resync()
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrNotifications):
			return err
		case !down:
			log.Warn("the tracker lost its subscription; it connects again and scans for what it misses", "error", err)
			down = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retryPause):
		}
	}
}

// subscribe follows one server over one connection until that breaks or ctx ends.
// In the latter case it hears out what the server had sent before.
func (f *RedisFeed) subscribe(ctx context.Context, node *redis.Client, changed func(usage.Key), resync func()) error {
	// The connection outlives ctx for as long as it takes to hear it out.
	live := context.WithoutCancel(ctx)
	sub := node.Subscribe(live, f.channel(node))
	defer sub.Close()
	if _, err := sub.ReceiveTimeout(live, idleLimit); err != nil {
		return f.subscribeError(err)
	}
	// A server that was restarted has forgotten the flags. Changes are heard from
	// here on, so what the scan finds late is not lost.
	if err := f.ensureNotifications(ctx, node); err != nil {
		return err
	}
	resync()

	// Pub/sub answers come in order: once the server answers this ping, all that
	// it published before the end of ctx has been heard.
	const goodbye = "goodbye"
	stop := context.AfterFunc(ctx, func() { _ = sub.Ping(live, goodbye) })
	defer stop()
	var end time.Time
	asked := false
	for {
		if ctx.Err() != nil && end.IsZero() {
			end = time.Now().Add(hearOutLimit)
		}
		if !end.IsZero() && time.Now().After(end) {
			return errors.New("the server does not answer; what it sent last may be missed")
		}
		message, err := sub.ReceiveTimeout(live, idleLimit)
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout() && !asked:
			asked = true
			if err := sub.Ping(live); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		asked = false
		switch m := message.(type) {
		case *redis.Message:
			if cell, ok := cellOf(f.opts.Namespace, m.Payload, time.Now()); ok {
				changed(cell)
			}
		case *redis.Pong:
			if m.Payload == goodbye {
				return nil
			}
		case *redis.Subscription:
			// The client connected again by itself, so something may be missing.
			return errors.New("the subscription was interrupted")
		}
	}
}
