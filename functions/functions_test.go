package functions_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/functions"
	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

const ns = counters.DefaultNamespace

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// step is one INCRBY and what follows it.
type step struct {
	key   string
	units int64
	ttl   time.Duration
}

// both does the same steps on two servers, one with the trigger, one with the
// tracker's script, and compares what they keep.
type both struct {
	t                *testing.T
	trigger, tracked *redis.Client
	host             *host
	ledger           *tracker.RedisLedger
}

func newBoth(t *testing.T) *both {
	b := &both{t: t, trigger: redistest.Start(t).Client(), tracked: redistest.Start(t).Client()}
	b.host = newHost(t, b.trigger, functions.Limiter, map[string]any{"namespace": "api", "grace": 600, "span": 120})
	b.ledger = tracker.NewRedisLedger(b.tracked, tracker.RedisOptions{Log: quiet})
	return b
}

func (b *both) do(s step) {
	b.t.Helper()
	ctx := context.Background()
	for _, client := range []*redis.Client{b.trigger, b.tracked} {
		if err := client.IncrBy(ctx, s.key, s.units).Err(); err != nil {
			b.t.Fatal(err)
		}
		if s.ttl > 0 {
			client.PExpire(ctx, s.key, s.ttl)
		}
	}
	if err := b.host.fire("incrby", s.key); err != nil {
		b.t.Fatal(err)
	}
	var cells []usage.Key
	if err := b.ledger.Scan(ctx, func(found []usage.Key) { cells = append(cells, found...) }); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.ledger.Apply(ctx, cells); err != nil {
		b.t.Fatal(err)
	}
}

// kept returns all hashes of a server. Times differ between two servers by how
// long the test takes: figures that are times are cut to ten seconds.
func kept(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	ctx := context.Background()
	all := map[string]string{}
	keys := client.ScanType(ctx, 0, "*", 1000, "hash").Iterator()
	for keys.Next(ctx) {
		hash, err := client.HGetAll(ctx, keys.Val()).Result()
		if err != nil {
			t.Fatal(err)
		}
		for field, value := range hash {
			parts := strings.Split(value, ":")
			for i, part := range parts {
				if n, err := strconv.ParseInt(part, 10, 64); err == nil && n > 1_500_000_000 {
					parts[i] = "time"
				}
			}
			all[keys.Val()+" "+field] = strings.Join(parts, ":")
		}
		if strings.HasPrefix(keys.Val(), "{") != (client.TTL(ctx, keys.Val()).Val() < 0) {
			t.Errorf("%s expires in %s", keys.Val(), client.TTL(ctx, keys.Val()).Val())
		}
	}
	return all
}

func (b *both) compare() {
	b.t.Helper()
	got, want := kept(b.t, b.trigger), kept(b.t, b.tracked)
	if maps.Equal(got, want) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			b.t.Errorf("%s: trigger %q, tracker %q", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			b.t.Errorf("%s: only the trigger keeps %q", name, got[name])
		}
	}
}

func TestTriggerKeepsWhatTheTrackerKeeps(t *testing.T) {
	b := newBoth(t)
	m := time.Now().Unix() / 60
	weird, _ := token.Parse("Jane {admin}: é\n")
	resource, _ := token.ParseResource("v1:search/all")
	foreign := func(id token.ID) string { return ns.Foreign(id, int(m%60)) }
	for _, s := range []step{
		{key: ns.Usage("a", "", m), units: 5},
		{key: ns.Usage("a", "", m), units: 1},
		{key: ns.Rejected("a", "", m), units: 3},
		{key: ns.Refunded("a", "", m), units: 2},
		{key: foreign("a"), units: 7, ttl: 59 * time.Second},
		{key: foreign("a"), units: 1, ttl: 59 * time.Second},
		{key: "{api:a}:" + strconv.FormatInt(100+m%60, 10)[1:], units: 4, ttl: 59 * time.Second}, // padded
		{key: ns.Usage("a", resource, m), units: 1 << 40},
		{key: ns.Usage("a", resource, m-3), units: 2},
		{key: ns.Rejected("a", resource, m-3), units: 2},
		{key: ns.Usage(weird, "rejected", m), units: 1},
		{key: ns.Usage("12:34", "", m+1), units: 1},
		{key: "{api:with space}:" + strconv.FormatInt(m%60, 10), units: 1, ttl: 59 * time.Second},
		{key: ns.Usage("old", "", m-30), units: 9}, // out of grace: nobody touches it
	} {
		b.do(s)
		b.compare()
	}
}

