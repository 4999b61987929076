package tracker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

const ns = counters.DefaultNamespace

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// bench is a server with a ledger on it.
type bench struct {
	t      testing.TB
	server *redistest.Server
	client *redis.Client
	ledger *tracker.RedisLedger
}

func newBench(t testing.TB, args ...string) *bench {
	t.Helper()
	server := redistest.Start(t, args...)
	client := server.Client()
	return &bench{t, server, client, tracker.NewRedisLedger(client, tracker.RedisOptions{Log: quiet})}
}

// minute returns the server's epoch minute.
func (b *bench) minute() int64 {
	b.t.Helper()
	now, err := b.client.Time(context.Background()).Result()
	if err != nil {
		b.t.Fatal(err)
	}
	return now.Unix() / 60
}

// count grows a counter as the enforcer does.
func (b *bench) count(key string, units int64) {
	b.t.Helper()
	_, err := b.client.TxPipelined(context.Background(), func(pipe redis.Pipeliner) error {
		pipe.IncrBy(context.Background(), key, units)
		pipe.Expire(context.Background(), key, 11*time.Minute)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// classic counts one unit by the classic recipe.
func (b *bench) classic(key string) {
	b.t.Helper()
	_, err := b.client.TxPipelined(context.Background(), func(pipe redis.Pipeliner) error {
		pipe.Incr(context.Background(), key)
		pipe.Expire(context.Background(), key, 59*time.Second)
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) apply(cells ...usage.Key) []usage.Applied {
	b.t.Helper()
	applied, err := b.ledger.Apply(context.Background(), cells)
	if err != nil {
		b.t.Fatal(err)
	}
	return applied
}

func (b *bench) meta(id token.ID) metadata.Meta {
	b.t.Helper()
	metas, err := metadata.Read(context.Background(), b.client, string(ns), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return metas[0]
}

func (b *bench) points(id token.ID, resource string) []timeseries.Point {
	b.t.Helper()
	points, err := timeseries.NewRing(b.client, string(ns)).Points(context.Background(), id, resource, 0, 1<<40)
	if err != nil {
		b.t.Fatal(err)
	}
	return points
}

func TestApplyMovesEverythingTogetherAndOnce(t *testing.T) {
	b := newBench(t)
	m := b.minute()
	cell := usage.Key{Token: "t", Resource: "search", Minute: m}
	b.count(ns.Usage("t", "search", m), 5)
	b.count(ns.Rejected("t", "search", m), 2)
	b.count(ns.Refunded("t", "search", m), 1)
	for i := range 3 {
		applied := b.apply(cell)
		if len(applied) != 1 {
			t.Fatalf("%d records", len(applied))
		}
		a := applied[0]
		if a.Key != cell || a.Admitted != 5 || a.Rejected != 2 || a.Refunded != 1 || a.Last/60 < m {
			t.Errorf("call %d: %+v", i, a)
		}
		if want := []int64{8, 0, 0}[i]; a.Moved != want {
			t.Errorf("call %d moved %d units, want %d", i, a.Moved, want)
		}
		meta := b.meta("t")
		want := metadata.Meta{
			Ops: 5, Rejected: 2, Refunded: 1, First: a.Last, Last: a.Last,
			Minute: m, Rate: 5, Peak: 5, PeakMinute: m,
		}
		if meta != want {
			t.Errorf("call %d: %+v, last %d", i, meta, a.Last)
		}
		if points := b.points("t", "search"); !reflect.DeepEqual(points, []timeseries.Point{{Minute: m, Admitted: 5, Rejected: 2, Refunded: 1}}) {
			t.Errorf("call %d: series %+v", i, points)
		}
	}
}

func TestACellThatNeverWasHasNoRecord(t *testing.T) {
	b := newBench(t)
	if applied := b.apply(usage.Key{Token: "t", Minute: b.minute()}); len(applied) != 0 {
		t.Errorf("%+v", applied)
	}
	if n := b.client.DBSize(context.Background()).Val(); n != 0 {
		t.Errorf("%d keys were made", n)
	}
}

// The classic recipe counts on {api:T}:<minute of the hour>, written 7 or 07; what
// Tallygate counts in the same minute is added to it.
func TestForeignCountersAreAccountedForExactly(t *testing.T) {
	b := newBench(t)
	m := b.minute()
	cell := usage.Key{Token: "t", Minute: m}
	foreign := ns.Foreign("t", int(m%60))
	for range 7 {
		b.classic(foreign)
	}
	b.count(ns.Usage("t", "", m), 10)
	if a := b.apply(cell, cell); len(a) != 1 || a[0].Admitted != 17 {
		t.Fatalf("%+v", a)
	}
	if ops := b.meta("t").Ops; ops != 17 {
		t.Errorf("a cell named twice in one call was accounted for twice: ops %d", ops)
	}
	b.classic(foreign)
	b.count(ns.Usage("t", "", m), 1)
	if a := b.apply(cell); a[0].Admitted != 19 || a[0].Moved != 2 {
		t.Errorf("%+v", a)
	}
	if m%60 < 10 {
		b.classic(fmt.Sprintf("{api:t}:%02d", m%60))
		if a := b.apply(cell); a[0].Admitted != 20 || a[0].Moved != 1 {
			t.Errorf("with a padded minute: %+v", a)
		}
	}
	// Both counters gone: the account stays.
	want := b.meta("t").Ops
	b.client.Del(context.Background(), foreign, ns.Usage("t", "", m))
	if a := b.apply(cell); a[0].Admitted < 19 || a[0].Moved != 0 {
		t.Errorf("after expiry: %+v", a)
	}
	if got := b.meta("t").Ops; got != want {
		t.Errorf("ops %d, want %d", got, want)
	}
}

// Mechanism: hits in the first second of a minute let the key expire in its last
// second; a hit thereafter begins a new counter in the same minute, at a value
// that was applied already.
func TestAForeignCounterThatBeginsAnewInItsMinuteCountsInFull(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	m := b.minute()
	cell := usage.Key{Token: "t", Minute: m}
	foreign := ns.Foreign("t", int(m%60))
	hit := func(ttl time.Duration) {
		if err := b.client.Incr(ctx, foreign).Err(); err != nil {
			t.Fatal(err)
		}
		b.client.PExpire(ctx, foreign, ttl)
	}
	hit(20 * time.Millisecond) // stands for 59 s: it ends within the minute
	b.apply(cell)
	for b.client.Exists(ctx, foreign).Val() == 1 {
		time.Sleep(time.Millisecond)
	}
	if b.minute() != m {
		t.Skip("the minute has just ended")
	}
	hit(59 * time.Second)
	if a := b.apply(cell); a[0].Admitted != 2 || a[0].Moved != 1 {
		t.Errorf("%+v", a)
	}
	if a := b.apply(cell); a[0].Admitted != 2 || a[0].Moved != 0 {
		t.Errorf("again: %+v", a)
	}
}

// The same key an hour ago was another minute: its mark names that minute, so the
// generations cannot mix.
func TestAForeignCounterOfAnEarlierHourIsAnotherCell(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	m := b.minute()
	b.client.HSet(ctx, tracker.AppliedKey(ns, "t"), fmt.Sprintf("%d@%d", m%60, m-60), "100:100:0")
	b.classic(ns.Foreign("t", int(m%60)))
	if a := b.apply(usage.Key{Token: "t", Minute: m}); a[0].Admitted != 1 {
		t.Errorf("%+v", a)
	}
	if a := b.apply(usage.Key{Token: "t", Minute: m - 60}); len(a) != 0 {
		t.Errorf("the minute an hour ago: %+v", a)
	}
}

// last is when the token was last admitted, as exactly as that is known: now, or
// the end of the minute if the minute is over.
func TestLastIsWithinItsMinuteAndNeverGoesBack(t *testing.T) {
	b := newBench(t)
	m := b.minute()
	old := usage.Key{Token: "t", Resource: "a", Minute: m - 3}
	b.count(ns.Usage("t", "b", m), 1)
	newest := b.apply(usage.Key{Token: "t", Resource: "b", Minute: m})[0].Last
	b.count(ns.Usage("t", "a", m-3), 1)
	if a := b.apply(old); a[0].Last != (m-3)*60+59 {
		t.Errorf("last of a minute that is over: %d", a[0].Last)
	}
	b.count(ns.Rejected("t", "b", m), 1)
	b.apply(usage.Key{Token: "t", Resource: "b", Minute: m})
	if meta := b.meta("t"); meta.Last != newest || meta.First != (m-3)*60+59 {
		t.Errorf("%+v, want last %d", meta, newest)
	}
}

// Marks are pruned once their minute is out of grace; the minute is refused from
// then on, whatever is still there.
func TestMarksArePrunedAndTheirMinutesRefused(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	m := b.minute()
	gone := m - 13
	applied := tracker.AppliedKey(ns, "t")
	b.client.HSet(ctx, applied, strconv.FormatInt(gone, 10), "5:0:0:0", strconv.FormatInt(gone, 10)+":search", "5:0:0:0",
		fmt.Sprintf("%d@%d", gone%60, gone), "5:5:0")
	b.count(ns.Usage("t", "", gone), 9)
	if a := b.apply(usage.Key{Token: "t", Minute: gone}); len(a) != 0 {
		t.Errorf("a minute out of grace: %+v", a)
	}
	b.count(ns.Usage("t", "", m), 1)
	b.apply(usage.Key{Token: "t", Minute: m})
	if n := b.client.HLen(ctx, applied).Val(); n != 1 {
		t.Errorf("%d marks are left: %v", n, b.client.HKeys(ctx, applied).Val())
	}
	if ttl := b.client.TTL(ctx, applied).Val(); ttl < 13*time.Minute {
		t.Errorf("marks live %s, less than the counter's minute, grace and a margin", ttl)
	}
	if ops := b.meta("t").Ops; ops != 1 {
		t.Errorf("ops %d", ops)
	}
}

func TestApplySurvivesScriptFlushAndRestart(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	for i := range int64(3) {
		switch i {
		case 1:
			b.client.ScriptFlush(ctx)
		case 2:
			b.server.Restart()
		}
		m := b.minute()
		b.count(ns.Usage("t", "", m), 1)
		if a := b.apply(usage.Key{Token: "t", Minute: m}); len(a) != 1 {
			t.Errorf("%d: %+v", i, a)
		}
	}
}

// One token whose keys were tampered with must not stop the others, and must not
// be half applied.
func TestATokenWithBrokenKeysHurtsNoOther(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	m := b.minute()
	b.client.Set(ctx, metadata.Key(string(ns), "bad"), "no hash", 0)
	b.client.Set(ctx, tracker.AppliedKey(ns, "worse"), "no hash", 0)
	b.client.Set(ctx, timeseries.Key(string(ns), "noseries", ""), "no hash", 0)
	b.client.LPush(ctx, ns.Usage("list", "", m), 1)
	var cells []usage.Key
	for _, id := range []token.ID{"bad", "worse", "noseries", "list", "good"} {
		if id != "list" {
			b.count(ns.Usage(id, "", m), 3)
		}
		cells = append(cells, usage.Key{Token: id, Minute: m})
	}
	got := map[token.ID]int64{}
	for _, a := range b.apply(cells...) {
		got[a.Token] = a.Admitted
	}
	if want := map[token.ID]int64{"noseries": 3, "good": 3}; !reflect.DeepEqual(got, want) {
		t.Errorf("records %v, want %v", got, want)
	}
	if n := b.client.Exists(ctx, tracker.AppliedKey(ns, "bad")).Val(); n != 0 {
		t.Error("a token was marked as applied though its metadata could not move")
	}
	b.client.Del(ctx, metadata.Key(string(ns), "bad"))
	if a := b.apply(cells[0]); a[0].Moved != 3 {
		t.Errorf("after repair: %+v", a)
	}
}

func TestWeirdTokensAndResources(t *testing.T) {
	b := newBench(t)
	m := b.minute()
	want := map[usage.Key]int64{}
	for i, text := range []string{"Jane {admin}", "a:b:c", "54", "data", "%", "é\n", "*", "[x]", "12:34"} {
		id, err := token.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for j, name := range []string{"", "v1:search", "rejected", "a b"} {
			resource, err := token.ParseResource(name)
			if err != nil {
				t.Fatal(err)
			}
			units := int64(100*i + j + 1)
			b.count(ns.Usage(id, resource, m), units)
			want[usage.Key{Token: id, Resource: resource, Minute: m}] = units
		}
	}
	for _, tag := range []string{"with space", "percent%zz", "ünïcode"} { // an application's own
		b.classic("{api:" + tag + "}:" + strconv.FormatInt(m%60, 10))
		want[usage.Key{Token: token.ID(tag), Minute: m}] = 1
	}
	var cells []usage.Key
	if err := b.ledger.Scan(context.Background(), func(found []usage.Key) { cells = append(cells, found...) }); err != nil {
		t.Fatal(err)
	}
	got := map[usage.Key]int64{}
	for _, a := range b.apply(cells...) {
		got[a.Key] = a.Admitted
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// Several trackers may apply the same tokens while their counters grow: the sum of
// what they moved is what was counted.
func TestConcurrentApplyIsExact(t *testing.T) {
	b := newBench(t)
	ctx := context.Background()
	m := b.minute()
	const tokens, hits = 20, 2000
	id := func(i int) token.ID { return token.ID("t" + strconv.Itoa(i)) }
	var cells []usage.Key
	for i := range tokens {
		cells = append(cells, usage.Key{Token: id(i), Minute: m}, usage.Key{Token: id(i), Resource: "r", Minute: m})
	}
	var load, trackers sync.WaitGroup
	stop := make(chan struct{})
	moved := make([]int64, 3)
	for i := range moved {
		trackers.Go(func() {
			ledger := tracker.NewRedisLedger(b.server.Client(), tracker.RedisOptions{Log: quiet})
			for last := false; !last; {
				select {
				case <-stop:
					last = true
				default:
				}
				applied, err := ledger.Apply(ctx, cells)
				if err != nil {
					t.Error(err)
					return
				}
				for _, a := range applied {
					moved[i] += a.Moved
				}
			}
		})
	}
	var want [tokens]int64
	var mu sync.Mutex
	for w := range 4 {
		load.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for range hits / 4 {
				i, units := r.IntN(tokens), 1+r.Int64N(5)
				switch r.IntN(3) {
				case 0:
					b.count(ns.Usage(id(i), "", m), units)
				case 1:
					b.count(ns.Usage(id(i), "r", m), units)
				default:
					b.classic(ns.Foreign(id(i), int(m%60)))
					units = 1
				}
				mu.Lock()
				want[i] += units
				mu.Unlock()
			}
		})
	}
	load.Wait()
	close(stop)
	trackers.Wait()
	var all int64
	for i := range tokens {
		all += want[i]
		if got := b.meta(id(i)).Ops; got != want[i] {
			t.Errorf("token %d: ops %d, counted %d", i, got, want[i])
		}
	}
	if sum := moved[0] + moved[1] + moved[2]; sum != all {
		t.Errorf("trackers moved %d units, counted %d", sum, all)
	}
}
