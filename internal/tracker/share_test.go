package tracker_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

func owned(s tracker.Share, tokens int) map[token.ID]bool {
	ids := map[token.ID]bool{}
	for i := range tokens {
		if id := token.ID("t" + strconv.Itoa(i)); s.Owns(id) {
			ids[id] = true
		}
	}
	return ids
}

func beat(t *testing.T, shares ...*tracker.RedisShare) {
	t.Helper()
	for range 2 { // in the second round everybody has heard of everybody
		for _, s := range shares {
			if _, err := s.Beat(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Every token has exactly one owner, each tracker a fair share, and when one leaves
// only its own tokens change hands.
func TestSharesPartitionTheTokens(t *testing.T) {
	const tokens = 3000
	b := newBench(t)
	a, c, d := tracker.NewRedisShare(b.client, ""), tracker.NewRedisShare(b.client, ""), tracker.NewRedisShare(b.client, "")
	if n := len(owned(a, tokens)); n != tokens {
		t.Errorf("before it joined a tracker owns %d tokens", n)
	}
	beat(t, a, c, d)
	shares := []map[token.ID]bool{owned(a, tokens), owned(c, tokens), owned(d, tokens)}
	sum := 0
	for i, s := range shares {
		sum += len(s)
		if len(s) < tokens/4 || len(s) > tokens/2 {
			t.Errorf("tracker %d owns %d of %d", i, len(s), tokens)
		}
		for id := range s {
			if shares[(i+1)%3][id] {
				t.Fatalf("%s has two owners", id)
			}
		}
	}
	if sum != tokens {
		t.Errorf("%d of %d have an owner", sum, tokens)
	}
	if err := d.Leave(context.Background()); err != nil {
		t.Fatal(err)
	}
	beat(t, a, c)
	for id := range shares[0] {
		if !a.Owns(id) {
			t.Fatalf("%s changed hands though its owner stayed", id)
		}
	}
	if n := len(owned(a, tokens)) + len(owned(c, tokens)); n != tokens {
		t.Errorf("%d of %d have an owner after one left", n, tokens)
	}
}

// Two trackers share the work; one dies without a word. The other takes over what
// the dead one had heard of and not done, and the account is exact.
func TestATrackerTakesOverFromADeadOne(t *testing.T) {
	b := newBench(t)
	bus := localbus.New(0)
	account := history(t, bus)
	start := func(share tracker.Share, ledger tracker.Ledger) (*tracker.Tracker, context.CancelFunc) {
		client := b.server.Client()
		tr := tracker.New(tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}), ledger, bus,
			tracker.Options{FlushEvery: 10 * time.Millisecond, DrainTimeout: time.Millisecond, Share: share, Log: quiet})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = tr.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		return tr, cancel
	}
	alive, doomed := tracker.NewRedisShare(b.client, ""), &deaf{Share: tracker.NewRedisShare(b.client, "")}
	first, _ := start(alive, b.ledger)
	start(doomed, stuck{b.ledger}) // it hears and never gets anything done
	until(t, "both know each other", func() bool {
		n := len(owned(alive, 100))
		return n > 0 && n < 100 && len(owned(doomed, 100)) == 100-n
	})
	m := b.minute()
	const tokens = 100
	for i := range tokens {
		b.count(ns.Usage(token.ID("t"+strconv.Itoa(i)), "", m), int64(i+1))
	}
	until(t, "the living one did its share", func() bool { return len(account.Records()) >= len(owned(alive, tokens)) })
	if len(account.Records()) == tokens {
		t.Fatal("the other's share is done already; the test proves nothing")
	}
	doomed.dead.Store(true) // from now on nothing is heard of it
	until(t, "everything is accounted for", func() bool { return len(account.Records()) == tokens })
	for i := range tokens {
		id := token.ID("t" + strconv.Itoa(i))
		if ops := b.meta(id).Ops; ops != int64(i+1) {
			t.Errorf("ops of %s is %d, want %d", id, ops, i+1)
		}
	}
	if err := first.Ready(context.Background()); err != nil {
		t.Error(err)
	}
}

// Nobody was at work for longer than counters live: what may be lost is reported.
func TestAnOutageBeyondGraceIsReported(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	now := b.client.Time(ctx).Val().Unix()
	b.client.Set(ctx, tracker.MarkKey(ns), now-3600, 0)
	bus := localbus.New(0)
	account := history(t, bus)
	track(t, b.client, bus)
	account.Until(t, func(_ map[usage.Key]usage.Totals, events map[string]usage.Event) bool {
		e := events["tracker.gap:"+strconv.FormatInt(now-3600, 10)]
		return e.Kind == "tracker.gap_found" && len(e.After) > 0
	})
	until(t, "the mark moves on", func() bool {
		at, _ := b.client.Get(ctx, tracker.MarkKey(ns)).Int64()
		return at >= now
	})
}
