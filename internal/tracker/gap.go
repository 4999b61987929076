package tracker

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/usage"
)

// Watermark is what a Ledger may do beside: remember until when everything was
// accounted for, over restarts and for all trackers together. With it a tracker
// knows how long nobody accounted for anything, and whether that was longer than
// counters live.
type Watermark interface {
	// Mark says that everything is accounted for until now. It returns now and the
	// mark before, unix seconds; 0 when there was none.
	Mark(ctx context.Context) (before, now int64, err error)
	// Grace is how long counters outlive their minute.
	Grace() time.Duration
}

// markEvery is the pause between two marks.
const markEvery = 5 * time.Second

// mark marks, and reports what is lost for good: counters whose grace ended while
// nobody looked. It is told on the log, by a metric and as an event on the bus.
func (t *Tracker) markOnce(ctx context.Context, watermark Watermark) error {
	before, now, err := watermark.Mark(ctx)
	if err != nil {
		return err
	}
	away := time.Duration(now-before) * time.Second
	if before == 0 || away <= watermark.Grace() {
		return nil
	}
	from, to := before, now-int64(watermark.Grace()/time.Second)
	t.metrics.unaccounted.Add(float64(to - from))
	t.opts.Log.Error("nobody accounted for counters for longer than they live: what was counted in this span and not since may be lost",
		"from", time.Unix(from, 0).UTC(), "to", time.Unix(to, 0).UTC(), "grace", watermark.Grace(),
		"remedy", "raise grace above the longest outage you expect, or run a second tracker")
	span, _ := json.Marshal(map[string]int64{"from": from, "to": to}) // integers marshal
	t.mu.Lock()
	t.events = append(t.events, usage.Event{
		ID: fmt.Sprintf("tracker.gap:%d", from), At: now * 1000, Kind: "tracker.gap_found", Actor: "tracker",
		Reason: "no tracker was at work for longer than grace", After: span,
	})
	t.mu.Unlock()
	signal(t.publish)
	return nil
}

//go:embed mark.lua
var markLua string

var markScript = redis.NewScript(markLua)

var _ Watermark = (*RedisLedger)(nil)

// MarkKey is the key of the watermark: string, unix seconds.
func MarkKey(namespace counters.Namespace) string { return "tracker:mark:" + string(namespace) }

// Mark implements Watermark.
func (l *RedisLedger) Mark(ctx context.Context) (before, now int64, err error) {
	times, err := markScript.Run(ctx, l.client, []string{MarkKey(l.opts.Namespace)}).Int64Slice()
	if err != nil || len(times) != 2 {
		return 0, 0, fmt.Errorf("set the watermark: %w", err)
	}
	return times[0], times[1], nil
}

// Grace implements Watermark.
func (l *RedisLedger) Grace() time.Duration { return l.opts.Grace }
