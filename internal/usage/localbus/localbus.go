// Package localbus is the bus for services that live in one process.
//
// It holds the latest totals of every record that was not consumed yet and every
// event, so a slow consumer costs one entry per cell, however often it changes.
package localbus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tallygate/tallygate/internal/usage"
)

// ErrClosed is returned by Publish after Close.
var ErrClosed = errors.New("the bus is closed")

const (
	// DefaultLimit is how many records and events a bus holds unless told otherwise.
	DefaultLimit = 1 << 20
	// batchLimit bounds the records and the events of one delivery.
	batchLimit = 4096
)

// Bus carries batches from publishers to consumers. Make one with New. It is safe
// for concurrent use, by several publishers and consumers.
type Bus struct {
	limit int

	mu      sync.Mutex
	records map[usage.Key]usage.Totals
	events  []usage.Event
	closed  bool
	changed chan struct{} // closed and replaced whenever any of the above changes
}

var (
	_ usage.Publisher = (*Bus)(nil)
	_ usage.Consumer  = (*Bus)(nil)
)

// New returns a bus that holds at most limit records and events; below 1 means
// DefaultLimit. A single batch may be larger than that when the bus is empty.
func New(limit int) *Bus {
	if limit < 1 {
		limit = DefaultLimit
	}
	return &Bus{limit: limit, records: map[usage.Key]usage.Totals{}, changed: make(chan struct{})}
}

// Publish implements usage.Publisher. It waits only while the bus is full of
// cells other than those of batch.
func (b *Bus) Publish(ctx context.Context, batch usage.Batch) error {
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return ErrClosed
		}
		if b.fits(batch) {
			b.merge(batch)
			b.notify()
			b.mu.Unlock()
			return nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("the bus is full, %d records and events wait for their consumer: %w", b.limit, ctx.Err())
		case <-changed:
		}
	}
}

func (b *Bus) fits(batch usage.Batch) bool {
	held := len(b.records) + len(b.events)
	if held == 0 {
		return true
	}
	more := len(batch.Events)
	if held+more+len(batch.Records) <= b.limit {
		return true
	}
	for _, r := range batch.Records {
		if _, ok := b.records[r.Key]; !ok {
			more++
		}
	}
	return more == 0 || held+more <= b.limit
}

func (b *Bus) merge(batch usage.Batch) {
	for _, r := range batch.Records {
		b.records[r.Key] = b.records[r.Key].Max(r.Totals)
	}
	b.events = append(b.events, batch.Events...)
}

func (b *Bus) notify() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Close ends publishing: Consume hands out what is left and then returns nil.
func (b *Bus) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		b.notify()
	}
}

// Consume implements usage.Consumer. It also returns nil when the bus was closed
// and everything in it is consumed.
func (b *Bus) Consume(ctx context.Context, handle func(context.Context, usage.Batch) error) error {
	for ctx.Err() == nil {
		b.mu.Lock()
		batch, closed, changed := b.take(), b.closed, b.changed
		b.mu.Unlock()
		if len(batch.Records)+len(batch.Events) > 0 {
			if err := b.deliver(ctx, batch, handle); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("handle a batch of %d records and %d events: %w", len(batch.Records), len(batch.Events), err)
			}
			continue
		}
		if closed {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}

// deliver hands batch to handle and puts it back if that fails or panics.
func (b *Bus) deliver(ctx context.Context, batch usage.Batch, handle func(context.Context, usage.Batch) error) error {
	handled := false
	defer func() {
		if !handled {
			b.mu.Lock()
			defer b.mu.Unlock()
			late := b.events
			b.events = nil
			b.merge(batch)
			b.events = append(b.events, late...)
			b.notify()
		}
	}()
	if err := handle(ctx, batch); err != nil {
		return err
	}
	handled = true
	return nil
}

// take removes a portion from the bus.
func (b *Bus) take() usage.Batch {
	var batch usage.Batch
	if n := min(len(b.records), batchLimit); n > 0 {
		batch.Records = make([]usage.Record, 0, n)
		for key, totals := range b.records {
			batch.Records = append(batch.Records, usage.Record{Key: key, Totals: totals})
			delete(b.records, key)
			if len(batch.Records) == n {
				break
			}
		}
	}
	if n := min(len(b.events), batchLimit); n > 0 {
		batch.Events = b.events[:n:n]
		b.events = b.events[n:]
	}
	if len(batch.Records)+len(batch.Events) > 0 {
		b.notify() // there is room again
	}
	return batch
}
