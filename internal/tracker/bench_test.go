package tracker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// BenchmarkApply applies one changed cell of each of so many tokens. redis-us/token
// is what a token costs Redis, by its own account.
func BenchmarkApply(b *testing.B) {
	for _, tokens := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			h := newBench(b)
			ctx := context.Background()
			m := h.minute()
			cells := make([]usage.Key, tokens)
			for i := range cells {
				cells[i] = usage.Key{Token: token.ID("t" + strconv.Itoa(i)), Resource: "search", Minute: m}
			}
			h.client.ConfigResetStat(ctx)
			for b.Loop() {
				b.StopTimer()
				_, err := h.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
					for _, c := range cells {
						pipe.IncrBy(ctx, ns.Usage(c.Token, c.Resource, m), 1)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if applied, err := h.ledger.Apply(ctx, cells); err != nil || len(applied) != tokens {
					b.Fatal(len(applied), err)
				}
			}
			_, us := h.stat("evalsha")
			b.ReportMetric(us/float64(b.N*tokens), "redis-us/token")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*tokens), "ns/token")
		})
	}
}

var statLine = regexp.MustCompile(`cmdstat_(\S+):calls=(\d+),usec=(\d+)`)

// stat returns how often Redis was called with a command and how many
// microseconds that took, inner commands of scripts included.
func (b *bench) stat(command string) (calls, us float64) {
	b.t.Helper()
	info, err := b.client.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, m := range statLine.FindAllStringSubmatch(info, -1) {
		if m[1] == command {
			calls, _ = strconv.ParseFloat(m[2], 64)
			us, _ = strconv.ParseFloat(m[3], 64)
		}
	}
	return calls, us
}

// BenchmarkNotifications is how fast the feed takes notifications into a map, as
// long as Redis, which sends them from one script, keeps up.
func BenchmarkNotifications(b *testing.B) {
	h := newBench(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var heard atomic.Int64
	synced := make(chan struct{})
	var once sync.Once
	feed := tracker.NewRedisFeed(h.client, tracker.FeedOptions{Log: quiet})
	go func() {
		_ = feed.Watch(ctx, func(usage.Key) { heard.Add(1) }, func() { once.Do(func() { close(synced) }) })
	}()
	<-synced
	const burst = 1000
	script := redis.NewScript(`for i = 1, ARGV[1] do redis.call('PUBLISH', '__keyevent@0__:incrby', '{api:t' .. i .. '}:29000000:search') end`)
	b.ResetTimer()
	for sent := int64(0); sent < int64(b.N); sent += burst {
		if err := script.Run(ctx, h.client, nil, burst).Err(); err != nil && err != redis.Nil {
			b.Fatal(err)
		}
		for sent-heard.Load() > 50*burst { // stay within the output buffer
			time.Sleep(time.Millisecond)
		}
	}
	until(b, "all are heard", func() bool { return heard.Load() >= int64(b.N) })
	b.ReportMetric(float64(heard.Load())/b.Elapsed().Seconds(), "notifications/s")
}

// BenchmarkFollowUp counts at a steady rate on 1,000 tokens with a tracker beside,
// and reports what following up costs Redis per event.
func BenchmarkFollowUp(b *testing.B) {
	const tokens, rate, span = 1000, 20_000, 3 * time.Second
	for b.Loop() {
		h := newBench(b)
		ctx := context.Background()
		bus := localbus.New(0)
		client := h.server.Client()
		tr := tracker.New(tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}),
			tracker.NewRedisLedger(client, tracker.RedisOptions{Log: quiet}), bus, tracker.Options{Log: quiet})
		run, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- tr.Run(run) }()
		until(b, "ready", func() bool { return tr.Ready(ctx) == nil })
		h.client.ConfigResetStat(ctx)
		r := rand.New(rand.NewPCG(1, 1))
		events := 0
		for began := time.Now(); time.Since(began) < span; {
			due := int(time.Since(began).Seconds() * rate)
			_, err := h.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				m := time.Now().Unix() / 60
				for ; events < due; events++ {
					pipe.Incr(ctx, ns.Usage(token.ID("t"+strconv.Itoa(r.IntN(tokens))), "search", m))
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		calls, us := h.stat("evalsha")
		_, counting := h.stat("incr")
		b.ReportMetric(calls/float64(events), "calls/event")
		b.ReportMetric(us/float64(events), "redis-us/event")
		b.ReportMetric(counting/float64(events), "incr-us/event")
		b.ReportMetric(float64(events)/span.Seconds(), "events/s")
	}
}

// BenchmarkEnforcement is decisions per second with and without a tracker on the
// same server, in turns of a second; ratio is with to without.
func BenchmarkEnforcement(b *testing.B) {
	const tokens, callers, turn = 1000, 128, time.Second
	h := newBench(b)
	ctx := context.Background()
	group := counters.NewGroup(counters.NewStore(h.server.Client(), counters.Options{}), counters.GroupOptions{})
	limits := []quota.Limit{{Name: "minute", Quota: quota.MaxCost, Window: time.Minute, Resources: []string{"search"}}}
	decide := func() float64 {
		var n atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(turn)
		for i := range callers {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for time.Now().Before(end) {
					id := token.ID("t" + strconv.Itoa(r.IntN(tokens)))
					if res := group.Decide(ctx, quota.Request{Token: id, Resource: "search", Cost: 1, Limits: limits}); res.Err != nil {
						b.Error(res.Err)
						return
					}
					n.Add(1)
				}
			})
		}
		all.Wait()
		return float64(n.Load()) / turn.Seconds()
	}
	var with, without float64
	for b.Loop() {
		h.client.ConfigSet(ctx, "notify-keyspace-events", "")
		without += decide()
		run, cancel := context.WithCancel(ctx)
		client := h.server.Client()
		tr := tracker.New(tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}),
			tracker.NewRedisLedger(client, tracker.RedisOptions{Log: quiet}), localbus.New(0), tracker.Options{Log: quiet})
		done := make(chan error, 1)
		go func() { done <- tr.Run(run) }()
		until(b, "ready", func() bool { return tr.Ready(ctx) == nil })
		with += decide()
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(without/float64(b.N), "decisions/s-without")
	b.ReportMetric(with/float64(b.N), "decisions/s-with")
	b.ReportMetric(with/without, "ratio")
}
