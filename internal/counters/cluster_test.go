package counters_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/quota/quotatest"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
)

// mixed is a policy that has one limit of each algorithm, none of which refuses.
func mixed() []quota.Limit {
	calendar, err := quota.NewCalendar(quota.CalendarOptions{Unit: "month"})
	if err != nil {
		panic(err)
	}
	return []quota.Limit{
		{Name: "minute", Quota: 1e9, Window: time.Minute, Resources: []string{"search"}},
		{Name: "hour", Quota: 1e9, Window: time.Hour},
		{Name: "first", Quota: 1e9, Window: time.Hour, FromFirst: true},
		{Name: "month", Algorithm: quota.CalendarWindow, Quota: 1e9, Calendar: calendar},
		{Name: "sliding", Algorithm: quota.SlidingWindow, Quota: 1e9, Window: time.Hour, Precision: time.Minute},
		{Name: "log", Algorithm: quota.SlidingLog, Quota: 1e6, Window: time.Hour},
		{Name: "bucket", Algorithm: quota.TokenBucket, Quota: 1e6, Window: time.Minute},
	}
}

// On three real nodes a call that touched two slots would be refused, and one that
// was counted on the old and the new owner of a slot would be counted twice.
func TestOnAClusterEveryCallStaysInItsSlotAlsoWhileSlotsMove(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	client := cluster.Client()

	t.Run("conformance", func(t *testing.T) {
		quotatest.Run(t, func(t *testing.T, clock *quotatest.Clock) quotatest.Subject { return subject(t, client, clock) })
	})

	t.Run("while slots move", func(t *testing.T) {
		ctx := context.Background()
		store := counters.NewStore(client, counters.Options{})
		const id = token.ID("moving")
		var allowed, failed atomic.Int64
		minutes := sync.Map{}
		stop := make(chan struct{})
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					r := store.DecideAll(ctx, []quota.Request{
						{Token: id, Resource: "search", Cost: 1, Limits: mixed()},
						{Token: "other", Resource: "search", Cost: 1, Limits: mixed()},
					})[0]
					switch {
					case r.Err != nil:
						failed.Add(1)
						t.Error(r.Err)
					case r.Allowed:
						allowed.Add(1)
						minutes.Store(quota.Minute(r.At), true)
					}
				}
			})
		}
		slot := int(client.ClusterKeySlot(ctx, ns.Usage(id, "search", 1)).Val())
		for move := range 6 {
			moveTo(t, cluster, client, slot, move)
		}
		close(stop)
		callers.Wait()
		var counted int64
		minutes.Range(func(minute, _ any) bool {
			n, err := client.Get(ctx, ns.Usage(id, "search", minute.(int64))).Int64()
			if err != nil {
				t.Error(err)
			}
			counted += n
			return true
		})
		if counted != allowed.Load() || counted == 0 {
			t.Errorf("%d units counted, %d allowed, %d failed", counted, allowed.Load(), failed.Load())
		}
	})
}

// moveTo moves a slot from its owner to another node.
func moveTo(t *testing.T, cluster *redistest.Cluster, client *redis.ClusterClient, slot, move int) {
	t.Helper()
	node, err := client.MasterForKey(context.Background(), ns.Usage("moving", "search", 1))
	if err != nil {
		t.Fatal(err)
	}
	var from, to *redistest.Server
	for i, s := range cluster.Nodes {
		if s.Addr == node.Options().Addr {
			from, to = s, cluster.Nodes[(i+1+move%2)%len(cluster.Nodes)]
		}
	}
	if from == nil {
		t.Fatalf("no node at %s", node.Options().Addr)
	}
	cluster.MoveSlot(slot, from, to)
	waitUntil(t, func() bool {
		client.ReloadState(context.Background())
		now, err := client.MasterForKey(context.Background(), ns.Usage("moving", "search", 1))
		return err == nil && now.Options().Addr == to.Addr
	})
}
