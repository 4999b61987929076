package memory_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/quota"

	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/quota/quotatest"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestConformance(t *testing.T) {
	quotatest.Run(t, func(t *testing.T, clock *quotatest.Clock) quotatest.Subject {
		s := memory.New(memory.Options{Now: clock.UnixMilli, Grace: 1e4 * time.Hour})
		return quotatest.Subject{Store: s, Counted: func(id token.ID, resource string, minute int64) quotatest.Counted {
			records, err := s.Apply(context.Background(), []usage.Key{{Token: id, Resource: resource, Minute: minute}})
			if err != nil {
				t.Fatal(err)
			}
			if len(records) == 0 {
				return quotatest.Counted{}
			}
			return quotatest.Counted{Admitted: records[0].Admitted, Rejected: records[0].Rejected, Refunded: records[0].Refunded}
		}}
	})
}

func TestWhatHasExpiredIsForgotten(t *testing.T) {
	clock := new(quotatest.Clock)
	clock.Set(quotatest.Epoch())
	s := memory.New(memory.Options{Now: clock.UnixMilli, Grace: 10 * time.Minute})
	limits := []quota.Limit{{Name: "10s", Quota: 5, Window: 10 * time.Second}}
	const tokens = 2_000
	for i := range 20 * tokens { // a token is used once and never again
		clock.Set(clock.UnixMilli() + 1000)
		s.Decide(context.Background(), quota.Request{Token: token.ID(strconv.Itoa(i)), Cost: 1, Limits: limits})
	}
	cells := 0
	if err := s.Scan(context.Background(), func(keys []usage.Key) { cells += len(keys) }); err != nil {
		t.Fatal(err)
	}
	if cells < 600 || cells > 6_000 { // 660 s of grace and minute are 660 tokens
		t.Errorf("%d cells are kept", cells)
	}
}

func TestChangesAreToldOnceHoweverMany(t *testing.T) {
	s := memory.New(memory.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	resynced, told, done := make(chan struct{}), make(chan usage.Key, 100), make(chan error, 1)
	hold := make(chan struct{})
	go func() {
		done <- s.Watch(ctx, func(key usage.Key) { told <- key; <-hold }, func() { close(resynced) })
	}()
	<-resynced
	if err := s.Watch(ctx, nil, nil); !errors.Is(err, memory.ErrWatched) {
		t.Errorf("a second Watch: %v", err)
	}
	r := s.Decide(ctx, quota.Request{Token: "T", Resource: "search", Cost: 1})
	want := usage.Key{Token: "T", Resource: "search", Minute: quota.Minute(r.At)}
	if got := <-told; got != want {
		t.Errorf("told %+v, want %+v", got, want)
	}
	for range 1000 { // the watcher is stuck; deciding goes on
		s.Decide(ctx, quota.Request{Token: "T", Resource: "list", Cost: 1})
	}
	close(hold)
	if got := <-told; got.Resource != "list" {
		t.Errorf("told %+v, want the other resource", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := len(told); n > 1 { // a minute may have turned in between
		t.Errorf("%d more changes were told", n)
	}
}

func TestApplyingTwiceChangesNothing(t *testing.T) {
	clock := new(quotatest.Clock)
	clock.Set(quotatest.Epoch() + 1500)
	s := memory.New(memory.Options{Now: clock.UnixMilli})
	ctx := context.Background()
	s.Decide(ctx, quota.Request{Token: "T", Cost: 7})
	s.Decide(ctx, quota.Request{Token: "T", Cost: 2, Blocked: true})
	key := usage.Key{Token: "T", Minute: quota.Minute(clock.UnixMilli())}
	last := clock.UnixMilli() / 1000
	for range 2 {
		records, err := s.Apply(ctx, []usage.Key{key, {Token: "unknown"}})
		want := usage.Record{Key: key, Totals: usage.Totals{Admitted: 7, Rejected: 2, Last: last}}
		if err != nil || len(records) != 1 || records[0].Record != want {
			t.Fatalf("Apply = %+v, %v, want %+v", records, err, want)
		}
		points, err := s.Points(ctx, "T", "", key.Minute-1000, key.Minute+1)
		if err != nil || len(points) != 1 || points[0] != (timeseries.Point{Minute: key.Minute, Admitted: 7, Rejected: 2}) {
			t.Errorf("Points = %+v, %v", points, err)
		}
		if m, ok := s.Meta("T"); !ok || m != (metadata.Meta{First: last, Last: last, Ops: 7, Rejected: 2}) {
			t.Errorf("Meta = %+v, %t", m, ok)
		}
	}
}

func TestARestoredStoreCountsOn(t *testing.T) {
	clock := new(quotatest.Clock)
	clock.Set(quotatest.Epoch())
	s := memory.New(memory.Options{Now: clock.UnixMilli})
	ctx := context.Background()
	key := usage.Key{Token: "T", Resource: "search", Minute: quota.Minute(clock.UnixMilli())}
	s.Restore([]usage.Record{{Key: key, Totals: usage.Totals{Admitted: 9, Rejected: 2, Last: 60}}})
	limits := []quota.Limit{{Name: "minute", Quota: 10, Window: time.Minute, Resources: []string{"search"}}}
	for _, want := range []bool{true, false} {
		if r := s.Decide(ctx, quota.Request{Token: "T", Resource: "search", Cost: 1, Limits: limits}); r.Allowed != want {
			t.Errorf("allowed %t with 9 of 10 units restored, want %t", r.Allowed, want)
		}
	}
	applied, err := s.Apply(ctx, []usage.Key{key})
	if err != nil || len(applied) != 1 || applied[0].Admitted != 10 || applied[0].Rejected != 3 || applied[0].Moved != 2 {
		t.Errorf("Apply = %+v, %v, want 10 and 3 units of which 2 are new", applied, err)
	}
}

func BenchmarkDecide(b *testing.B) {
	limits := []quota.Limit{
		{Name: "minute", Quota: quota.MaxCost, Window: time.Minute, Resources: []string{"search"}},
		{Name: "hour", Quota: quota.MaxCost, Window: time.Hour},
		{Name: "day", Quota: quota.MaxCost, Window: 24 * time.Hour},
	}
	for _, tokens := range []int{1, 1_000, 100_000} {
		ids := make([]token.ID, tokens)
		for i := range ids {
			ids[i] = token.ID("token-" + strconv.Itoa(i))
		}
		for _, n := range []int{1, 3} {
			b.Run(fmt.Sprintf("tokens=%d/limits=%d", tokens, n), func(b *testing.B) {
				s := memory.New(memory.Options{})
				for _, id := range ids {
					s.Decide(context.Background(), quota.Request{Token: id, Resource: "search", Cost: 1, Limits: limits[:n]})
				}
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					s.Decide(context.Background(), quota.Request{Token: ids[i*7919%tokens], Resource: "search", Cost: 1, Limits: limits[:n]})
				}
			})
		}
	}
}
