package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/indexer"
	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// tape is a bus that holds a fixed list of batches and, like a real one, hands
// out again what was not handled.
type tape struct {
	batches  []usage.Batch
	consumed atomic.Int64
	onEach   func(i int) // called before batch i is handed out
}

func (p *tape) Consume(ctx context.Context, handle func(context.Context, usage.Batch) error) error {
	for i := int(p.consumed.Load()); i < len(p.batches); i++ {
		if p.onEach != nil {
			p.onEach(i)
		}
		if err := handle(ctx, p.batches[i]); err != nil {
			return err
		}
		p.consumed.Add(1)
	}
	return nil
}

func stream(batches int) []usage.Batch {
	now := time.Now().Unix() / 60
	all := make([]usage.Batch, batches)
	for i := range all {
		for j := range 20 {
			all[i].Records = append(all[i].Records, usage.Record{
				Key:    usage.Key{Token: token.ID(fmt.Sprint("t", j)), Minute: now - int64(i%7)},
				Totals: usage.Totals{Admitted: int64(i + j), Last: (now - int64(i%7)) * 60},
			})
		}
	}
	return all
}

// sum is what a stream amounts to.
func sum(batches []usage.Batch) (admitted int64) {
	cells := map[usage.Key]usage.Totals{}
	for _, b := range batches {
		for _, r := range b.Records {
			cells[r.Key] = cells[r.Key].Max(r.Totals)
		}
	}
	for _, t := range cells {
		admitted += t.Admitted
	}
	return admitted
}

func TestPostgresKilledInMidIngestLosesNothing(t *testing.T) {
	ctx := context.Background()
	pg := pgtest.Start(t)
	store, err := history.Open(ctx, pg.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	bus := &tape{batches: stream(60)}
	restarted := make(chan struct{})
	bus.onEach = func(i int) {
		if i == 20 {
			// Killed while batches go on; back once an attempt has failed.
			pg.Kill()
			go func() { defer close(restarted); pg.Restart() }()
		}
	}
	registry := prometheus.NewRegistry()
	x := indexer.New(bus, store, indexer.Options{RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond, Registerer: registry})
	if err := x.Run(ctx); err != nil {
		t.Fatal(err)
	}
	<-restarted
	got, err := store.Sum(ctx)
	if want := sum(bus.batches); got.Admitted != want || err != nil {
		t.Errorf("admitted in the history = %d, %v, want %d", got.Admitted, err, want)
	}
	if n := metric(t, registry, "tallygate_indexer_ingest_failures_total"); n == 0 {
		t.Error("no attempt failed: the server was not away")
	}
	if n := metric(t, registry, "tallygate_indexer_stalled"); n != 0 {
		t.Errorf("stalled = %v after the last batch was stored", n)
	}
}

func TestABatchThatCannotBeStoredStaysOnTheBus(t *testing.T) {
	pg := pgtest.Start(t)
	store, err := history.Open(context.Background(), pg.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	pg.Kill()
	bus := &tape{batches: stream(1)}
	ctx, cancel := context.WithCancel(context.Background())
	registry := prometheus.NewRegistry()
	x := indexer.New(bus, store, indexer.Options{RetryMin: time.Millisecond, Registerer: registry})
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	deadline := time.Now().Add(20 * time.Second)
	for metric(t, registry, "tallygate_indexer_ingest_failures_total") == 0 {
		if time.Now().After(deadline) {
			t.Fatal("no attempt failed")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run after its context ended: %v", err)
	}
	if n := bus.consumed.Load(); n != 0 {
		t.Errorf("%d batches consumed, none of which is stored", n)
	}
}

// A record that the database refuses must not hold up those behind it for ever.
func TestNonsenseIsRefusedAndCountedAndTheRestIsStored(t *testing.T) {
	ctx := context.Background()
	store := openSQLite(t)
	now := time.Now().Unix() / 60
	good := usage.Record{Key: usage.Key{Token: "good", Minute: now}, Totals: usage.Totals{Admitted: 5, Last: now * 60}}
	nonsense := func(change func(*usage.Record)) usage.Record {
		r := good
		change(&r)
		return r
	}
	batch := usage.Batch{
		Records: []usage.Record{
			nonsense(func(r *usage.Record) { r.Token = "" }),
			nonsense(func(r *usage.Record) { r.Token = "a\x00b" }),
			nonsense(func(r *usage.Record) { r.Resource = "\xff" }),
			nonsense(func(r *usage.Record) { r.Minute = math.MaxInt64 / 60 }),
			nonsense(func(r *usage.Record) { r.Minute = -1 }),
			nonsense(func(r *usage.Record) { r.Rejected = -1 }),
			nonsense(func(r *usage.Record) { r.Last = math.MaxInt64 }),
			good,
		},
		Events: []usage.Event{{ID: "", Kind: "token.blocked"}, {ID: "1", Kind: "token.blocked", Actor: "a\x00"}},
	}
	registry := prometheus.NewRegistry()
	if err := indexer.New(&tape{batches: []usage.Batch{batch}}, store, indexer.Options{Registerer: registry}).Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Sum(ctx); got.Admitted != 5 || err != nil {
		t.Errorf("stored %+v, %v, want 5 admitted", got, err)
	}
	if n := metric(t, registry, "tallygate_indexer_refused_total"); n != 9 {
		t.Errorf("refused = %v, want 9", n)
	}
}

func TestRunReportsABusThatFails(t *testing.T) {
	broken := errors.New("the topic is gone")
	x := indexer.New(failing{broken}, openSQLite(t), indexer.Options{})
	if err := x.Run(context.Background()); !errors.Is(err, broken) {
		t.Errorf("Run = %v, want %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Consume(context.Context, func(context.Context, usage.Batch) error) error {
	return f.err
}

func openSQLite(t testing.TB) *history.Store {
	t.Helper()
	store, err := history.Open(context.Background(), "sqlite:"+filepath.Join(t.TempDir(), "history.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// metric returns the value of a counter or gauge without labels.
func metric(t testing.TB, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func TestMetricsFollowTheConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	indexer.New(&tape{}, openSQLite(t), indexer.Options{Registerer: registry})
	problems, err := testutil.GatherAndLint(registry)
	if len(problems) > 0 || err != nil {
		t.Errorf("%v, %v", problems, err)
	}
}
