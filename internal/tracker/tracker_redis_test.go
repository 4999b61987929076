package tracker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/bustest"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// start runs a tracker on b, ready when start returns, until the returned function
// is called, which returns what Run returned.
func start(t testing.TB, b *bench, publisher usage.Publisher, reg prometheus.Registerer) (stop func() error) {
	t.Helper()
	client := b.server.Client()
	tr := tracker.New(
		tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}),
		tracker.NewRedisLedger(client, tracker.RedisOptions{Log: quiet}),
		publisher, tracker.Options{FlushEvery: 10 * time.Millisecond, Log: quiet, Registerer: reg},
	)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- tr.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = stop() })
	until(t, "the tracker is ready", func() bool { return tr.Ready(ctx) == nil })
	return stop
}

// history consumes a bus as the indexer does.
func history(t *testing.T, bus *localbus.Bus) *bustest.Account {
	account := bustest.NewAccount()
	bustest.Consume(t, bus, account.Handle)
	return account
}

func admitted(records map[usage.Key]usage.Totals, id token.ID) int64 {
	var sum int64
	for key, totals := range records {
		if key.Token == id {
			sum += totals.Admitted
		}
	}
	return sum
}

func TestWhatWasCountedBeforeTheStartIsFound(t *testing.T) {
	b := newBench(t)
	m := b.minute()
	b.count(ns.Usage("t", "r", m-5), 4)
	b.classic(ns.Foreign("t", int(m%60)))
	bus := localbus.New(0)
	reg := prometheus.NewRegistry()
	start(t, b, bus, reg)
	history(t, bus).Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return admitted(records, "t") == 5
	})
	if n := value(t, reg, "recovered_units_total"); n != 5 {
		t.Errorf("%v units recovered", n)
	}
}

// The subscription is cut again and again, scripts are flushed, and the tracker is
// stopped and another one started, all in mid-load; the account is exact.
func TestAccountIsExactThroughFaults(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	bus := localbus.New(0)
	account := history(t, bus)
	stop := start(t, b, bus, nil)
	var want [10]atomic.Int64
	id := func(i int) token.ID { return token.ID("t" + strconv.Itoa(i)) }
	done := make(chan struct{})
	var load sync.WaitGroup
	for w := range 3 {
		load.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(w)))
			for {
				select {
				case <-done:
					return
				default:
				}
				i, units, m := r.IntN(len(want)), 1+r.Int64N(9), b.minute()
				if r.IntN(2) == 0 {
					b.classic(ns.Foreign(id(i), int(m%60)))
					units = 1
				} else {
					b.count(ns.Usage(id(i), "search", m), units)
				}
				want[i].Add(units)
			}
		})
	}
	progress := func() {
		had := admitted(account.Records(), id(0))
		until(t, "the account grows", func() bool { return admitted(account.Records(), id(0)) > had })
	}
	for range 3 {
		progress()
		b.client.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
		progress()
		b.client.ScriptFlush(ctx)
		progress()
		if err := stop(); err != nil {
			t.Error(err)
		}
		stop = start(t, b, bus, nil)
	}
	progress()
	close(done)
	load.Wait()
	if err := stop(); err != nil { // drains: nothing is found later
		t.Fatal(err)
	}
	for i := range want {
		if got := b.meta(id(i)).Ops; got != want[i].Load() {
			t.Errorf("ops of %s is %d, counted %d", id(i), got, want[i].Load())
		}
	}
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		for i := range want {
			if admitted(records, id(i)) != want[i].Load() {
				return false
			}
		}
		return true
	})
}

// broken is a publisher that fails while down.
type broken struct {
	usage.Publisher
	down atomic.Bool
	hits atomic.Int64
}

var errDown = errors.New("the bus is away")

func (p *broken) Publish(ctx context.Context, batch usage.Batch) error {
	p.hits.Add(1)
	if p.down.Load() {
		return errDown
	}
	return p.Publisher.Publish(ctx, batch)
}

// Applying goes on while the bus is away; the backlog is the latest value of each
// cell, whatever happened meanwhile.
func TestBusAwayCostsOneEntryPerCell(t *testing.T) {
	b := newBench(t)
	bus := localbus.New(0)
	account := history(t, bus)
	publisher := &broken{Publisher: bus}
	publisher.down.Store(true)
	reg := prometheus.NewRegistry()
	stop := start(t, b, publisher, reg)
	m := b.minute()
	for i := range int64(50) {
		b.count(ns.Usage("t", "", m), 1)
		until(t, "applied although the bus is away", func() bool { return b.meta("t").Ops == i+1 })
	}
	if n := value(t, reg, "backlog_records"); n > 1 {
		t.Errorf("%v records in the backlog", n)
	}
	if value(t, reg, "lag_seconds") == 0 {
		t.Error("no lag though the bus is away")
	}
	publisher.down.Store(false)
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return admitted(records, "t") == 50
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The publish was lost after applied had moved, and the tracker with it: the next
// one republishes every cell in grace.
func TestARescanRepublishesWhatAnotherTrackerLost(t *testing.T) {
	b := newBench(t)
	m := b.minute()
	b.count(ns.Usage("t", "", m), 7)
	last := b.apply(usage.Key{Token: "t", Minute: m})[0].Last // and never published
	bus := localbus.New(0)
	start(t, b, bus, nil)
	history(t, bus).Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return records[usage.Key{Token: "t", Minute: m}] == usage.Totals{Admitted: 7, Last: last}
	})
}

func TestDrainThatCannotFinishSaysWhatIsLeft(t *testing.T) {
	b := newBench(t)
	b.count(ns.Usage("t", "", b.minute()), 7)
	publisher := &broken{Publisher: localbus.New(0)}
	publisher.down.Store(true)
	client := b.server.Client()
	tr := tracker.New(tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}), b.ledger, publisher,
		tracker.Options{FlushEvery: time.Millisecond, DrainTimeout: 50 * time.Millisecond, Log: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() { result <- tr.Run(ctx) }()
	until(t, "a first try to publish", func() bool { return publisher.hits.Load() > 0 })
	cancel()
	if err := <-result; !errors.Is(err, errDown) {
		t.Errorf("Run = %v", err)
	}
}
