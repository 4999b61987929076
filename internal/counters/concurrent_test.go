package counters_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/quota/quotatest"
	"github.com/tallygate/tallygate/internal/redistest"
)

// Four enforcers, each with its own connections and its own measure of Redis's
// clock, compete for one token: in no stretch of time of a window's length are
// more units admitted than the quota, and none that would fit is refused for good.
func TestNoWindowExceedsItsQuotaWithFourEnforcers(t *testing.T) {
	server := redistest.Start(t)
	const quotaUnits = 40
	for _, l := range []quota.Limit{
		{Name: "fixed", Quota: quotaUnits, Window: time.Second},
		{Name: "first", Quota: quotaUnits, Window: time.Second, FromFirst: true},
		{Name: "sliding", Algorithm: quota.SlidingWindow, Quota: quotaUnits, Window: time.Second, Precision: 100 * time.Millisecond},
		{Name: "log", Algorithm: quota.SlidingLog, Quota: quotaUnits, Window: time.Second},
		{Name: "bucket", Algorithm: quota.TokenBucket, Quota: quotaUnits, Window: time.Second},
	} {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			limits := []quota.Limit{l}
			var mu sync.Mutex
			var admitted []int64 // unix ms
			var callers sync.WaitGroup
			deadline := time.Now().Add(2500 * time.Millisecond)
			for range 4 {
				client := redis.NewClient(&redis.Options{Addr: server.Addr})
				defer client.Close()
				group := counters.NewGroup(counters.NewStore(client, counters.Options{}), counters.GroupOptions{})
				for range 4 {
					callers.Go(func() {
						for time.Now().Before(deadline) {
							r := group.Decide(ctx, quota.Request{Token: "T", Resource: l.Name, Cost: 1, Limits: limits})
							if r.Err != nil {
								t.Error(r.Err)
								return
							}
							if r.Allowed {
								mu.Lock()
								admitted = append(admitted, r.At)
								mu.Unlock()
							}
						}
					})
				}
			}
			callers.Wait()
			if n := int64(len(admitted)); n < 2*quotaUnits {
				t.Errorf("%d admitted in 2.5 windows, want at least two quotas", n)
			}
			if err := exceeds(&l, admitted); err != nil {
				t.Error(err)
			}
		})
	}
}

// clocks bounds by how much, in ms, the enforcers' ideas of Redis's time differ on
// a busy machine. A decision that comes late is counted at the latest time that the
// limit has seen, but says its own.
const clocks = 100

// exceeds checks what each algorithm promises of the times of admissions.
func exceeds(l *quota.Limit, admitted []int64) error {
	inWindow := map[int64]int64{}
	most, span := l.Quota, l.Window.Milliseconds()
	switch {
	case l.Algorithm == quota.SlidingLog:
		span -= clocks
	case l.Algorithm == quota.SlidingWindow:
		span -= clocks + l.Precision.Milliseconds()
	default: // a full bucket and its refill, two windows that touch
		most *= 2
	}
	for _, at := range admitted {
		inWindow[l.WindowStart(at)]++
		if n := inWindow[l.WindowStart(at)]; n > l.Quota && l.IsCounter() {
			return fmt.Errorf("%d admitted in the window of %d, quota %d", n, at, l.Quota)
		}
		var inSpan int64
		for _, other := range admitted {
			if other > at-span && other <= at {
				inSpan++
			}
		}
		if inSpan > most {
			return fmt.Errorf("%d admitted in the %d ms before %d, at most %d may be", inSpan, span, at, most)
		}
	}
	return nil
}

// FuzzScripts runs sequences that the fuzzer shapes against the oracle: decide.lua,
// adjust.lua and release.lua with every algorithm.
func FuzzScripts(f *testing.F) {
	client := redistest.Start(f).Client()
	clock := new(quotatest.Clock)
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		epoch := quotatest.Epoch()
		clock.Set(epoch)
		quotatest.CheckDrawn(t, subject(f, client, clock), clock, epoch)
	}))
}
