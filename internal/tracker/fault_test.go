package tracker_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tallygate/tallygate/internal/kafkatest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/bustest"
	"github.com/tallygate/tallygate/internal/usage/kafkabus"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// deaf is a share whose tracker is dead to the others from some time on.
type deaf struct {
	tracker.Share
	dead atomic.Bool
}

func (s *deaf) Beat(ctx context.Context) (bool, error) {
	if s.dead.Load() {
		return false, errors.New("dead")
	}
	return s.Share.Beat(ctx)
}

// stuck is a ledger that gets nothing done.
type stuck struct{ tracker.Ledger }

func (stuck) Apply(context.Context, []usage.Key) ([]usage.Applied, error) {
	return nil, errors.New("stuck")
}

// Redis cuts off a subscriber that does not keep up: a burst in one script is more
// than the output buffer takes. The feed connects again and the scan finds it all.
func TestBeingCutOffByTheOutputBufferLosesNothing(t *testing.T) {
	b := newBench(t, "--client-output-buffer-limit", "pubsub 64kb 16kb 1")
	bus := localbus.New(0)
	account := history(t, bus)
	reg := prometheus.NewRegistry()
	start(t, b, bus, reg)
	const bursts, tokens, each = 3, 200, 20
	m := b.minute()
	burst := redis.NewScript(`for i = 1, ARGV[1] do for j = 1, ARGV[2] do redis.call('INCRBY', '{api:t' .. i .. '}:' .. ARGV[3] .. ':search', 2) end end`)
	for range bursts {
		if err := burst.Run(context.Background(), b.client, nil, tokens, each, m).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		for i := 1; i <= tokens; i++ {
			if admitted(records, token.ID("t"+strconv.Itoa(i))) != 2*bursts*each {
				return false
			}
		}
		return true
	})
	if n := value(t, reg, "rescans_total"); n < 2 {
		t.Errorf("%v scans: nobody was cut off, and the test proves nothing", n)
	}
	if value(t, reg, "recovered_units_total") == 0 {
		t.Error("nothing was recovered by a scan")
	}
}

// Redis stands still for longer than a subscription may be silent, as with a
// suspended machine: the feed gives the connection up and comes back.
func TestAServerThatStandsStillIsFollowedAgain(t *testing.T) {
	b := newBench(t)
	bus := localbus.New(0)
	account := history(t, bus)
	track(t, b.client, bus)
	m := b.minute()
	b.count(ns.Usage("t", "", m), 1)
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return admitted(records, "t") == 1
	})
	b.server.Pause()
	time.Sleep(7 * time.Second) // the length of the outage, not a synchronisation
	b.server.Resume()
	b.count(ns.Usage("t", "", m), 1)
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return admitted(records, "t") == 2
	})
}

// Kafka is away while counters change and comes back: the records that count
// arrive, and meanwhile the account beside the counters goes on.
func TestKafkaAwayLosesNothing(t *testing.T) {
	b := newBench(t)
	broker := kafkatest.Start(t, kfake.NumBrokers(1))
	bus, err := kafkabus.New(kafkabus.Options{Brokers: []string{broker.Addr}, Partitions: 2, Client: kafkatest.Impatient(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bus.Close)
	account := bustest.NewAccount()
	bustest.Consume(t, bus, account.Handle)
	client := b.server.Client()
	tr := tracker.New(tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}), b.ledger, bus,
		tracker.Options{FlushEvery: 10 * time.Millisecond, PublishTimeout: 200 * time.Millisecond, Log: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	until(t, "ready", func() bool { return tr.Ready(ctx) == nil })
	m := b.minute()
	want := int64(0)
	for i := range 3 {
		if i == 1 {
			broker.Stop()
		}
		for range 20 {
			b.count(ns.Usage("t", "", m), 1)
			want++
		}
		until(t, "applied", func() bool { return b.meta("t").Ops == want })
	}
	broker.Start()
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return admitted(records, "t") == want
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
