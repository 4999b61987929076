// Package bustest holds the tests that every bus passes.
package bustest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Bus is a bus under test. Consumer returns a further member of one and the same
// group each time, as a process of its own would have.
type Bus struct {
	Publisher usage.Publisher
	Consumer  func(t *testing.T) usage.Consumer
}

// Limit is how long a test waits for what must come.
const Limit = 20 * time.Second

// Run runs the suite; open returns an empty bus for each test.
func Run(t *testing.T, open func(t *testing.T) Bus) {
	for name, test := range map[string]func(*testing.T, Bus){
		"EverythingArrives":                everythingArrives,
		"WhatFailedIsDeliveredAgain":       whatFailedIsDeliveredAgain,
		"ConsumerEndsWithItsContext":       consumerEnds,
		"PublishedBeforeTheFirstConsumer":  publishedBefore,
		"AnUnfinishedBatchGoesToThePeer":   unfinishedGoesToPeer,
		"RepeatsAndReorderingMergeToEqual": repeats,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// Account merges batches as the history does.
type Account struct {
	mu      sync.Mutex
	records map[usage.Key]usage.Totals
	events  map[string]usage.Event
	changed chan struct{}
}

// NewAccount returns an empty account.
func NewAccount() *Account {
	return &Account{records: map[usage.Key]usage.Totals{}, events: map[string]usage.Event{}, changed: make(chan struct{}, 1)}
}

// Handle is a Consumer's handle function.
func (a *Account) Handle(_ context.Context, batch usage.Batch) error {
	a.mu.Lock()
	for _, r := range batch.Records {
		a.records[r.Key] = a.records[r.Key].Max(r.Totals)
	}
	for _, e := range batch.Events {
		a.events[e.ID] = e
	}
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
	return nil
}

// Records returns what the account holds.
func (a *Account) Records() map[usage.Key]usage.Totals {
	a.mu.Lock()
	defer a.mu.Unlock()
	copied := make(map[usage.Key]usage.Totals, len(a.records))
	for k, v := range a.records {
		copied[k] = v
	}
	return copied
}

// Until waits until done says so.
func (a *Account) Until(t *testing.T, done func(records map[usage.Key]usage.Totals, events map[string]usage.Event) bool) {
	t.Helper()
	deadline := time.After(Limit)
	for {
		a.mu.Lock()
		ok := done(a.records, a.events)
		a.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-a.changed:
		case <-deadline:
			a.mu.Lock()
			defer a.mu.Unlock()
			t.Fatalf("not there after %s; the account holds %d records and %d events", Limit, len(a.records), len(a.events))
		}
	}
}

// Consume runs a consumer until stop is called or the test ends; stop returns
// what Consume returned.
func Consume(t *testing.T, c usage.Consumer, handle func(context.Context, usage.Batch) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- c.Consume(ctx, handle) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-result:
			return err
		case <-time.After(Limit):
			return fmt.Errorf("the consumer has not ended %s after its context", Limit)
		}
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func record(id token.ID, minute, admitted int64) usage.Record {
	return usage.Record{
		Key:    usage.Key{Token: id, Resource: "search", Minute: minute},
		Totals: usage.Totals{Admitted: admitted, Rejected: 1, Last: 60 * minute},
	}
}

func publish(t *testing.T, bus Bus, batch usage.Batch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	if err := bus.Publisher.Publish(ctx, batch); err != nil {
		t.Fatal(err)
	}
}

func everythingArrives(t *testing.T, bus Bus) {
	account := NewAccount()
	stop := Consume(t, bus.Consumer(t), account.Handle)
	want := map[usage.Key]usage.Totals{}
	var batch usage.Batch
	for i := range 5000 { // more than any bus puts into one message
		r := record(token.ID(fmt.Sprintf("t%d", i%1700)), 29_000_000+int64(i), int64(i))
		batch.Records = append(batch.Records, r)
		want[r.Key] = r.Totals
	}
	event := usage.Event{
		ID: "e1", Token: "t1", At: 5, Kind: "policy.assigned", Actor: "a", Reason: "line\nbreak",
		Before: json.RawMessage(`{"p":1}`), After: json.RawMessage(`{"p":2}`),
	}
	batch.Events = []usage.Event{event, {ID: "e2", Kind: "config.reloaded"}}
	publish(t, bus, batch)
	account.Until(t, func(records map[usage.Key]usage.Totals, events map[string]usage.Event) bool {
		return len(records) == len(want) && len(events) == 2
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if got := account.Records(); !reflect.DeepEqual(got, want) {
		t.Error("records differ from those published")
	}
	if got := account.events["e1"]; !reflect.DeepEqual(got, event) {
		t.Errorf("event %+v, want %+v", got, event)
	}
}

func whatFailedIsDeliveredAgain(t *testing.T, bus Bus) {
	r := record("t", 29_000_000, 3)
	publish(t, bus, usage.Batch{Records: []usage.Record{r}, Events: []usage.Event{{ID: "e", Kind: "a.b"}}})
	consumer, broken := bus.Consumer(t), errors.New("the history is away")
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	err := consumer.Consume(ctx, func(context.Context, usage.Batch) error { return broken })
	if !errors.Is(err, broken) {
		t.Fatalf("Consume = %v, want the error of handle", err)
	}
	account := NewAccount()
	Consume(t, consumer, account.Handle)
	account.Until(t, func(records map[usage.Key]usage.Totals, events map[string]usage.Event) bool {
		return records[r.Key] == r.Totals && len(events) == 1
	})
}

func consumerEnds(t *testing.T, bus Bus) {
	account := NewAccount()
	stop := Consume(t, bus.Consumer(t), account.Handle)
	publish(t, bus, usage.Batch{Records: []usage.Record{record("t", 29_000_000, 3)}})
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(records) == 1 })
	if err := stop(); err != nil {
		t.Errorf("Consume = %v after its context ended, want nil", err)
	}
}

func publishedBefore(t *testing.T, bus Bus) {
	publish(t, bus, usage.Batch{Records: []usage.Record{record("a", 29_000_000, 3)}})
	publish(t, bus, usage.Batch{Records: []usage.Record{record("b", 29_000_000, 3)}})
	account := NewAccount()
	Consume(t, bus.Consumer(t), account.Handle)
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool { return len(records) == 2 })
}

