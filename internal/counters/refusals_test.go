package counters_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/redistest"
)

// calls returns how many scripts the server has run.
func calls(t testing.TB, client *redis.Client) string {
	t.Helper()
	stats := client.Info(context.Background(), "commandstats").Val()
	for line := range strings.Lines(stats) {
		if strings.HasPrefix(line, "cmdstat_evalsha:") {
			count, _, _ := strings.Cut(line, ",")
			return count
		}
	}
	return ""
}

func TestAKnownRefusalNeedsNoRedisCallUntilUnitsAreGivenBack(t *testing.T) {
	client := redistest.Start(t).Client()
	ctx, cancel := context.WithCancel(context.Background())
	// Two enforcers.
	store, other := counters.NewStore(client, counters.Options{}), counters.NewStore(client, counters.Options{})
	group := counters.NewGroup(store, counters.GroupOptions{})
	followed := make(chan error, 1)
	go func() { followed <- group.Run(ctx) }()
	waitUntil(t, func() bool { return client.PubSubNumSub(ctx, ns.Freed()).Val()[ns.Freed()] == 1 })

	limits := []quota.Limit{{Name: "day", Quota: 2, Window: 24 * time.Hour}}
	request := quota.Request{Token: "T", Resource: "search", Cost: 1, Limits: limits}
	ask := func() quota.Result {
		t.Helper()
		r := group.Decide(context.Background(), request)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r
	}
	first := ask()
	ask()
	var asked string
	waitUntil(t, func() bool { // the group may have begun to listen a moment later
		ask()
		asked = calls(t, client)
		return !ask().Allowed && calls(t, client) == asked
	})
	for range 50 {
		if r := ask(); r.Allowed || r.RetryAfter <= 0 || r.RetryAfter > 24*time.Hour || len(r.Limits) != 1 || r.Violated != 0 {
			t.Fatalf("a known refusal: %+v", r)
		}
	}
	if now := calls(t, client); now != asked {
		t.Errorf("script calls went from %s to %s", asked, now)
	}
	if err := group.Close(ctx); err != nil {
		t.Fatal(err)
	}
	rejected := func() (sum int64) {
		for minute := quota.Minute(first.At); minute <= quota.Minute(ask().At)+1; minute++ {
			n, _ := client.Get(ctx, ns.Rejected("T", "search", minute)).Int64()
			sum += n
		}
		return sum
	}
	if n := rejected(); n < 52 {
		t.Errorf("%d units counted as rejected, want those of at least 52 refusals", n)
	}

	refund := quota.Adjustment{Kind: quota.Refund, Token: "T", Resource: "search", At: first.At, Units: 1, Limits: limits}
	if err := other.Adjust(ctx, refund); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return ask().Allowed })
	if r := ask(); r.Allowed {
		t.Error("one unit was given back and two were allowed")
	}
	cancel()
	if err := <-followed; err != nil {
		t.Error(err)
	}
}
