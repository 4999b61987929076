package quotatest

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// StepBack is how far in ms a clock may fall behind the latest time that a store
// has seen and the store still decide exactly: counts outlive their windows so.
const StepBack = 5_000

// run tells the generated sequences of one process apart, so that they share a
// server without sharing tokens.
var run atomic.Int64

// testSequences: whatever the times, costs, tokens, batches and mixes of limits,
// the store answers and counts as the oracle does.
func testSequences(t *testing.T, s Subject, clock *Clock) {
	epoch := clock.UnixMilli()
	rapid.Check(t, func(t *rapid.T) {
		CheckSequence(t, s, clock, epoch, rapid.SliceOfN(limit(), 0, 4).Draw(t, "limits"))
	})
}

// CheckSequence draws a sequence of batches and compares s with the oracle.
func CheckSequence(t *rapid.T, s Subject, clock *Clock, epoch int64, limits []quota.Limit) {
	for i := range limits {
		limits[i].Name = fmt.Sprintf("limit-%d", i)
	}
	oracle := &Oracle{Clock: clock}
	prefix := run.Add(1)
	at := epoch + rapid.Int64Range(0, 100_000).Draw(t, "start_ms")
	latest := at
	var cells []cell
	tokens := []token.ID{token.ID(fmt.Sprintf("a-%d", prefix)), token.ID(fmt.Sprintf("b-%d", prefix))}
	for range rapid.IntRange(1, 30).Draw(t, "batches") {
		at = max(epoch, latest-StepBack, at+elapse().Draw(t, "elapse_ms"))
		latest = max(latest, at)
		clock.Set(at)
		requests := rapid.SliceOfN(request(tokens, limits), 1, 6).Draw(t, "requests")
		want := oracle.DecideAll(context.Background(), requests)
		got := s.DecideAll(context.Background(), requests)
		for i := range requests {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("at epoch + %dms %s of %+v:\n got %s (%+v)\nwant %s (%+v)",
					at-epoch, requests[i].Token, requests[i], words(got[i]), got[i], words(want[i]), want[i])
			}
			cells = append(cells, cell{requests[i].Resource, quota.Minute(at)})
		}
	}
	for _, id := range tokens {
		for _, c := range cells {
			want := oracle.Counted(id, c.resource, c.minute)
			if got := s.Counted(id, c.resource, c.minute); got != want {
				t.Fatalf("counted of %s %q in minute %d: %+v, want %+v", id, c.resource, c.minute, got, want)
			}
		}
	}
}

// elapse draws the time between two batches in ms: mostly none or short,
// sometimes long or back.
func elapse() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Just[int64](0),
		rapid.Int64Range(0, 2_000),
		rapid.Int64Range(0, 90_000),
		rapid.Int64Range(-StepBack, 0),
		rapid.Int64Range(0, 40*24*3600_000),
	)
}

// request draws one, for all limits or some of them.
func request(tokens []token.ID, limits []quota.Limit) *rapid.Generator[quota.Request] {
	return rapid.Custom(func(t *rapid.T) quota.Request {
		some := limits[:rapid.IntRange(0, len(limits)).Draw(t, "limits")]
		if rapid.Bool().Draw(t, "all") {
			some = limits
		}
		return quota.Request{
			Token:    rapid.SampledFrom(tokens).Draw(t, "token"),
			Resource: rapid.SampledFrom([]string{"", "search"}).Draw(t, "resource"),
			Cost:     cost().Draw(t, "cost"),
			Limits:   some,
			Blocked:  rapid.IntRange(0, 9).Draw(t, "blocked") == 9,
		}
	})
}

func cost() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Just[int64](1),
		rapid.Int64Range(0, 6),
		rapid.Int64Range(0, quota.MaxCost),
	)
}

// limit draws a limit, unnamed.
func limit() *rapid.Generator[quota.Limit] {
	return rapid.Custom(func(t *rapid.T) quota.Limit {
		l := quota.Limit{
			Quota:  rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, quota.MaxCost)).Draw(t, "quota"),
			Window: rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, 10 * time.Second, time.Minute, 7 * time.Minute, 36 * time.Hour}).Draw(t, "window"),
		}
		if rapid.Bool().Draw(t, "one_resource") {
			l.Resources = []string{"search"}
		}
		return l
	})
}
