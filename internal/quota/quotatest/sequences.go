package quotatest

import (
	"context"
	"errors"
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
	rapid.Check(t, func(t *rapid.T) { CheckDrawn(t, s, clock, epoch) })
}

// CheckDrawn draws a policy of up to four limits, mostly of one, and checks a
// sequence.
func CheckDrawn(t *rapid.T, s Subject, clock *Clock, epoch int64) {
	most := rapid.SampledFrom([]int{1, 1, 4}).Draw(t, "most_limits")
	CheckSequence(t, s, clock, epoch, rapid.SliceOfN(limit(), most%4, most).Draw(t, "limits"))
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
	var decided []made
	tokens := []token.ID{token.ID(fmt.Sprintf("a-%d", prefix)), token.ID(fmt.Sprintf("b-%d", prefix))}
	for range rapid.IntRange(1, 30).Draw(t, "batches") {
		at = max(epoch, latest-StepBack, at+elapse().Draw(t, "elapse_ms"))
		latest = max(latest, at)
		clock.Set(at)
		requests := rapid.SliceOfN(request(tokens, limits), 1, 6).Draw(t, "requests")
		want := oracle.DecideAll(context.Background(), requests)
		got := s.DecideAll(context.Background(), requests)
		for i := range requests {
			if got[i].Err == nil && requests[i].Cost > 0 && !requests[i].Blocked {
				decided = append(decided, made{requests[i], at})
			}
			if limits := requests[i].Limits; !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("at epoch + %dms %s of %+v:\n got %s\nwant %s\nlimits %+v",
					at-epoch, requests[i].Token, requests[i], words(got[i]), words(want[i]), limits)
			}
			cells = append(cells, cell{requests[i].Resource, quota.Minute(at)})
		}
		if len(decided) > 0 && rapid.IntRange(0, 2).Draw(t, "meddle") == 2 {
			what, do := meddle(t, decided)
			if got, want := do(s), do(oracle); !errors.Is(got, want) {
				t.Fatalf("at epoch + %dms %s: %v, want %v", at-epoch, what, got, want)
			}
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

// made is a request and when it was decided.
type made struct {
	quota.Request
	at int64
}

// meddle draws an adjustment, settlement or release that is about one of the
// requests that were decided.
func meddle(t *rapid.T, decided []made) (what string, do func(Store) error) {
	r := rapid.SampledFrom(decided).Draw(t, "about")
	ctx := context.Background()
	switch rapid.IntRange(0, 3).Draw(t, "how") {
	case 0:
		return fmt.Sprintf("release %q", r.Lease), func(s Store) error { return s.Release(ctx, r.Token, r.Lease, r.Limits) }
	case 1:
		settlement := quota.Settlement{
			Token: r.Token, Resource: r.Resource, ID: r.Reserve, Limits: r.Limits,
			Actual: rapid.OneOf(rapid.Int64Range(0, min(2*r.Cost, quota.MaxCost)), rapid.Just(r.Cost)).Draw(t, "actual"),
		}
		return fmt.Sprintf("settle %+v", settlement), func(s Store) error { return s.Settle(ctx, settlement) }
	}
	j := quota.Adjustment{
		Kind:  rapid.SampledFrom([]quota.AdjustmentKind{quota.Refund, quota.Charge, quota.Grant, quota.Reset}).Draw(t, "kind"),
		Token: r.Token, Resource: r.Resource, At: r.at, Limits: r.Limits,
		Units: rapid.OneOf(rapid.Int64Range(0, r.Cost), rapid.Int64Range(0, 20)).Draw(t, "units"),
		ID:    rapid.SampledFrom([]string{"", "", "j1", "j2"}).Draw(t, "id"),
	}
	return fmt.Sprintf("adjust %+v", j), func(s Store) error { return s.Adjust(ctx, j) }
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
		r := quota.Request{
			Token:    rapid.SampledFrom(tokens).Draw(t, "token"),
			Resource: rapid.SampledFrom([]string{"", "search"}).Draw(t, "resource"),
			Cost:     cost().Draw(t, "cost"),
			Limits:   some,
			Blocked:  rapid.IntRange(0, 19).Draw(t, "blocked") == 19,
		}
		r.Overdraft = !r.Blocked && rapid.IntRange(0, 9).Draw(t, "overdraft") == 9
		if !r.Blocked && r.Cost > 0 && rapid.IntRange(0, 3).Draw(t, "reserve") == 3 {
			r.Reserve = rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "reservation")
			r.ReserveFor = 9 * time.Minute
		}
		for i := range some {
			if some[i].Algorithm == quota.Concurrency {
				r.Lease = rapid.SampledFrom([]string{"l1", "l2", "l3", "l4", "l5", "l6"}).Draw(t, "lease")
				r.Cost = min(r.Cost, 20) // slots: nobody takes billions
			}
		}
		return r
	})
}