// The same random histories, of which each figure depends on those before.
func TestTriggerAndTrackerAgreeOnRandomHistories(t *testing.T) {
	b := newBoth(t)
	m := time.Now().Unix() / 60
	r := rand.New(rand.NewPCG(5, 5))
	for range 300 {
		id := token.ID("t" + strconv.Itoa(r.IntN(4)))
		s := step{units: 1 + r.Int64N(20)}
		at := m - r.Int64N(5)
		switch r.IntN(5) {
		case 0:
			s.key, s.ttl = ns.Foreign(id, int(m%60)), 59*time.Second
		case 1:
			s.key = ns.Rejected(id, "r", at)
		case 2:
			s.key = ns.Refunded(id, "", at)
		case 3:
			s.key = ns.Usage(id, "", at)
		default:
			s.key = ns.Usage(id, "r", at)
		}
		b.do(s)
	}
	b.compare()
}

// Keys that are no counters, and events that are not about growth.
func TestTriggerLeavesEverythingElseAlone(t *testing.T) {
	client := redistest.Start(t).Client()
	h := newHost(t, client, functions.Limiter, nil)
	m := strconv.FormatInt(time.Now().Unix()/60, 10)
	for _, key := range []string{
		"{api:}:" + m, "{api:t}:data", "{api:t}:0123", "{api:t}:" + m + ":", "{api:t}:" + m + ":a:b",
		"{api:t}:" + m + ":a b", "{api:t}:" + m + ":%61", "{api:t}:" + m + ":r:rejected:x", "{api:t}x:" + m, "{api:a{b}:" + m,
	} {
		if c := ns.ParseKey(key); c.Kind != counters.Other {
			t.Errorf("the tracker takes %s for a counter", key)
		}
		if err := h.fire("incrby", key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	client.Incr(context.Background(), "{api:t}:"+m)
	for _, event := range []string{"expire", "del", "expired", "keymiss", "set"} {
		if err := h.fire(event, "{api:t}:"+m); err != nil {
			t.Errorf("%s: %v", event, err)
		}
	}
	if n := client.DBSize(context.Background()).Val(); n != 1 {
		t.Errorf("%d keys, want only the counter", n)
	}
}

// Where the trigger was first, the tracker has nothing to move and only publishes.
func TestTrackerBesideTheTriggerOnlyPublishes(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	h := newHost(t, client, functions.Limiter, nil)
	m := time.Now().Unix() / 60
	client.IncrBy(ctx, ns.Usage("t", "", m), 5)
	if err := h.fire("incrby", ns.Usage("t", "", m)); err != nil {
		t.Fatal(err)
	}
	applied, err := tracker.NewRedisLedger(client, tracker.RedisOptions{Log: quiet}).Apply(ctx, []usage.Key{{Token: "t", Minute: m}})
	if err != nil || len(applied) != 1 || applied[0].Moved != 0 || applied[0].Admitted != 5 || applied[0].Last == 0 {
		t.Errorf("%+v, %v", applied, err)
	}
}

func TestServersWithoutTriggersAreNamed(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx := context.Background()
	_, lerr := functions.List(ctx, client)
	for what, err := range map[string]error{
		"load":   functions.Load(ctx, client, functions.Config{Namespace: "api", Grace: time.Minute, SeriesSpan: 120}),
		"delete": functions.Delete(ctx, client),
		"list":   lerr,
	} {
		if !errors.Is(err, functions.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
