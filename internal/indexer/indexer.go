// Package indexer brings usage records into the history and answers questions
// about it.
//
//	bus ──Run──▶ history ──Handler──▶ HTTP ──Commands──▶ terminal
//
// The commands ask over HTTP and not the database: whoever looks at usage needs
// an address and no access to the tables.
package indexer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/usage"
)

// Sink is where batches go.
type Sink interface {
	// Ingest stores a batch or fails; storing all of it again is harmless either way.
	Ingest(ctx context.Context, batch usage.Batch) error
}

// Options change how an Indexer works. The zero value is ready to use.
type Options struct {
	// RetryMin is the pause after the first failure to store a batch, overriding
	// the default 50 ms. It doubles with each further one up to RetryMax.
	RetryMin time.Duration
	// RetryMax is the longest pause, overriding the default 5 s: when the database
	// is back it takes up to this long until the indexer notices.
	RetryMax time.Duration
	// AttemptTimeout bounds one attempt to store a batch, overriding the default
	// 1 min. An attempt that hangs (a server that is suspended, a network that
	// swallows packets) is given up and made again.
	AttemptTimeout time.Duration
	// Log says when storing stalls and goes on, overriding the default of silence.
	Log *slog.Logger
	// Registerer takes the metrics, overriding the default of none.
	Registerer prometheus.Registerer
}

// Indexer moves batches from a bus to the history. It is used once, by Run.
type Indexer struct {
	consumer usage.Consumer
	sink     Sink
	opts     Options
	metrics  *metrics
	now      func() time.Time
}

// New returns an indexer that is ready to Run.
func New(consumer usage.Consumer, sink Sink, opts Options) *Indexer {
	if opts.RetryMin <= 0 {
		opts.RetryMin = 50 * time.Millisecond
	}
	if opts.RetryMax <= 0 {
		opts.RetryMax = 5 * time.Second
	}
	if opts.AttemptTimeout <= 0 {
		opts.AttemptTimeout = time.Minute
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Indexer{consumer: consumer, sink: sink, opts: opts, metrics: newMetrics(opts.Registerer), now: time.Now}
}

// Run stores what comes off the bus until ctx ends or the bus is closed, and then
// returns nil. A batch leaves the bus only after its rows are in the history;
// while the database is away Run waits and tries again, and the bus keeps the rest.
func (x *Indexer) Run(ctx context.Context) error {
	err := x.consumer.Consume(ctx, x.handle)
	if ctx.Err() != nil && (err == nil || errors.Is(err, ctx.Err())) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("indexer: consume: %w", err)
	}
	return nil
}

// handle stores one batch, however often that takes. It fails only when ctx ends.
func (x *Indexer) handle(ctx context.Context, batch usage.Batch) error {
	batch = x.screen(batch)
	began := time.Now()
	pause := x.opts.RetryMin
	for attempt := 1; ; attempt++ {
		err := x.attempt(ctx, batch)
		if err == nil {
			if attempt > 1 {
				x.opts.Log.Info("storing goes on", "attempts", attempt, "stalled", time.Since(began).Round(time.Millisecond))
			}
			x.metrics.stored(batch, time.Since(began))
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err() // the bus delivers the batch again
		}
		x.metrics.failed()
		if attempt == 1 { // once per stall: the metric counts the rest
			x.opts.Log.Error("cannot store usage, trying again until it works", "records", len(batch.Records), "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, x.opts.RetryMax)
	}
}

func (x *Indexer) attempt(ctx context.Context, batch usage.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, x.opts.AttemptTimeout)
	defer cancel()
	return x.sink.Ingest(ctx, batch)
}
