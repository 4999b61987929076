package quotatest

import (
	"context"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
)

// step is one request and what is answered to it.
type step struct {
	at       time.Duration // after the Epoch
	cost     int64
	resource string
	blocked  bool
	want     string
}

var (
	perMinute = quota.Limit{Name: "per-minute", Quota: 3, Window: time.Minute, Resources: []string{"search"}}
	perDay    = quota.Limit{Name: "per-day", Quota: 5, Window: 24 * time.Hour}
	per10s    = quota.Limit{Name: "per-10s", Quota: 2, Window: 10 * time.Second}
)

var cases = []struct {
	name   string
	limits []quota.Limit
	steps  []step
}{
	{"the usage counter is the limit", []quota.Limit{perMinute}, []step{
		{50 * time.Second, 2, "search", false, "allowed, 1 left reset 10s"},
		{50 * time.Second, 2, "search", false, "refused, 1 left reset 10s retry 10s; by 0 after 10s"},
		{50 * time.Second, 1, "search", false, "allowed, 0 left reset 10s"},
		{59999 * time.Millisecond, 1, "search", false, "refused, 0 left reset 1ms retry 1ms; by 0 after 1ms"},
		{60 * time.Second, 3, "search", false, "allowed, 0 left reset 1m0s"},
	}},
	{"a limit over all resources counts them together", []quota.Limit{perDay}, []step{
		{0, 3, "search", false, "allowed, 2 left reset 24h0m0s"},
		{time.Hour, 3, "list", false, "refused, 2 left reset 23h0m0s retry 23h0m0s; by 0 after 23h0m0s"},
		{time.Hour, 2, "list", false, "allowed, 0 left reset 23h0m0s"},
		{24 * time.Hour, 1, "list", false, "allowed, 4 left reset 24h0m0s"},
	}},
	{"a refused request consumes nothing of any limit", []quota.Limit{perDay, per10s}, []step{
		{0, 2, "", false, "allowed, 3 left reset 24h0m0s, 0 left reset 10s"},
		{time.Second, 1, "", false, "refused, 3 left reset 23h59m59s, 0 left reset 9s retry 9s; by 1 after 9s"},
		{10 * time.Second, 2, "", false, "allowed, 1 left reset 23h59m50s, 0 left reset 10s"},
		{20 * time.Second, 2, "", false, "refused, 1 left reset 23h59m40s retry 23h59m40s, 2 left; by 0 after 23h59m40s"},
		{20 * time.Second, 1, "", false, "allowed, 0 left reset 23h59m40s, 1 left reset 10s"},
	}},
	{"a peek reports and consumes nothing", []quota.Limit{perMinute}, []step{
		{0, 0, "search", false, "allowed, 3 left"},
		{0, 3, "search", false, "allowed, 0 left reset 1m0s"},
		{0, 0, "search", false, "allowed, 0 left reset 1m0s"},
	}},
	{"a cost above the quota can never fit", []quota.Limit{perDay, perMinute}, []step{
		{0, 4, "search", false, "refused, 5 left, 3 left retry never; by 1 after never"},
		{0, 3, "search", false, "allowed, 2 left reset 24h0m0s, 0 left reset 1m0s"},
	}},
	{"a blocked token is refused whatever its limits", []quota.Limit{perDay}, []step{
		{0, 2, "", true, "refused; by -1 after never"},
		{0, 0, "", true, "refused; by -1 after never"},
		{0, 5, "", false, "allowed, 0 left reset 24h0m0s"},
	}},
	{"no limit at all is unlimited", nil, []step{
		{0, quota.MaxCost, "", false, "allowed"},
		{0, quota.MaxCost, "", false, "allowed"},
	}},
	{"when the clock steps back the earlier window is counted on", []quota.Limit{per10s}, []step{
		{9 * time.Second, 1, "", false, "allowed, 1 left reset 1s"},
		{10 * time.Second, 2, "", false, "allowed, 0 left reset 10s"},
		{9 * time.Second, 2, "", false, "refused, 1 left reset 1s retry 1s; by 0 after 1s"},
		{9 * time.Second, 1, "", false, "allowed, 0 left reset 1s"},
	}},
}

// testCases runs each case for a token of its own, and compares what was counted.
func testCases(t *testing.T, s Subject, clock *Clock) {
	epoch := clock.UnixMilli()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			id := token.ID(t.Name())
			sums := map[cell]Counted{}
			for i, step := range c.steps {
				clock.Set(epoch + step.at.Milliseconds())
				got := s.DecideAll(context.Background(), []quota.Request{{
					Token: id, Resource: step.resource, Cost: step.cost, Limits: c.limits, Blocked: step.blocked,
				}})[0]
				if words(got) != step.want {
					t.Fatalf("step %d: %s\nwant    %s", i, words(got), step.want)
				}
				if got.At != clock.UnixMilli() {
					t.Errorf("step %d was decided at %d, want %d", i, got.At, clock.UnixMilli())
				}
				add(sums, step.resource, step.cost, got)
			}
			for at, want := range sums {
				if got := s.Counted(id, at.resource, at.minute); got != want {
					t.Errorf("counted of %q in minute %d: %+v, want %+v", at.resource, at.minute, got, want)
				}
			}
		})
	}
}

type cell struct {
	resource string
	minute   int64
}

// add counts a request as the answer to it says.
func add(sums map[cell]Counted, resource string, cost int64, r quota.Result) {
	at := cell{resource, quota.Minute(r.At)}
	sum := sums[at]
	if r.Allowed {
		sum.Admitted += cost
	} else {
		sum.Rejected += cost
	}
	sums[at] = sum
}

// testBatches: in a batch, equal requests of a token are allowed as long as they
// fit, results stand in the order of the requests, and tokens do not mix.
func testBatches(t *testing.T, s Subject, clock *Clock) {
	limits := []quota.Limit{perMinute, perDay}
	request := func(id token.ID, cost int64) quota.Request {
		return quota.Request{Token: id, Resource: "search", Cost: cost, Limits: limits}
	}
	got := s.DecideAll(context.Background(), []quota.Request{
		request("a", 1), request("b", 2), request("a", 1), request("b", 2), request("a", 1),
		request("a", 1), request("a", 0), request("c", 4),
		{Token: "a", Resource: "search", Cost: 7, Blocked: true},
		{Token: "a", Resource: "search", Cost: 10},
	})
	allowed := []bool{true, true, true, false, true, false, true, false, false, true}
	for i, want := range allowed {
		if got[i].Err != nil || got[i].Allowed != want {
			t.Errorf("request %d: %s, want allowed %t", i, words(got[i]), want)
		}
	}
	minute := quota.Minute(clock.UnixMilli())
	for id, want := range map[token.ID]Counted{"a": {13, 8, 0}, "b": {2, 2, 0}, "c": {0, 4, 0}} {
		if got := s.Counted(id, "search", minute); got != want {
			t.Errorf("counted of %s: %+v, want %+v", id, got, want)
		}
	}
	if len(s.DecideAll(context.Background(), nil)) != 0 {
		t.Error("an empty batch has results")
	}
}
