package counters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Clock tells the time by which decisions are made, in unix ms. All enforcers of
// one Redis must agree on it, since it chooses the keys.
type Clock interface {
	Now(ctx context.Context) (int64, error)
}

// ServerClock is Redis's clock, kept by an offset to this process's monotonic
// clock, which is measured again every so often. On a cluster it is the median of
// the masters' clocks. It is safe for concurrent use.
type ServerClock struct {
	client    redis.UniversalClient
	every     time.Duration
	start     time.Time // zero of the monotonic clock
	offset    atomic.Int64
	measured  atomic.Int64 // monotonic ns of the last measurement; 0 before the first
	measuring sync.Mutex
}

// remeasure is how often the offset is measured again: clocks that are kept by
// NTP drift by less than a millisecond in that time.
const remeasure = 10 * time.Second

// NewServerClock returns the clock of client's servers.
func NewServerClock(client redis.UniversalClient) *ServerClock {
	return &ServerClock{client: client, every: remeasure, start: time.Now()}
}

// Now returns the time. The first call asks Redis; later ones do not wait, a
// measurement that is due runs beside them.
func (c *ServerClock) Now(ctx context.Context) (int64, error) {
	elapsed := time.Since(c.start)
	switch measured := c.measured.Load(); {
	case measured == 0:
		if err := c.Measure(ctx); err != nil {
			return 0, err
		}
	case int64(elapsed)-measured > int64(c.every) && c.measuring.TryLock():
		go func() {
			defer c.measuring.Unlock()
			// The caller may be gone before Redis answers; a failure leaves the
			// offset as it was and the next call tries again.
			_ = c.measure(context.WithoutCancel(ctx))
		}()
	}
	return (int64(elapsed) + c.offset.Load()) / int64(time.Millisecond), nil
}

// Measure asks Redis for its time now.
func (c *ServerClock) Measure(ctx context.Context) error {
	c.measuring.Lock()
	defer c.measuring.Unlock()
	return c.measure(ctx)
}

func (c *ServerClock) measure(ctx context.Context) error {
	offset, err := c.serverOffset(ctx)
	if err != nil {
		return fmt.Errorf("measure Redis's clock: %w", err)
	}
	c.offset.Store(int64(offset))
	c.measured.Store(max(1, int64(time.Since(c.start))))
	return nil
}

func (c *ServerClock) serverOffset(ctx context.Context) (time.Duration, error) {
	cluster, ok := c.client.(*redis.ClusterClient)
	if !ok {
		return c.nodeOffset(ctx, c.client)
	}
	var mu sync.Mutex
	var offsets []time.Duration
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		offset, err := c.nodeOffset(ctx, node)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		offsets = append(offsets, offset)
		return nil
	})
	if len(offsets) == 0 {
		return 0, errors.Join(err, errors.New("no master answered"))
	}
	slices.Sort(offsets)
	return offsets[len(offsets)/2], nil
}

// nodeOffset is a node's unix time less our monotonic time: of three measurements
// the one with the shortest round trip, which is off by at most half of that.
func (c *ServerClock) nodeOffset(ctx context.Context, node redis.Cmdable) (offset time.Duration, err error) {
	best := time.Duration(-1)
	for range 3 {
		sent := time.Since(c.start)
		t, err := node.Time(ctx).Result()
		if err != nil {
			return 0, err
		}
		trip := time.Since(c.start) - sent
		if best < 0 || trip < best {
			best, offset = trip, time.Duration(t.UnixNano())-sent-trip/2
		}
	}
	return offset, nil
}