func cost() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Just[int64](1),
		rapid.Int64Range(0, 6),
		rapid.Int64Range(0, quota.MaxCost),
	)
}

// limit draws a limit of any algorithm, unnamed.
func limit() *rapid.Generator[quota.Limit] {
	return rapid.OneOf(Limits()...)
}

// Limits returns a generator of limits for each algorithm.
func Limits() []*rapid.Generator[quota.Limit] {
	calendars := []*quota.Calendar{
		calendar("hour", "Australia/Lord_Howe", 0), calendar("day", "America/Sao_Paulo", 0), calendar("week", "UTC", 0),
		calendar("month", "Europe/Berlin", 31), calendar("year", "Asia/Tokyo", 15),
	}
	small := rapid.Int64Range(1, 12)
	any := rapid.OneOf(small, rapid.Int64Range(1, quota.MaxCost))
	window := rapid.SampledFrom([]time.Duration{time.Millisecond, 7 * time.Millisecond, time.Second, 10 * time.Second, time.Minute, 7 * time.Minute, 36 * time.Hour})
	kind := func(make func(t *rapid.T) quota.Limit) *rapid.Generator[quota.Limit] {
		return rapid.Custom(func(t *rapid.T) quota.Limit {
			l := make(t)
			l.Shadow = rapid.IntRange(0, 5).Draw(t, "shadow") == 5
			if rapid.Bool().Draw(t, "one_resource") {
				l.Resources = []string{"search"}
			}
			return l
		})
	}
	return []*rapid.Generator[quota.Limit]{
		kind(func(t *rapid.T) quota.Limit {
			return quota.Limit{Quota: any.Draw(t, "quota"), Window: window.Draw(t, "window")}
		}),
		kind(func(t *rapid.T) quota.Limit {
			return quota.Limit{FromFirst: true, Quota: any.Draw(t, "quota"), Window: window.Draw(t, "window")}
		}),
		kind(func(t *rapid.T) quota.Limit {
			return quota.Limit{Algorithm: quota.CalendarWindow, Quota: any.Draw(t, "quota"), Calendar: rapid.SampledFrom(calendars).Draw(t, "calendar")}
		}),
		kind(func(t *rapid.T) quota.Limit {
			l := quota.Limit{Algorithm: quota.SlidingWindow, Quota: any.Draw(t, "quota"), Window: window.Draw(t, "window")}
			l.Precision = l.Window
			for _, n := range []time.Duration{60, 10, 7, 4} {
				if l.Window%(n*time.Millisecond) == 0 {
					l.Precision = l.Window / n
					break
				}
			}
			return l
		}),
		kind(func(t *rapid.T) quota.Limit {
			l := quota.Limit{Algorithm: quota.SlidingLog, Quota: rapid.OneOf(small, rapid.Int64Range(1, quota.MaxLog)).Draw(t, "quota"), Window: window.Draw(t, "window")}
			l.CountRejected = rapid.IntRange(0, 2).Draw(t, "count_rejected") == 2
			if rapid.IntRange(0, 2).Draw(t, "with_min_interval") == 2 {
				l.MinInterval = time.Duration(rapid.Int64Range(1, l.Window.Milliseconds()).Draw(t, "min_interval_ms")) * time.Millisecond
			}
			return l
		}),
		kind(func(t *rapid.T) quota.Limit {
			l := quota.Limit{Algorithm: quota.TokenBucket, Quota: any.Draw(t, "quota"), Window: window.Draw(t, "window")}
			if rapid.Bool().Draw(t, "with_burst") {
				l.Burst = any.Draw(t, "burst")
			}
			if l.Name = "x"; l.Validate() != nil { // too fine to count exactly
				l.Quota, l.Burst = 1000, 5000
			}
			return l
		}),
		kind(func(t *rapid.T) quota.Limit {
			return quota.Limit{Algorithm: quota.Concurrency, Quota: small.Draw(t, "quota"), Window: window.Draw(t, "window")}
		}),
	}
}

func calendar(unit, zone string, day int) *quota.Calendar {
	location, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	c, err := quota.NewCalendar(quota.CalendarOptions{Unit: unit, Zone: location, Day: day})
	if err != nil {
		panic(err)
	}
	return c
}
