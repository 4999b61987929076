package counters_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/redistest"
)

// waitUntil polls a condition that another goroutine is about to make true.
func waitUntil(t testing.TB, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatal("what was waited for has not come within 10 s")
		}
		time.Sleep(time.Millisecond)
	}
}

func one(s *counters.Store, r quota.Request) quota.Result {
	return s.DecideAll(context.Background(), []quota.Request{r})[0]
}

func TestScriptIsBackAfterFlushAndRestart(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	store := counters.NewStore(client, counters.Options{})
	decide := func(when string) {
		t.Helper()
		waitUntil(t, func() bool { return client.Ping(context.Background()).Err() == nil })
		if r := one(store, quota.Request{Token: "T", Cost: 1}); r.Err != nil || !r.Allowed {
			t.Errorf("%s: %+v", when, r)
		}
	}
	decide("on a server that has never seen the script")
	if err := client.ScriptFlush(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	decide("after SCRIPT FLUSH")
	server.Restart()
	decide("after a restart")
}

// A request whose answer is lost may have been counted: sending it again, as the
// client does by default with its three retries, would count it twice or more.
func TestALostAnswerIsNotDecidedTwice(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: 100 * time.Millisecond})
	defer client.Close()
	store := counters.NewStore(client, counters.Options{})
	if err := store.Check(context.Background()); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	r := one(store, quota.Request{Token: "T", Cost: 1})
	server.Resume()
	if !errors.Is(r.Err, counters.ErrUnavailable) || !counters.MayHaveCounted(r.Err) {
		t.Errorf("without an answer: %v, which may have counted", r.Err)
	}
	inspect := server.Client()
	waitUntil(t, func() bool { return inspect.DBSize(context.Background()).Val() == 1 })
	key := inspect.Keys(context.Background(), "*").Val()[0]
	if used := inspect.Get(context.Background(), key).Val(); used != "1" {
		t.Errorf("%s = %s after one request", key, used)
	}
	server.Kill()
	if r := one(store, quota.Request{Token: "T", Cost: 1}); !errors.Is(r.Err, counters.ErrUnavailable) {
		t.Errorf("without a server: %+v", r)
	}
}

func TestWithoutAServerNothingCanHaveCounted(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	store := counters.NewStore(server.Client(), counters.Options{})
	if err := store.Check(context.Background()); !errors.Is(err, counters.ErrUnavailable) {
		t.Errorf("Check: %v", err)
	}
	if r := one(store, quota.Request{Token: "T", Cost: 1}); !errors.Is(r.Err, counters.ErrUnavailable) || counters.MayHaveCounted(r.Err) {
		t.Errorf("decision: %v, which cannot have counted", r.Err)
	}
}

func TestCountersOutliveTheirMinuteByGrace(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	clock := counters.NewServerClock(client)
	store := counters.NewStore(client, counters.Options{Grace: 5 * time.Minute, Clock: clock})
	day := quota.Limit{Name: "day", Quota: 1, Window: 24 * time.Hour}
	r := one(store, quota.Request{Token: "T", Resource: "search", Cost: 1, Limits: []quota.Limit{day}})
	refused := one(store, quota.Request{Token: "T", Resource: "search", Cost: 1, Limits: []quota.Limit{day}})
	minute := quota.Minute(r.At)
	for key, expireAt := range map[string]int64{
		ns.Usage("T", "search", minute):                      (minute+1)*60_000 + 300_000,
		ns.Rejected("T", "search", quota.Minute(refused.At)): (quota.Minute(refused.At)+1)*60_000 + 300_000,
		ns.Limit("T", "day", day.WindowStart(r.At)):          day.WindowEnd(r.At) + 5_000,
	} {
		if got := client.PExpireTime(ctx, key).Val().Milliseconds(); got != expireAt {
			t.Errorf("%s expires at %d, want %d", key, got, expireAt)
		}
	}
	if n := client.DBSize(ctx).Val(); n != 3 {
		t.Errorf("%d keys, want 3", n)
	}
	server, err := client.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	if now, err := clock.Now(ctx); err != nil || max(now-server.UnixMilli(), server.UnixMilli()-now) > 500 {
		t.Errorf("the clock is at %d, %v; Redis's at %d", now, err, server.UnixMilli())
	}
}
