package streams_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/bustest"
	"github.com/tallygate/tallygate/internal/usage/streams"
)

// fast makes what is about dead consumers happen while a test waits.
func fast(o streams.Options) streams.Options {
	o.ClaimAfter, o.Block = 200*time.Millisecond, 20*time.Millisecond
	o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	return o
}

func TestConformance(t *testing.T) {
	s := redistest.Start(t)
	n := 0
	bustest.Run(t, func(t *testing.T) bustest.Bus {
		n++
		stream := fmt.Sprintf("usage%d", n)
		return bustest.Bus{
			Publisher: streams.New(s.Client(), fast(streams.Options{Stream: stream})),
			Consumer: func(*testing.T) usage.Consumer {
				return streams.New(s.Client(), fast(streams.Options{Stream: stream}))
			},
		}
	})
}

func one(id token.ID) usage.Batch {
	return usage.Batch{Records: []usage.Record{{Key: usage.Key{Token: id, Minute: 1}, Totals: usage.Totals{Admitted: 1}}}}
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bustest.Limit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", bustest.Limit, what)
		}
	}
}

// The stream is cut behind the slowest group: one that reads and one that has
// stopped in the middle of an entry.
func TestTrimmingNeverRemovesWhatIsNotConsumed(t *testing.T) {
	s := redistest.Start(t)
	ctx, client := context.Background(), s.Client()
	quick := streams.New(s.Client(), fast(streams.Options{Group: "quick"}))
	slow := streams.New(s.Client(), fast(streams.Options{Group: "slow"}))
	if err := quick.Publish(ctx, one("a")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := slow.Consume(ctx, func(context.Context, usage.Batch) error { return broken }); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	account := bustest.NewAccount()
	bustest.Consume(t, quick, account.Handle)
	for i := range 200 {
		if err := quick.Publish(ctx, one(token.ID(fmt.Sprint("t", i)))); err != nil {
			t.Fatal(err)
		}
	}
	account.Until(t, func(r map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(r) == 201 })
	behind := bustest.NewAccount()
	bustest.Consume(t, slow, behind.Handle)
	behind.Until(t, func(r map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(r) == 201 })
	until(t, "both have consumed it and it is trimmed", func() bool { return client.XLen(ctx, "tallygate:usage").Val() <= 1 })
}

func TestAFullStreamRefuses(t *testing.T) {
	bus := streams.New(redistest.Start(t).Client(), fast(streams.Options{MaxEntries: 2}))
	ctx := context.Background()
	for range 2 {
		if err := bus.Publish(ctx, one("a")); err != nil {
			t.Fatal(err)
		}
	}
	if err := bus.Publish(ctx, one("a")); !errors.Is(err, streams.ErrFull) {
		t.Errorf("Publish = %v", err)
	}
}

// A consumer that ends takes its name along, unless it holds something that
// others will have to claim.
func TestConsumersLeaveTheirGroup(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	for holds, handle := range map[int]func(context.Context, usage.Batch) error{
		0: func(context.Context, usage.Batch) error { return nil },
		1: func(context.Context, usage.Batch) error { return errors.New("broken") },
	} {
		bus := streams.New(client, fast(streams.Options{Stream: fmt.Sprint("s", holds)}))
		if err := bus.Publish(ctx, one("t")); err != nil {
			t.Fatal(err)
		}
		handled := make(chan struct{}, 1)
		stop := bustest.Consume(t, bus, func(ctx context.Context, batch usage.Batch) error {
			handled <- struct{}{}
			return handle(ctx, batch)
		})
		<-handled
		_ = stop()
		if names := client.XInfoConsumers(ctx, fmt.Sprint("s", holds), "indexer").Val(); len(names) != holds {
			t.Errorf("%d names are left, want %d", len(names), holds)
		}
	}
}

// Redis restarts empty: the consumer makes its group again and goes on.
func TestConsumerSurvivesARestartOfRedis(t *testing.T) {
	s := redistest.Start(t)
	ctx := context.Background()
	bus := streams.New(s.Client(), fast(streams.Options{}))
	account := bustest.NewAccount()
	bustest.Consume(t, bus, account.Handle)
	for i, id := range []token.ID{"before", "after"} {
		until(t, "publish", func() bool { return bus.Publish(ctx, one(id)) == nil })
		account.Until(t, func(r map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(r) == i+1 })
		if i == 0 {
			s.Restart()
		}
	}
}

func TestConsumerStopsAtANewerMajorVersionAndPassesOverRubbish(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	add := func(values ...string) {
		if err := client.XAdd(ctx, &redis.XAddArgs{Stream: "tallygate:usage", Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	add("lines", "rubbish\n"+`{"v":"1.9","type":"usage","token":"t","minute":5,"admitted":2}`+"\n")
	add("other", "field")
	add("lines", `{"v":"2.0"}`)
	bus := streams.New(client, fast(streams.Options{}))
	// Read with the third entry, the first two are not consumed yet when it fails.
	account := bustest.NewAccount()
	if err := bus.Consume(ctx, account.Handle); !errors.Is(err, usage.ErrVersion) {
		t.Errorf("Consume = %v", err)
	}
	if n := client.XPending(ctx, "tallygate:usage", "indexer").Val().Count; n != 3 {
		t.Errorf("%d entries pending, want all 3 for the upgraded consumer", n)
	}
}
