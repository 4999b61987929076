package tracker_test

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/metadata"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/localbus"
)

// load counts on random tokens until it is stopped, and keeps an account of what
// Redis has acknowledged.
type load struct {
	client redis.UniversalClient
	want   [12]atomic.Int64
	done   chan struct{}
	wait   sync.WaitGroup
}

func startLoad(client redis.UniversalClient) *load {
	l := &load{client: client, done: make(chan struct{})}
	for w := range 3 {
		l.wait.Go(func() {
			ctx, r := context.Background(), rand.New(rand.NewPCG(3, uint64(w)))
			for {
				select {
				case <-l.done:
					return
				default:
				}
				i, units, m := r.IntN(len(l.want)), 1+r.Int64N(9), time.Now().Unix()/60
				key := ns.Usage(l.id(i), "search", m)
				if r.IntN(3) == 0 {
					key = ns.Foreign(l.id(i), int(m%60))
				}
				if client.IncrBy(ctx, key, units).Err() == nil {
					l.want[i].Add(units)
				}
			}
		})
	}
	return l
}

func (*load) id(i int) token.ID { return token.ID("t" + strconv.Itoa(i)) }

func (l *load) stop() {
	close(l.done)
	l.wait.Wait()
}

// check compares the metadata and the bus with what was counted.
func (l *load) check(t *testing.T, account func() map[usage.Key]usage.Totals) {
	t.Helper()
	for i := range l.want {
		want := l.want[i].Load()
		metas, err := metadata.Read(context.Background(), l.client, string(ns), l.id(i))
		if err != nil {
			t.Fatal(err)
		}
		if metas[0].Ops != want {
			t.Errorf("ops of %s is %d, counted %d", l.id(i), metas[0].Ops, want)
		}
		until(t, "the bus has it", func() bool { return admitted(account(), l.id(i)) == want })
	}
}

// track runs a tracker on client until the returned function is called.
func track(t *testing.T, client redis.UniversalClient, bus usage.Publisher) (*tracker.Tracker, func() error) {
	t.Helper()
	tr := tracker.New(
		tracker.NewRedisFeed(client, tracker.FeedOptions{Log: quiet}),
		tracker.NewRedisLedger(client, tracker.RedisOptions{Log: quiet}),
		bus, tracker.Options{FlushEvery: 10 * time.Millisecond, Log: quiet},
	)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- tr.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = stop() })
	until(t, "the tracker is ready", func() bool { return tr.Ready(ctx) == nil })
	return tr, stop
}

// Slots move between masters while they are counted on and accounted for.
func TestClusterAccountIsExactThroughAReshard(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	bus := localbus.New(0)
	account := history(t, bus)
	_, stop := track(t, cluster.Client(), bus)
	l := startLoad(cluster.Client())
	until(t, "all tokens are counted on", func() bool { return len(account.Records()) >= len(l.want) })
	for i, from := range cluster.Nodes {
		for _, slot := range cluster.OwnedSlots(from, 2) {
			cluster.MoveSlot(slot, from, cluster.Nodes[(i+1)%3])
		}
	}
	l.stop()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	l.check(t, account.Records)
}

// The master dies and Sentinel promotes its replica: the tracker follows, turns
// notifications on there, and accounts for what the replica holds.
func TestSentinelFailoverIsFollowed(t *testing.T) {
	ctx := context.Background()
	master := redistest.Start(t)
	host, port, _ := net.SplitHostPort(master.Addr)
	replica := redistest.Start(t, "--replicaof", host+" "+port, "--repl-diskless-sync-delay", "0")
	sentinel := startSentinel(t, master.Addr)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "tally", SentinelAddrs: []string{sentinel}})
	t.Cleanup(func() { _ = client.Close() })
	link := func() bool {
		info := replica.Client().InfoMap(ctx, "replication").Val()
		return info["Replication"]["master_link_status"] == "up"
	}
	until(t, "the replica is in sync", link)

	bus := localbus.New(0)
	account := history(t, bus)
	track(t, client, bus)
	m := time.Now().Unix() / 60
	count := func(units int64) bool {
		n, err := client.IncrBy(ctx, ns.Usage("t", "", m), units).Result()
		return err == nil && n > 0
	}
	if !count(5) {
		t.Fatal("cannot count")
	}
	until(t, "accounted for", func() bool { return admitted(account.Records(), "t") == 5 })
	if n := master.Client().Wait(ctx, 1, 5*time.Second).Val(); n != 1 {
		t.Fatal("the replica does not acknowledge")
	}
	until(t, "sentinel knows the replica", func() bool {
		replicas := redis.NewSentinelClient(&redis.Options{Addr: sentinel})
		defer replicas.Close()
		list, err := replicas.Replicas(ctx, "tally").Result()
		return err == nil && len(list) == 1
	})
	master.Kill()
	until(t, "counting works again", func() bool { return count(3) })
	until(t, "the tracker follows", func() bool {
		ops := replica.Client().HGet(ctx, metadata.Key(string(ns), "t"), "ops").Val()
		return ops == "8" && admitted(account.Records(), "t") == 8
	})
}

// startSentinel starts one sentinel that decides alone, and returns its address.
func startSentinel(t *testing.T, master string) string {
	t.Helper()
	addr := proctest.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	host, masterPort, _ := net.SplitHostPort(master)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	text := "bind 127.0.0.1\nport " + port + "\nsentinel monitor tally " + host + " " + masterPort + " 1\n" +
		"sentinel down-after-milliseconds tally 500\nsentinel failover-timeout tally 3000\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := proctest.Require(t, "install redis-server", "redis-server", "valkey-server")
	proc := proctest.Start(t, exec.Command(server, config, "--sentinel"))
	client := redis.NewSentinelClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := proc.Until(limit, func() error { return client.Ping(context.Background()).Err() }); err != nil {
		t.Fatal(err)
	}
	return addr
}

// A tracker follows the database of its client and no other.
func TestADatabaseOtherThanZero(t *testing.T) {
	b := newBench(t)
	client := redis.NewClient(&redis.Options{Addr: b.server.Addr, DB: 3})
	t.Cleanup(func() { _ = client.Close() })
	bus := localbus.New(0)
	account := history(t, bus)
	track(t, client, bus)
	m := b.minute()
	b.count(ns.Usage("zero", "", m), 1)
	if err := client.IncrBy(context.Background(), ns.Usage("three", "", m), 2).Err(); err != nil {
		t.Fatal(err)
	}
	until(t, "counted in database 3", func() bool { return admitted(account.Records(), "three") == 2 })
	if n := admitted(account.Records(), "zero"); n != 0 {
		t.Errorf("%d units of database 0 were accounted for", n)
	}
}
