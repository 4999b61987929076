package rls_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

// BenchmarkServer measures what a decision costs the built enforcer, in CPU time
// of its process, asked by unary callers over several connections: 100,000 users
// under one rule that none of them exhausts. With -against another program is
// measured at the same moment, on a Redis of its own, since two runs after each
// other differ more than two programs: the metric ratio is how many times less
// the enforcer needs.
func BenchmarkServer(b *testing.B) {
	other := *against
	*against = ""
	defer func() { *against = other }()
	root := rulesDir(b, "testdata/bench/*.yaml")
	ours, process := start(b, redistest.Start(b).Addr, root)
	servers := []*measured{{name: "ours", address: ours, process: process}}
	if other != "" {
		*against = other
		address, process := start(b, redistest.Start(b).Addr, root)
		servers = append(servers, &measured{name: "theirs", address: address, process: process})
	}
	for _, callers := range []int{64, 256} {
		for _, connections := range []int{1, 16} {
			b.Run(fmt.Sprintf("callers=%d/connections=%d", callers, connections), func(b *testing.B) {
				var all sync.WaitGroup
				for _, m := range servers {
					all.Go(func() { m.run(b, b.N, callers, connections) })
				}
				all.Wait()
				for _, m := range servers {
					b.ReportMetric(m.perSecond(), m.name+"-decisions/cpu-s")
				}
				if len(servers) == 2 {
					b.ReportMetric(servers[0].perSecond()/servers[1].perSecond(), "ratio")
				}
				b.ReportMetric(0, "ns/op") // that of the slower one; it says nothing
			})
		}
	}
}

// measured is a server under load.
type measured struct {
	name    string
	address string
	process *proctest.Process
	calls   int
	cpu     time.Duration
}

func (m *measured) perSecond() float64 { return float64(m.calls) / m.cpu.Seconds() }

// run makes calls and notes how much CPU time the server took for them.
func (m *measured) run(b *testing.B, calls, callers, connections int) {
	clients := make([]pb.RateLimitServiceClient, connections)
	for i := range clients {
		connection, err := grpc.NewClient(m.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Error(err)
			return
		}
		defer connection.Close()
		clients[i] = pb.NewRateLimitServiceClient(connection)
	}
	load := func(calls int) {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				for range calls/callers + 1 {
					request := &pb.RateLimitRequest{Domain: "bench", Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{
						{Key: "user", Value: "user-" + strconv.Itoa(random.IntN(100_000))},
					}}}}
					if _, err := clients[i%connections].ShouldRateLimit(context.Background(), request); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	}
	load(2 * callers) // connections and pools are made
	before := cpuOf(b, m.process.PID())
	load(calls)
	m.calls, m.cpu = (calls/callers+1)*callers, cpuOf(b, m.process.PID())-before
}

// cpuOf returns the CPU time that a process has used, in user and kernel mode.
func cpuOf(b *testing.B, pid int) time.Duration {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skipf("no CPU time of a process here: %v", err)
	}
	// After the name in parentheses; fields 14 and 15 of the whole, in hundredths of a second.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
