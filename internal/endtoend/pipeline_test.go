// Package endtoend proves the account of the whole pipeline: the built binaries,
// on a private Redis and Postgres, under load and under faults. The load
// generator's own report is the witness that the account is compared with.
package endtoend

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

func TestMain(m *testing.M) {
	code := pgtest.Main(m)
	if dir, err := build(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// build builds all commands, once for all tests, and returns their directory.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "endtoend")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", dir+string(filepath.Separator), "../../cmd/...").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return dir, nil
})

// binary returns the path of a built command.
func binary(t testing.TB, name string) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// limits are the limits of the policy that all tests use, of several algorithms:
// some bite at once, some only for the busiest tokens, so that there is always
// something of each to count.
var limits = []struct {
	name     string
	quota    int64
	window   time.Duration
	resource string // "" covers all
	more     string // further keys
	// span is a length of time, any of which gets no more than most units; 0 where
	// only windows aligned to the epoch are bounded, by the quota.
	span time.Duration
	most int64
}{
	{name: "minute", quota: 600, window: time.Minute},
	{name: "burst", quota: 150, window: 5 * time.Second},
	{name: "search", quota: 300, window: time.Minute, resource: "search"},
	{name: "export", quota: 20, window: 2 * time.Second, resource: "export"},
	{name: "log", quota: 120, window: 3 * time.Second, more: "algorithm: sliding_log", span: 3 * time.Second, most: 120},
	{name: "rate", quota: 60, window: time.Second, more: "algorithm: token_bucket, burst: 90", span: time.Second, most: 90 + 60},
	// Parts leave one at a time, up to a precision early.
	{name: "slide", quota: 250, window: 10 * time.Second, more: "algorithm: sliding_window, precision: 1s", span: 9 * time.Second, most: 250},
}

// pipeline is all services as processes of their own.
type pipeline struct {
	t         testing.TB
	config    string             // path of tallygate.yaml
	redis     *redistest.Server  // nil on a cluster
	cluster   *redistest.Cluster // nil on a single server
	client    redis.UniversalClient
	history   string // URL of the Postgres database
	enforcers []*service
	tracker   *service
	indexer   *service
}

// setup is how a pipeline differs from the usual one.
type setup struct {
	cluster bool     // a Redis Cluster of three masters instead of a single server
	redis   []string // further arguments of redis-server
	history string   // URL of the Postgres database; "" is a fresh one
	yaml    string   // appended to the configuration
}

// startPipeline starts two enforcers, a tracker and an indexer over a private
// Redis and Postgres.
func startPipeline(t testing.TB, s setup) *pipeline {
	t.Helper()
	p := newPipeline(t, s)
	for _, s := range p.services() {
		s.start()
	}
	return p
}

// newPipeline starts the servers of a pipeline, and leaves its services to be
// started.
func newPipeline(t testing.TB, s setup) *pipeline {
	t.Helper()
	p := &pipeline{t: t, history: s.history}
	if p.history == "" {
		p.history = pgtest.Database(t)
	}
	var yaml strings.Builder
	if s.cluster {
		p.cluster = redistest.StartCluster(t, 3, s.redis...)
		p.client = p.cluster.Client()
		fmt.Fprintf(&yaml, "redis: {cluster: true, url: %q}\n", p.cluster.Nodes[0].URL())
	} else {
		p.redis = redistest.Start(t, s.redis...)
		p.client = p.redis.Client()
		fmt.Fprintf(&yaml, "redis: {url: %q}\n", p.redis.URL())
	}
	fmt.Fprintf(&yaml, "history: {url: %q}\ndefault_policy: tight\npolicies:\n  tight:\n    limits:\n", p.history)
	for _, l := range limits {
		fmt.Fprintf(&yaml, "      - {name: %s, quota: %d, window: %s", l.name, l.quota, l.window)
		if l.resource != "" {
			fmt.Fprintf(&yaml, ", resources: [%s]", l.resource)
		}
		if l.more != "" {
			yaml.WriteString(", " + l.more)
		}
		yaml.WriteString("}\n")
	}
	// A killed indexer's share of the stream is taken over at once.
	yaml.WriteString("bus: {claim_after: 500ms}\n" + s.yaml)
	p.config = filepath.Join(t.TempDir(), "tallygate.yaml")
	if err := os.WriteFile(p.config, []byte(yaml.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p.indexer = p.service("indexer")
	p.tracker = p.service("tracker")
	p.enforcers = []*service{p.service("enforcer"), p.service("enforcer")}
	return p
}

// services returns all services, in the order in which they start.
func (p *pipeline) services() []*service {
	return append([]*service{p.indexer, p.tracker}, p.enforcers...)
}

// service is one process of a service, on addresses of its own.
type service struct {
	t           testing.TB
	name        string
	args        []string
	env         []string
	addr, debug string // host:port
	proc        *proctest.Process
}

func (p *pipeline) service(name string) *service {
	s := &service{
		t: p.t, name: name, args: []string{"--config", p.config},
		addr: proctest.FreeAddr(p.t), debug: proctest.FreeAddr(p.t),
	}
	prefix := "TALLYGATE_" + strings.ToUpper(name)
	s.env = []string{prefix + "_LISTEN=" + s.addr, prefix + "_DEBUG_LISTEN=" + s.debug}
	return s
}

// launch starts the process without waiting for it.
func (s *service) launch() {
	s.t.Helper()
	cmd := exec.Command(binary(s.t, s.name), s.args...)
	cmd.Env = append(os.Environ(), s.env...)
	s.proc = proctest.Start(s.t, cmd)
}

// start starts the process and waits until it is ready.
func (s *service) start() {
	s.t.Helper()
	s.launch()
	s.waitReady()
}

func (s *service) waitReady() {
	s.t.Helper()
	err := s.proc.Until(20*time.Second, func() error {
		resp, err := http.Get(s.url("/readyz"))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s", s.name, body)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// kill ends the process as a crash would, and waits until it is gone.
func (s *service) kill() { s.proc.Kill() }

func (s *service) url(path string) string { return "http://" + s.addr + path }

// metric returns the value of a metric without labels, or 0.
func (s *service) metric(name string) float64 {
	s.t.Helper()
	resp, err := http.Get("http://" + s.debug + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		var value float64
		if n, _ := fmt.Sscanf(line, name+" %g", &value); n == 1 {
			return value
		}
	}
	return 0
}

// eventually polls condition until it returns nil, for at most limit.
func eventually(t testing.TB, limit time.Duration, condition func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error // that the condition itself gave, not the deadline
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %v", limit, last)
		case <-tick.C:
		}
	}
}
