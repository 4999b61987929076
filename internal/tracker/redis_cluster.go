package tracker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/usage"
)

// reconcileEvery is how often the feed compares the masters of a Cluster with
// those that it follows.
const reconcileEvery = time.Second

// clusterWatch is the subscriptions to the masters of a Cluster. A node publishes
// only what happens on itself, and the cluster's client subscribes to one node
// only, so there is one subscription for each.
type clusterWatch struct {
	feed    *RedisFeed
	changed func(usage.Key)
	resync  func()
	nodes   map[string]*nodeWatch // by address
	failed  chan error            // what trying again cannot mend
}

type nodeWatch struct {
	client *redis.Client
	stop   context.CancelFunc
	done   chan struct{}
}

func (f *RedisFeed) watchCluster(ctx context.Context, cluster *redis.ClusterClient, changed func(usage.Key), resync func()) error {
	w := &clusterWatch{feed: f, changed: changed, resync: resync, nodes: map[string]*nodeWatch{}, failed: make(chan error, 1)}
	defer w.stopAll()
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for down := false; ; {
		masters, err := mastersOf(ctx, cluster)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !down:
			f.opts.Log.Warn("the tracker cannot learn who the masters are; it keeps trying", "error", err)
		case err == nil:
			w.reconcile(ctx, masters)
		}
		down = err != nil
		cluster.ReloadState(ctx) // for the next turn: it works in the background
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.failed:
			return err
		case <-tick.C:
		}
	}
}

// mastersOf returns a client of each master by address.
func mastersOf(ctx context.Context, cluster *redis.ClusterClient) (map[string]*redis.Client, error) {
	var mu sync.Mutex
	masters := map[string]*redis.Client{}
	err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[master.Options().Addr] = master
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the masters: %w", err)
	}
	return masters, nil
}

// reconcile follows new masters, and no longer those that are none.
func (w *clusterWatch) reconcile(ctx context.Context, masters map[string]*redis.Client) {
	for addr, node := range w.nodes {
		// The cluster's client makes another client when an address comes back.
		if masters[addr] == node.client {
			continue
		}
		node.stop()
		<-node.done
		delete(w.nodes, addr)
		w.feed.opts.Log.Info("the tracker follows a master no longer", "server", addr)
		w.resync() // its counters are elsewhere now
	}
	for addr, client := range masters {
		if w.nodes[addr] != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		node := &nodeWatch{client, stop, make(chan struct{})}
		w.nodes[addr] = node
		go func() {
			defer close(node.done)
			if err := w.feed.watchNode(ctx, client, w.changed, w.resync); err != nil {
				select {
				case w.failed <- fmt.Errorf("%s: %w", addr, err):
				default: // one error is enough
				}
			}
		}()
	}
}

// stopAll ends every subscription and waits until each has been heard out.
func (w *clusterWatch) stopAll() {
	for _, node := range w.nodes {
		node.stop()
	}
	for _, node := range w.nodes {
		<-node.done
	}
}
