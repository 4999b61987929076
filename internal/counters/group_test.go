package counters_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
)

// gate is a store whose batches are let through one by one.
type gate struct {
	arrived chan []quota.Request // a batch has come
	open    chan struct{}        // lets one batch through
}

func newGate() *gate {
	return &gate{arrived: make(chan []quota.Request), open: make(chan struct{})}
}

func (g *gate) DecideAll(_ context.Context, requests []quota.Request) []quota.Result {
	g.arrived <- requests
	<-g.open
	results := make([]quota.Result, len(requests))
	for i, r := range requests {
		results[i] = quota.Result{Decision: quota.Decision{Allowed: true, At: r.Cost}} // says whose it is
	}
	return results
}

func TestRequestsThatComeWhileABatchIsOnItsWayMakeTheNextOne(t *testing.T) {
	gate := newGate()
	group := counters.NewGroup(gate, counters.GroupOptions{InFlight: 1})
	var callers sync.WaitGroup
	ask := func(cost int64) {
		callers.Go(func() {
			if r := group.Decide(context.Background(), quota.Request{Token: "T", Cost: cost}); r.At != cost || r.Err != nil {
				t.Errorf("request %d got the answer of %d, %v", cost, r.At, r.Err)
			}
		})
	}
	ask(0)
	if first := <-gate.arrived; len(first) != 1 {
		t.Fatalf("the first batch has %d requests, want 1", len(first))
	}
	const more = 2*counters.BatchSize + 44
	for i := range int64(more) {
		ask(i + 1)
	}
	waitUntil(t, func() bool { return counters.Waiting(group) == more })
	for _, want := range []int{counters.BatchSize, counters.BatchSize, 44} {
		gate.open <- struct{}{}
		if batch := <-gate.arrived; len(batch) != want {
			t.Errorf("a batch has %d requests, want %d", len(batch), want)
		}
	}
	gate.open <- struct{}{}
	callers.Wait()
	if err := group.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestACallerWhoseContextEndsReturnsAtOnce(t *testing.T) {
	gate := newGate()
	group := counters.NewGroup(gate, counters.GroupOptions{InFlight: 1})
	ask := func(ctx context.Context, cost int64) <-chan quota.Result {
		answer := make(chan quota.Result, 1)
		go func() { answer <- group.Decide(ctx, quota.Request{Token: "T", Cost: cost}) }()
		return answer
	}
	ctx, cancel := context.WithCancel(context.Background())
	sent := ask(ctx, 1)
	<-gate.arrived
	waiting := ask(ctx, 2)
	waitUntil(t, func() bool { return counters.Waiting(group) == 1 })
	stays := ask(context.Background(), 3)
	waitUntil(t, func() bool { return counters.Waiting(group) == 2 })

	cancel()
	if err := (<-sent).Err; !errors.Is(err, context.Canceled) || !errors.Is(err, counters.ErrUnavailable) || !counters.MayHaveCounted(err) {
		t.Errorf("a request that was sent: %v, which may have counted", err)
	}
	if err := (<-waiting).Err; !errors.Is(err, context.Canceled) || counters.MayHaveCounted(err) {
		t.Errorf("a request that was not sent: %v, which cannot have counted", err)
	}
	gate.open <- struct{}{}
	if batch := <-gate.arrived; len(batch) != 1 || batch[0].Cost != 3 {
		t.Errorf("the next batch is %+v, want only the request whose caller stayed", batch)
	}
	if err := group.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close while a batch is on its way, with an ended context: %v", err)
	}
	gate.open <- struct{}{}
	if r := <-stays; r.Err != nil || r.At != 3 {
		t.Errorf("the caller who stayed got %+v", r)
	}
	if err := (<-ask(ctx, 4)).Err; counters.MayHaveCounted(err) || !errors.Is(err, context.Canceled) {
		t.Errorf("a request whose context had ended: %v", err)
	}
}

func TestSeveralRequestsOfOneCallerShareABatch(t *testing.T) {
	gate := newGate()
	group := counters.NewGroup(gate, counters.GroupOptions{InFlight: 1})
	requests := make([]quota.Request, 5)
	for i := range requests {
		requests[i] = quota.Request{Token: "T", Cost: int64(i)}
	}
	answer := make(chan []quota.Result, 1)
	go func() { answer <- group.DecideAll(context.Background(), requests) }()
	if batch := <-gate.arrived; len(batch) != len(requests) {
		t.Errorf("the batch has %d requests, want %d", len(batch), len(requests))
	}
	gate.open <- struct{}{}
	for i, r := range <-answer {
		if r.Err != nil || r.At != int64(i) {
			t.Errorf("request %d got %+v", i, r)
		}
	}
	requests[3].Cost = -1
	for i, r := range group.DecideAll(context.Background(), requests) {
		if !errors.Is(r.Err, counters.ErrCost) {
			t.Errorf("request %d beside one that is out of range: %v", i, r.Err)
		}
	}
}

func TestACostOutOfRangeIsRefusedByName(t *testing.T) {
	group := counters.NewGroup(newGate(), counters.GroupOptions{})
	for _, cost := range []int64{-1, quota.MaxCost + 1} {
		r := group.Decide(context.Background(), quota.Request{Token: "T", Cost: cost})
		if !errors.Is(r.Err, counters.ErrCost) || counters.MayHaveCounted(r.Err) {
			t.Errorf("cost %d: %v", cost, r.Err)
		}
	}
}
