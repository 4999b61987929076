package history_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// midnight is an epoch minute at which a day begins (UTC).
const midnight = noon / 1440 * 1440

func at(minute int64) time.Time { return time.Unix(minute*60, 0).UTC() }

// threeDays returns cells of some tokens, all over three days from midnight.
func threeDays(rng *rand.Rand, n int) []usage.Record {
	var records []usage.Record
	for range n {
		id := token.ID(fmt.Sprint("t", rng.IntN(5)))
		r := record(id, []string{"", "search"}[rng.IntN(2)], midnight+rng.Int64N(3*1440), rng.Int64N(6), rng.Int64N(3))
		records = append(records, r)
	}
	return records
}

// used sums up the merged records by what by returns; those with "" are left out.
func used(records []usage.Record, by func(usage.Record) string) map[string]usage.Totals {
	cells := map[usage.Key]usage.Totals{}
	for _, r := range records {
		cells[r.Key] = cells[r.Key].Max(r.Totals)
	}
	sums := map[string]usage.Totals{}
	for key, t := range cells {
		if name := by(usage.Record{Key: key, Totals: t}); name != "" {
			s := sums[name]
			sums[name] = usage.Totals{
				Admitted: s.Admitted + t.Admitted, Rejected: s.Rejected + t.Rejected,
				Refunded: s.Refunded + t.Refunded, Last: max(s.Last, t.Last),
			}
		}
	}
	return sums
}

// checkSpans compares what the store says about the three days, in steps of at
// least shortest, with the records.
func checkSpans(t *testing.T, s *history.Store, records []usage.Record, shortest time.Duration) {
	t.Helper()
	ctx := context.Background()
	for _, step := range []time.Duration{time.Minute, 7 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 36 * time.Hour} {
		if step < shortest || step%shortest != 0 {
			continue
		}
		span := history.Span{From: at(midnight), To: at(midnight + 3*1440), Step: step}
		minutes := int64(step / time.Minute)
		start := func(r usage.Record) string { return fmt.Sprint(r.Minute / minutes * minutes) }
		for _, q := range []struct {
			name string
			by   func(usage.Record) string
			ask  func() ([]history.Point, error)
		}{
			{"all", start, func() ([]history.Point, error) { return s.TotalUsage(ctx, span) }},
			{"search", func(r usage.Record) string {
				if r.Resource != "search" {
					return ""
				}
				return start(r)
			}, func() ([]history.Point, error) { return s.TotalUsage(ctx, span, "search") }},
			{"t1", func(r usage.Record) string {
				if r.Token != "t1" {
					return ""
				}
				return start(r)
			}, func() ([]history.Point, error) { return s.Usage(ctx, "t1", span) }},
		} {
			points, err := q.ask()
			if err != nil {
				t.Fatalf("%s by %s: %v", q.name, step, err)
			}
			want := used(records, q.by)
			for _, p := range points {
				name := fmt.Sprint(p.Start.Unix() / 60)
				if p.Totals != want[name] {
					t.Errorf("%s by %s: at %s %+v, want %+v", q.name, step, p.Start, p.Totals, want[name])
				}
				delete(want, name)
			}
			if len(want) > 0 {
				t.Errorf("%s by %s: no points for %v", q.name, step, want)
			}
		}
	}
	// A span of odd minutes, unless they are gone.
	from, to := int64(midnight), int64(midnight+3*1440)
	if shortest == time.Minute {
		from, to = from+17, to-71
	}
	top, err := s.Top(ctx, at(from), at(to), history.Sort{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	want := used(records, func(r usage.Record) string {
		if r.Minute < from || r.Minute >= to {
			return ""
		}
		return string(r.Token)
	})
	for _, got := range top {
		if w := want[string(got.ID)]; got.Ops != w.Admitted || got.Rejected != w.Rejected || got.Last != w.Last {
			t.Errorf("Top: %+v, want %+v", got, w)
		}
	}
	if len(top) != len(want) || !slices.IsSortedFunc(top, func(a, b history.Token) int { return cmp.Compare(b.Ops, a.Ops) }) {
		t.Errorf("Top: %d tokens, want %d, the highest first: %v", len(top), len(want), top)
	}
}

// The bugs that this is about: an hour unmarked while a writer who saw its mark
// has not committed; a day made from hours of which one is made anew right then.
func TestRollupsHoldWhatTheMinutesSay(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		ctx := context.Background()
		s, other := open(t, url), open(t, url)
		rng := rand.New(rand.NewPCG(1, 2))
		records := threeDays(rng, 400)
		later := at(midnight + 10*1440)

		var g errgroup.Group
		stop := make(chan struct{})
		g.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if _, _, err := other.Rollup(ctx, later); err != nil {
					return err
				}
			}
		})
		var writers errgroup.Group
		for w := range 2 {
			rng := rand.New(rand.NewPCG(3, uint64(w)))
			writers.Go(func() error { return replay([]*history.Store{s, other}[w], rng, records) })
		}
		if err := writers.Wait(); err != nil {
			t.Fatal(err)
		}
		checkSpans(t, s, records, time.Minute) // some of it rolled up
		close(stop)
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}

		if _, _, err := s.Rollup(ctx, later); err != nil {
			t.Fatal(err)
		}
		checkSpans(t, s, records, time.Minute) // all of it rolled up
		if hours, days, err := s.Rollup(ctx, later); hours != 0 || days != 0 || err != nil {
			t.Errorf("Rollup of clean hours = %d, %d, %v", hours, days, err)
		}

		late := []usage.Record{record("t1", "", midnight+1441, 50, 1), record("t9", "", midnight+2, 1, 0)}
		ingest(t, s, late...)
		records = append(records, late...)
		checkSpans(t, s, records, time.Minute) // the late ones are not
		if hours, days, err := s.Rollup(ctx, later); hours != 2 || days != 2 || err != nil {
			t.Errorf("Rollup after two late records = %d, %d, %v, want 2 hours and 2 days", hours, days, err)
		}
		checkSpans(t, s, records, time.Minute)
	})
}

