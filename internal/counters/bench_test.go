package counters_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
)

// redisCPU returns the µs of CPU that the server has used.
func redisCPU(b *testing.B, client *redis.Client) (us float64) {
	for line := range strings.Lines(client.Info(context.Background(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			s, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			us += s * 1e6
		}
	}
	return us
}

// ownCPU returns the µs of CPU that this process has used.
func ownCPU(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

// share calls decide b.N times from callers goroutines. CPU per decision, of Redis
// and of this process, is steadier on a shared machine than decisions per second.
func share(b *testing.B, client *redis.Client, callers int, decide func(rng *rand.Rand) error) {
	b.ReportAllocs()
	redisBefore, ownBefore := redisCPU(b, client), ownCPU(b)
	defer func() {
		b.ReportMetric((redisCPU(b, client)-redisBefore)/float64(b.N), "redis-µs/op")
		b.ReportMetric((ownCPU(b)-ownBefore)/float64(b.N), "own-µs/op")
	}()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for left.Add(-1) >= 0 {
				if err := decide(rng); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}

var benchLimits = []quota.Limit{
	{Name: "minute", Quota: quota.MaxCost, Window: time.Minute, Resources: []string{"search"}},
	{Name: "hour", Quota: quota.MaxCost, Window: time.Hour},
	{Name: "day", Quota: quota.MaxCost, Window: 24 * time.Hour},
	{Name: "10s", Quota: quota.MaxCost, Window: 10 * time.Second},
	{Name: "5m", Quota: quota.MaxCost, Window: 5 * time.Minute},
	{Name: "15m", Quota: quota.MaxCost, Window: 15 * time.Minute},
	{Name: "30m", Quota: quota.MaxCost, Window: 30 * time.Minute},
	{Name: "3h", Quota: quota.MaxCost, Window: 3 * time.Hour},
	{Name: "12h", Quota: quota.MaxCost, Window: 12 * time.Hour},
	{Name: "36h", Quota: quota.MaxCost, Window: 36 * time.Hour},
}

func benchTokens(n int) []token.ID {
	ids := make([]token.ID, n)
	for i := range ids {
		ids[i] = token.ID("token-" + strconv.Itoa(i))
	}
	return ids
}

// pipelined counts by plain INCR and EXPIRE in one pipeline per batch, and decides
// nothing: the floor.
type pipelined struct{ client *redis.Client }

func (p pipelined) DecideAll(ctx context.Context, requests []quota.Request) []quota.Result {
	results := make([]quota.Result, len(requests))
	pipe := p.client.Pipeline()
	for _, r := range requests {
		key := ns.Usage(r.Token, r.Resource, 29_000_000)
		pipe.IncrBy(ctx, key, r.Cost)
		pipe.Expire(ctx, key, time.Minute)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for i := range results {
			results[i].Err = err
		}
	}
	return results
}

func BenchmarkDecide(b *testing.B) {
	server := redistest.Start(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, PoolSize: 64})
	defer client.Close()
	for _, callers := range []int{64, 256, 1024} {
		for _, tokens := range []int{1, 1_000, 100_000} {
			ids := benchTokens(tokens)
			name := fmt.Sprintf("callers=%d/tokens=%d", callers, tokens)
			for _, limits := range []int{1, 3, 10} {
				b.Run(fmt.Sprintf("%s/way=group/limits=%d", name, limits), func(b *testing.B) {
					group := counters.NewGroup(counters.NewStore(client, counters.Options{}), counters.GroupOptions{})
					share(b, client, callers, func(rng *rand.Rand) error {
						return group.Decide(context.Background(), quota.Request{
							Token: ids[rng.IntN(tokens)], Resource: "search", Cost: 1, Limits: benchLimits[:limits],
						}).Err
					})
				})
			}
			b.Run(name+"/way=pipelined-incr-expire", func(b *testing.B) {
				group := counters.NewGroup(pipelined{client}, counters.GroupOptions{})
				share(b, client, callers, func(rng *rand.Rand) error {
					return group.Decide(context.Background(), quota.Request{Token: ids[rng.IntN(tokens)], Resource: "search", Cost: 1}).Err
				})
			})
			b.Run(name+"/way=multi-incr-expire", func(b *testing.B) {
				share(b, client, callers, func(rng *rand.Rand) error {
					key := ns.Usage(ids[rng.IntN(tokens)], "search", 29_000_000)
					_, err := client.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
						p.Incr(context.Background(), key)
						p.Expire(context.Background(), key, time.Minute)
						return nil
					})
					return err
				})
			})
		}
	}
}
