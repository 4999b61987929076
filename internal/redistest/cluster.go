package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/proctest"
)

// Slots is the number of hash slots of every cluster.
const Slots = 16384

// Cluster is a Redis Cluster of masters that belongs to one test.
type Cluster struct {
	Nodes []*Server // masters; node i has the i-th share of the slots, until they are moved
	t     testing.TB
}

// StartCluster starts a cluster of so many masters, with further arguments in
// redis-server's own form. It serves all slots when StartCluster returns.
func StartCluster(t testing.TB, masters int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	bus := make([]string, masters) // ports
	for i := range masters {
		_, bus[i], _ = net.SplitHostPort(proctest.FreeAddr(t))
		c.Nodes = append(c.Nodes, Start(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-port", bus[i],
		}, args...)...))
	}
	for i, node := range c.Nodes {
		c.do(node, "CLUSTER", "ADDSLOTSRANGE", i*Slots/masters, (i+1)*Slots/masters-1)
		if i > 0 {
			host, port, _ := net.SplitHostPort(node.Addr)
			c.do(c.Nodes[0], "CLUSTER", "MEET", host, port, bus[i])
		}
	}
	for _, node := range c.Nodes {
		client := node.Client()
		err := node.proc.Until(20*time.Second, func() error {
			info, err := client.ClusterInfo(context.Background()).Result()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r\n", masters)) {
				return errors.New("the cluster is not formed: " + info)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Addrs returns the addresses of all masters.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Client returns a client of the cluster that is closed when the test ends.
func (c *Cluster) Client() *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// MoveSlot moves a slot with its keys from one master to another while both go on
// serving, as a reshard does.
func (c *Cluster) MoveSlot(slot int, from, to *Server) {
	c.t.Helper()
	ctx := context.Background()
	source, target := from.Client(), to.Client()
	sourceID, targetID := c.id(source), c.id(target)
	c.do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID)
	c.do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", targetID)
	host, port, _ := net.SplitHostPort(to.Addr)
	for {
		keys, err := source.ClusterGetKeysInSlot(ctx, slot, 100).Result()
		if err != nil {
			c.t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		c.do(from, args...)
	}
	for _, node := range append([]*Server{to, from}, c.Nodes...) { // the new owner first, then everybody
		c.do(node, "CLUSTER", "SETSLOT", slot, "NODE", targetID)
	}
}

// OwnedSlots returns up to n slots that node serves and that hold keys.
func (c *Cluster) OwnedSlots(node *Server, n int) []int {
	c.t.Helper()
	ctx, client := context.Background(), node.Client()
	var slots []int
	seen := map[int64]bool{}
	keys := client.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) && len(slots) < n {
		slot, err := client.ClusterKeySlot(ctx, keys.Val()).Result()
		if err != nil {
			c.t.Fatal(err)
		}
		if !seen[slot] {
			seen[slot] = true
			slots = append(slots, int(slot))
		}
	}
	if err := keys.Err(); err != nil {
		c.t.Fatal(err)
	}
	return slots
}

func (c *Cluster) id(client *redis.Client) string {
	id, err := client.Do(context.Background(), "CLUSTER", "MYID").Text()
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

func (c *Cluster) do(node *Server, args ...any) {
	c.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: node.Addr})
	defer client.Close()
	if err := client.Do(context.Background(), args...).Err(); err != nil {
		c.t.Fatalf("%s: %v: %v", node.Addr, args, err)
	}
}
