// Package streams is the bus on a Redis Stream, for those without Kafka.
//
//	entry     up to 500 messages (docs/records.md), one a line, in the field "lines"
//	group     the consumers that share the work; several groups each get everything
//	pending   delivered to a consumer and not handled yet
//
// An entry is acknowledged after it was handled. What a dead consumer left pending
// is claimed by the others. The stream is trimmed behind the slowest group, never
// further, so nothing is lost however far the consumers fall behind; how long it
// may grow is bounded at the publisher's end, which waits with what it has.
package streams

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/usage"
)

// Options of New; the zero value of each field stands for its default.
type Options struct {
	// Stream is the key, overriding the default "tallygate:usage".
	Stream string
	// Group is the consumer group, overriding the default "indexer".
	Group string
	// Consumer is this process' name within the group, overriding one that is
	// made of the host's name and chance. Two that run at once must differ.
	Consumer string
	// MaxEntries is how many entries the stream may hold before Publish refuses
	// more with ErrFull, overriding the default 100,000 (at most 50 million
	// records). A tracker keeps what is refused, as the latest value per counter.
	MaxEntries int64
	// ClaimAfter is how long another consumer may hold an entry before it counts
	// as dead, overriding the default 1 minute. If it is only slow, the entry is
	// handled twice, which is harmless.
	ClaimAfter time.Duration
	// Block is how long one read waits for entries, overriding the default 500 ms;
	// Consume takes that long to notice its context's end.
	Block time.Duration
	// Log gets what an operator should know, overriding slog.Default.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Stream == "" {
		o.Stream = "tallygate:usage"
	}
	if o.Group == "" {
		o.Group = "indexer"
	}
	if o.Consumer == "" {
		host, _ := os.Hostname() // a name for people; chance makes it unique
		o.Consumer = host + "-" + rand.Text()[:8]
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = 100_000
	}
	if o.ClaimAfter <= 0 {
		o.ClaimAfter = time.Minute
	}
	if o.Block <= 0 {
		o.Block = 500 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// ErrFull is returned by Publish while the stream holds MaxEntries entries.
var ErrFull = errors.New("the stream is full: its consumers do not keep up, or there is none")

const (
	field = "lines"
	// linesPerEntry bounds the messages of one entry: some 75 kB.
	linesPerEntry = 500
	// entriesPerRead bounds one delivery.
	entriesPerRead = 16
)

// Bus publishes to a stream and consumes from it. It is safe for concurrent use,
// but one Bus is one consumer: Consume runs once at a time.
type Bus struct {
	client redis.UniversalClient
	opts   Options
}

var (
	_ usage.Publisher = (*Bus)(nil)
	_ usage.Consumer  = (*Bus)(nil)
)

// New returns a bus on a stream that need not exist.
func New(client redis.UniversalClient, opts Options) *Bus {
	return &Bus{client, opts.withDefaults()}
}

// Publish implements usage.Publisher.
func (b *Bus) Publish(ctx context.Context, batch usage.Batch) error {
	length, err := b.client.XLen(ctx, b.opts.Stream).Result()
	if err != nil {
		return fmt.Errorf("publish to stream %s: %w", b.opts.Stream, err)
	}
	if length >= b.opts.MaxEntries {
		return fmt.Errorf("%w: %s holds %d entries", ErrFull, b.opts.Stream, length)
	}
	var entries []string
	for part := range parts(batch) {
		lines, err := usage.AppendLines(nil, part)
		if err != nil {
			return err
		}
		entries = append(entries, string(lines))
	}
	_, err = b.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, lines := range entries {
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: b.opts.Stream, Values: []string{field, lines}})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("publish %d entries to stream %s: %w", len(entries), b.opts.Stream, err)
	}
	return nil
}

// parts cuts a batch into those of at most linesPerEntry messages.
func parts(batch usage.Batch) func(yield func(usage.Batch) bool) {
	return func(yield func(usage.Batch) bool) {
		for len(batch.Records)+len(batch.Events) > 0 {
			n := min(len(batch.Records), linesPerEntry)
			m := min(len(batch.Events), linesPerEntry-n)
			if !yield(usage.Batch{Records: batch.Records[:n], Events: batch.Events[:m]}) {
				return
			}
			batch.Records, batch.Events = batch.Records[n:], batch.Events[m:]
		}
	}
}

// Consume implements usage.Consumer. While Redis is away it keeps trying. It
// fails when handle does, or on a message of a newer major version; a message
// that nobody can ever read is logged and passed over.
func (b *Bus) Consume(ctx context.Context, handle func(context.Context, usage.Batch) error) error {
	c := consumer{Bus: b, handle: handle}
	defer c.leave(context.WithoutCancel(ctx))
	away := false
	for ctx.Err() == nil {
		err := c.run(ctx)
		var fatal *handleError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &fatal):
			return fatal.error
		case !away:
			b.opts.Log.Warn("the consumer lost Redis; it keeps trying", "stream", b.opts.Stream, "error", err)
			away = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// handleError is an error for Consume's caller, as opposed to one of Redis.
type handleError struct{ error }

func (e *handleError) Unwrap() error { return e.error }

type consumer struct {
	*Bus
	handle func(context.Context, usage.Batch) error
}

// run consumes until an error.
func (c *consumer) run(ctx context.Context) error {
	err := c.client.XGroupCreateMkStream(ctx, c.opts.Stream, c.opts.Group, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		return fmt.Errorf("create group %s of stream %s: %w", c.opts.Group, c.opts.Stream, err)
	}
	// What this consumer was given before and has not handled comes first.
	for {
		n, err := c.read(ctx, "0")
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	// A quarter of ClaimAfter: what a dead consumer held is late by that at most.
	tick := time.NewTicker(c.opts.ClaimAfter / 4)
	defer tick.Stop()
	if err := c.claim(ctx); err != nil {
		return err
	}
	for {
		if _, err := c.read(ctx, ">"); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := c.claim(ctx); err != nil {
				return err
			}
			if err := c.trim(ctx); err != nil {
				return err
			}
		default:
		}
	}
}

// leave takes this consumer's name out of the group when it holds nothing: only
// itself can be given more, so that loses nothing. Names that stay are harmless.
func (c *consumer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	pending, err := c.client.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: c.opts.Stream, Group: c.opts.Group, Consumer: c.opts.Consumer, Start: "-", End: "+", Count: 1,
	}).Result()
	if err == nil && len(pending) == 0 {
		_ = c.client.XGroupDelConsumer(ctx, c.opts.Stream, c.opts.Group, c.opts.Consumer).Err()
	}
}

