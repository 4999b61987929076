package tracker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

const limit = 20 * time.Second

// until polls done, as there is nothing to wait on, for at most limit.
func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// heard is what a feed told.
type heard struct {
	mu      sync.Mutex
	cells   map[usage.Key]int
	resyncs int
}

func (h *heard) changed(cell usage.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cells[cell]++
}

func (h *heard) resync() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resyncs++
}

func (h *heard) synced() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resyncs
}

func (h *heard) of(cell usage.Key) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cells[cell]
}

func (h *heard) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.cells)
}

// words splits a command as a person types it.
func words(command string) []any {
	var args []any
	for _, word := range strings.Fields(command) {
		args = append(args, word)
	}
	return args
}

// watch follows a feed until the returned function is called.
func watch(t *testing.T, feed *tracker.RedisFeed) (*heard, func() error) {
	t.Helper()
	h := &heard{cells: map[usage.Key]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- feed.Watch(ctx, h.changed, h.resync) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = stop() })
	until(t, "the feed delivers", func() bool { return h.synced() > 0 })
	return h, stop
}

func TestFeedTellsOfCountersAndOfNothingElse(t *testing.T) {
	b := newBench(t)
	h, _ := watch(t, tracker.NewRedisFeed(b.client, tracker.FeedOptions{Log: quiet}))
	m := b.minute()
	b.count("unrelated:1", 1)
	b.count("{api:t}:notaminute", 1)
	b.count(ns.Limit("t", "daily", 0), 1)
	b.count(ns.Usage("t", "", m), 1)
	b.count(ns.Rejected("t", "r", m), 1)
	b.classic(ns.Foreign("f", int(m%60)))
	for _, cell := range []usage.Key{{Token: "t", Minute: m}, {Token: "t", Resource: "r", Minute: m}, {Token: "f", Minute: m}} {
		until(t, "every counter", func() bool { return h.of(cell) > 0 })
	}
	if n := h.count(); n != 3 {
		t.Errorf("heard of %d cells", n)
	}
}

func TestFeedKeepsTheFlagsThatAreSet(t *testing.T) {
	for was, want := range map[string]string{"": "E$", "Kx": "E$Kx", "AKE": "AKE", "E$": "E$"} {
		b := newBench(t, "--notify-keyspace-events", was)
		feed := tracker.NewRedisFeed(b.client, tracker.FeedOptions{Log: quiet})
		if err := feed.Check(context.Background()); err != nil {
			t.Fatal(err)
		}
		flags := b.client.ConfigGet(context.Background(), "notify-keyspace-events").Val()["notify-keyspace-events"]
		for _, flag := range want {
			if !strings.ContainsRune(flags, flag) {
				t.Errorf("%q became %q, want all of %q", was, flags, want)
			}
		}
	}
}

func TestFeedChecksOnlyWhenConfigIsToBeKept(t *testing.T) {
	b := newBench(t, "--notify-keyspace-events", "Kg")
	feed := tracker.NewRedisFeed(b.client, tracker.FeedOptions{KeepConfig: true, Log: quiet})
	err := feed.Check(context.Background())
	if !errors.Is(err, tracker.ErrNotifications) || !strings.Contains(err.Error(), `lacks "E$"`) {
		t.Errorf("Check = %v", err)
	}
	if err := feed.Watch(context.Background(), func(usage.Key) {}, func() {}); !errors.Is(err, tracker.ErrNotifications) {
		t.Errorf("Watch = %v", err)
	}
}

// Managed servers refuse CONFIG. The feed then finds out by trying whether
// notifications arrive, and names the flag if they do not.
func TestFeedWithoutConfigPermission(t *testing.T) {
	for _, test := range []struct {
		name, flags, acl string
		works            bool
	}{
		{"on", "E$", "~* &* +@all -config", true},
		{"off", "", "~* &* +@all -config", false},
		{"read but not set", "", "~* &* +@all -config +config|get", false},
		{"no probing", "E$", "~{api:* &* +@all -config", false},
		{"no subscribing", "E$", "~* resetchannels +@all", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := redistest.Start(t, "--notify-keyspace-events", test.flags)
			setUser := "ACL SETUSER tracker on >secret " + test.acl
			if err := s.Client().Do(context.Background(), words(setUser)...).Err(); err != nil {
				t.Fatal(err)
			}
			client := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "tracker", Password: "secret"})
			t.Cleanup(func() { _ = client.Close() })
			feed := tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet})
			if test.works {
				watch(t, feed)
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			err := feed.Watch(ctx, func(usage.Key) {}, func() {})
			if !errors.Is(err, tracker.ErrNotifications) {
				t.Fatalf("Watch = %v", err)
			}
			if text := err.Error(); !strings.Contains(text, "notify-keyspace-events") && !strings.Contains(text, "+subscribe") {
				t.Errorf("the error names no remedy: %v", err)
			}
		})
	}
}

func TestFeedResyncsAfterEveryReconnect(t *testing.T) {
	b := newBench(t)
	h, _ := watch(t, tracker.NewRedisFeed(b.client, tracker.FeedOptions{Log: quiet}))
	b.client.Do(context.Background(), "CLIENT", "KILL", "TYPE", "pubsub")
	until(t, "resync after CLIENT KILL", func() bool { return h.synced() == 2 })
	b.server.Restart() // has forgotten notify-keyspace-events
	until(t, "resync after a restart", func() bool { return h.synced() >= 3 })
	m := b.minute()
	b.count(ns.Usage("t", "", m), 1)
	until(t, "a notification after a restart", func() bool { return h.of(usage.Key{Token: "t", Minute: m}) > 0 })
}

// What the server had published before the end is heard, so that a tracker that
// stops leaves nothing behind.
func TestFeedIsHeardOutAtTheEnd(t *testing.T) {
	b := newBench(t)
	h, stop := watch(t, tracker.NewRedisFeed(b.client, tracker.FeedOptions{Log: quiet}))
	m := b.minute()
	const tokens = 5000
	_, err := b.client.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		for i := range tokens {
			pipe.Incr(context.Background(), ns.Usage(token.ID("t"+string(rune('0'+i%10))), "", m-int64(i)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := h.count(); n != tokens {
		t.Errorf("heard of %d cells, want %d", n, tokens)
	}
}
