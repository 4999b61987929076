package load

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/redistest"
)

func TestClassicWritesExactlyWhatTheRecipeWrites(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	c := NewClassic(client, "api", 3)
	at := time.Date(2026, 3, 4, 5, 54, 30, 0, time.UTC)
	c.now = func() time.Time { return at }
	for i, want := range []quota.Outcome{quota.Admitted, quota.Admitted, quota.Admitted, quota.Rejected} {
		a, err := c.Decide(t.Context(), Request{Token: "0ubo9qku7y", Cost: 1})
		if err != nil || a.Outcome != want || a.At != at.UnixMilli() {
			t.Errorf("request %d: %+v, %v, want %s", i, a, err, want)
		}
	}
	keys := client.Keys(t.Context(), "*").Val()
	if len(keys) != 1 || keys[0] != "{api:0ubo9qku7y}:54" {
		t.Fatalf("keys %q", keys)
	}
	if v, ttl := client.Get(t.Context(), keys[0]).Val(), client.TTL(t.Context(), keys[0]).Val(); v != "3" || ttl > 59*time.Second || ttl < 50*time.Second {
		t.Errorf("value %s, TTL %s", v, ttl)
	}
}

func TestClassicKnowsWhatWasCertainlyNotCounted(t *testing.T) {
	server := redistest.Start(t)
	options := &redis.Options{Addr: server.Addr, MaxRetries: -1, DialerRetries: 1, ReadTimeout: 100 * time.Millisecond}
	client := redis.NewClient(options)
	defer client.Close()
	decide := func(c redis.UniversalClient) error {
		_, err := NewClassic(c, "api", 3).Decide(t.Context(), Request{Token: "T", Cost: 1})
		return err
	}
	if err := decide(client); err != nil {
		t.Fatal(err)
	}
	if err := server.Client().ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := decide(client); !errors.Is(err, ErrNotCounted) {
		t.Errorf("a server that is out of memory: %v, want ErrNotCounted", err)
	}
	away := redis.NewClient(&redis.Options{Addr: proctest.FreeAddr(t), MaxRetries: -1, DialerRetries: 1})
	defer away.Close()
	if err := decide(away); !errors.Is(err, ErrNotCounted) {
		t.Errorf("a server that is away: %v, want ErrNotCounted", err)
	}
}