func TestDroppedMinutesLeaveHoursAndDays(t *testing.T) {
	onEach(t, func(t *testing.T, url string) {
		ctx, s := context.Background(), open(t, url)
		records := threeDays(rand.New(rand.NewPCG(4, 5)), 300)
		ingest(t, s, records...)
		if days, err := s.DropMinutes(ctx, at(midnight+2*1440+1)); days != 0 || err != nil {
			t.Errorf("DropMinutes of what is not rolled up = %d, %v", days, err)
		}
		if _, _, err := s.Rollup(ctx, at(midnight+10*1440)); err != nil {
			t.Fatal(err)
		}
		if days, err := s.DropMinutes(ctx, at(midnight+2*1440+1)); days != 2 || err != nil {
			t.Errorf("DropMinutes = %d, %v, want 2 days", days, err)
		}
		checkSpans(t, s, records, time.Hour)
		fine := history.Span{From: at(midnight), To: at(midnight + 60), Step: time.Minute}
		if _, err := s.Usage(ctx, "t1", fine); !errors.Is(err, history.ErrSpan) {
			t.Errorf("minutes that are gone: %v", err)
		}

		before, err := s.Sum(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ingest(t, s, record("t1", "", midnight+5, 1000, 0), record("t1", "", midnight+2*1440, 0, 0))
		if n := s.TooLate(); n != 1 {
			t.Errorf("TooLate = %d, want 1", n)
		}
		if after, err := s.Sum(ctx); after != before || err != nil {
			t.Errorf("the sum moved from %+v to %+v, %v", before, after, err)
		}
		checkSpans(t, s, records, time.Hour)
		err = s.EachSum(ctx, func(id token.ID, sum usage.Totals) error {
			if account, err := s.Token(ctx, id); err != nil || account.Ops != sum.Admitted || account.Rejected != sum.Rejected {
				return fmt.Errorf("rows of %s add up to %+v, the account says %+v, %v", id, sum, account, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
