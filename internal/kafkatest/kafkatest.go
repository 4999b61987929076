// Package kafkatest starts private Kafka brokers for tests: kfake, which speaks
// Kafka's protocol over TCP in the test's own process.
package kafkatest

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tallygate/tallygate/internal/proctest"
)

// Broker is a broker that belongs to one test and keeps what it was given over
// Stop and Start.
type Broker struct {
	Addr string // host:port
	// Cluster injects faults; it is another one after each Start.
	*kfake.Cluster
	t    testing.TB
	opts []kfake.Opt
}

// Start starts a broker with further options.
func Start(t testing.TB, opts ...kfake.Opt) *Broker {
	t.Helper()
	b := &Broker{Addr: proctest.FreeAddr(t), t: t}
	_, text, _ := net.SplitHostPort(b.Addr)
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	b.opts = append([]kfake.Opt{kfake.Ports(port), kfake.DataDir(t.TempDir()), kfake.SyncWrites()}, opts...)
	b.Start()
	t.Cleanup(b.Stop)
	return b
}

// Start starts the broker again after Stop, at the same address.
func (b *Broker) Start() {
	b.t.Helper()
	cluster, err := kfake.NewCluster(b.opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Cluster = cluster
}

// Stop ends the broker: connections are cut and new ones refused. A broker that
// is stopped already stays so.
func (b *Broker) Stop() {
	if b.Cluster != nil {
		b.Cluster.Close()
		b.Cluster = nil
	}
}

// Impatient makes a client notice changes within a test's patience.
func Impatient() []kgo.Opt {
	return []kgo.Opt{
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.SessionTimeout(6 * time.Second),
		kgo.HeartbeatInterval(200 * time.Millisecond),
	}
}