// A member of the group takes a batch and never finishes it; the peer gets it.
func unfinishedGoesToPeer(t *testing.T, bus Bus) {
	r := record("t", 29_000_000, 3)
	publish(t, bus, usage.Batch{Records: []usage.Record{r}})
	taken := make(chan struct{})
	stop := Consume(t, bus.Consumer(t), func(ctx context.Context, _ usage.Batch) error {
		close(taken)
		<-ctx.Done()
		return ctx.Err()
	})
	select {
	case <-taken:
	case <-time.After(Limit):
		t.Fatal("nothing was delivered")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	account := NewAccount()
	Consume(t, bus.Consumer(t), account.Handle)
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return records[r.Key] == r.Totals
	})
}

func repeats(t *testing.T, bus Bus) {
	account := NewAccount()
	Consume(t, bus.Consumer(t), account.Handle)
	Consume(t, bus.Consumer(t), account.Handle)
	for _, admitted := range []int64{3, 1, 9, 4, 9} {
		publish(t, bus, usage.Batch{Records: []usage.Record{record("t", 29_000_000, admitted), record("u", 29_000_000, admitted)}})
	}
	account.Until(t, func(records map[usage.Key]usage.Totals, _ map[string]usage.Event) bool {
		return records[record("t", 29_000_000, 0).Key].Admitted == 9 && records[record("u", 29_000_000, 0).Key].Admitted == 9
	})
}