// read handles some entries from a position on: ">" is what nobody was given yet,
// "0" what this consumer was given and has not acknowledged. It returns how many.
func (c *consumer) read(ctx context.Context, from string) (int, error) {
	block := c.opts.Block
	if from != ">" {
		block = -1
	}
	streams, err := c.client.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: c.opts.Group, Consumer: c.opts.Consumer,
		Streams: []string{c.opts.Stream, from}, Count: entriesPerRead, Block: block,
	}).Result()
	if errors.Is(err, redis.Nil) || err == nil && len(streams) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", c.opts.Stream, err)
	}
	return len(streams[0].Messages), c.take(ctx, streams[0].Messages)
}

// claim handles what other consumers have held for too long.
func (c *consumer) claim(ctx context.Context) error {
	for start := "0-0"; ; {
		entries, next, err := c.client.XAutoClaim(ctx, &redis.XAutoClaimArgs{
			Stream: c.opts.Stream, Group: c.opts.Group, Consumer: c.opts.Consumer,
			MinIdle: c.opts.ClaimAfter, Start: start, Count: entriesPerRead,
		}).Result()
		if err != nil {
			return fmt.Errorf("claim entries of stream %s: %w", c.opts.Stream, err)
		}
		if len(entries) > 0 {
			c.opts.Log.Info("claimed what another consumer has held for too long", "stream", c.opts.Stream, "entries", len(entries))
		}
		if err := c.take(ctx, entries); err != nil {
			return err
		}
		if next == "0-0" {
			return nil
		}
		start = next
	}
}

// take handles entries as one batch and acknowledges them.
func (c *consumer) take(ctx context.Context, entries []redis.XMessage) error {
	if len(entries) == 0 {
		return nil
	}
	var batch usage.Batch
	ids := make([]string, len(entries))
	for i, entry := range entries {
		ids[i] = entry.ID
		lines, _ := entry.Values[field].(string) // absent: the entry is not ours, or was deleted
		for line := range strings.Lines(lines) {
			err := usage.Decode([]byte(line), &batch)
			switch {
			case errors.Is(err, usage.ErrVersion):
				return &handleError{fmt.Errorf("entry %s of stream %s: %w", entry.ID, c.opts.Stream, err)}
			case err != nil:
				c.opts.Log.Error("passed over a message that cannot be read", "stream", c.opts.Stream, "entry", entry.ID, "error", err)
			}
		}
	}
	if len(batch.Records)+len(batch.Events) > 0 {
		if err := c.handle(ctx, batch); err != nil {
			return &handleError{fmt.Errorf("handle a batch of %d records and %d events: %w", len(batch.Records), len(batch.Events), err)}
		}
	}
	// It was handled: acknowledge even if ctx has just ended.
	ack, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := c.client.XAck(ack, c.opts.Stream, c.opts.Group, ids...).Err(); err != nil {
		return fmt.Errorf("acknowledge %d entries of stream %s: %w", len(ids), c.opts.Stream, err)
	}
	return nil
}

// trim removes what every group has consumed. A group's position only advances,
// so what is safe to remove when it is read stays safe.
func (c *consumer) trim(ctx context.Context) error {
	groups, err := c.client.XInfoGroups(ctx, c.opts.Stream).Result()
	if err != nil {
		return fmt.Errorf("read the groups of stream %s: %w", c.opts.Stream, err)
	}
	oldest := "" // the oldest entry that some group still needs
	for _, group := range groups {
		need := group.LastDeliveredID // consumed itself, but the next one's ID is not known
		if group.Pending > 0 {
			pending, err := c.client.XPending(ctx, c.opts.Stream, group.Name).Result()
			if err != nil {
				return fmt.Errorf("read what is pending in group %s: %w", group.Name, err)
			}
			if pending.Count > 0 {
				need = pending.Lower
			}
		}
		if oldest == "" || before(need, oldest) {
			oldest = need
		}
	}
	if oldest == "" {
		return nil
	}
	if err := c.client.XTrimMinID(ctx, c.opts.Stream, oldest).Err(); err != nil {
		return fmt.Errorf("trim stream %s: %w", c.opts.Stream, err)
	}
	return nil
}

// before reports whether entry ID a comes before b; both are ms-sequence.
func before(a, b string) bool {
	am, as := split(a)
	bm, bs := split(b)
	return am < bm || am == bm && as < bs
}

func split(id string) (ms, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(m, 10, 64) // Redis wrote it
	seq, _ = strconv.ParseUint(s, 10, 64)
	return ms, seq
}
