package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/redistest"
)

func TestPartsStopInOrderEachAfterTheOneBefore(t *testing.T) {
	var mu sync.Mutex
	var log []string
	note := func(s string) { mu.Lock(); defer mu.Unlock(); log = append(log, s) }
	started := make(chan struct{}, 3)
	part := func(name string) Part {
		return Part{name, func(ctx context.Context) error {
			started <- struct{}{}
			<-ctx.Done()
			note(name + " told")
			note(name + " done")
			return nil
		}}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- Run(ctx, part("a"), part("b"), part("c")) }()
	for range 3 {
		<-started
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if want := []string{"a told", "a done", "b told", "b done", "c told", "c done"}; !slices.Equal(log, want) {
		t.Errorf("got %v", log)
	}
}

func TestAPartThatFailsStopsTheOthersAndIsTheError(t *testing.T) {
	boom := errors.New("boom")
	stopped := false
	err := Run(
		context.Background(),
		Part{"leaves early", func(context.Context) error { return nil }},
		Part{"waits", func(ctx context.Context) error { <-ctx.Done(); stopped = true; return nil }},
		Part{"fails", func(context.Context) error { return boom }},
	)
	if !errors.Is(err, boom) || err.Error() != "fails: boom" || !stopped {
		t.Errorf("got %v, stopped %v", err, stopped)
	}
}

func TestLingerEndsSomeTimeAfterItsParent(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	linger, release := Linger(parent, time.Millisecond)
	defer release()
	if linger.Err() != nil {
		t.Fatal("ended early")
	}
	cancel()
	select {
	case <-linger.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("did not end")
	}
	if !errors.Is(context.Cause(linger), context.DeadlineExceeded) {
		t.Errorf("cause is %v", context.Cause(linger))
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := Listen("127.0.0.1:0", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestAStoppingServerAnswersWhatIsUnderWay(t *testing.T) {
	l := listen(t)
	arrived, finish := make(chan struct{}), make(chan struct{})
	h := HTTP{Listener: l, DrainTimeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-finish
		_, _ = io.WriteString(w, "answered")
	})}
	ctx, cancel := context.WithCancel(context.Background())
	ended, body := make(chan error, 1), make(chan string, 1)
	go func() { ended <- h.Run(ctx) }()
	go func() {
		r, err := http.Get("http://" + l.Addr().String())
		if err != nil {
			body <- err.Error()
			return
		}
		defer r.Body.Close()
		content, _ := io.ReadAll(r.Body)
		body <- string(content)
	}()
	<-arrived
	cancel()
	refused(t, l.Addr().String())
	close(finish)
	if got := <-body; got != "answered" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// refused waits until nobody accepts connections at address.
func refused(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		_ = c.Close()
	}
	t.Fatal("connections are still accepted")
}

func TestRequestsThatOutlastTheDrainAreCutOffAndReported(t *testing.T) {
	l := listen(t)
	arrived, finish := make(chan struct{}), make(chan struct{})
	defer close(finish)
	h := HTTP{Listener: l, DrainTimeout: time.Millisecond, Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-finish
	})}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	go func() {
		if r, err := http.Get("http://" + l.Addr().String()); err == nil {
			_ = r.Body.Close()
		}
	}()
	<-arrived
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("got %v", err)
	}
}

func TestAnAddressInUseNamesTheSetting(t *testing.T) {
	l := listen(t)
	if _, err := Listen(l.Addr().String(), "--listen"); err == nil || !strings.Contains(err.Error(), "--listen") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}

func TestReadinessFollowsTheChecksAndTheDrain(t *testing.T) {
	var log bytes.Buffer
	s := New("test", config.Log{Level: "info", Format: "text"}, &log)
	var down error
	s.Health.Add("redis", func(context.Context) error { return down })
	mux := http.NewServeMux()
	s.Health.Register(mux)
	get := func(path string) (int, string) {
		s.Health.checked = time.Time{} // ask again
		w := newRecorder()
		r, _ := http.NewRequest(http.MethodGet, path, nil)
		mux.ServeHTTP(w, r)
		return w.status, w.body.String()
	}
	if status, _ := get("/readyz"); status != 200 {
		t.Errorf("ready: %d", status)
	}
	down = errors.New("dial secret.internal: refused")
	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, "redis") || strings.Contains(body, "secret") {
		t.Errorf("not ready: %d %s", status, body)
	}
	if !strings.Contains(log.String(), "secret.internal") {
		t.Error("the reason is not logged")
	}
	down = nil
	if status, _ := get("/readyz"); status != 200 {
		t.Errorf("ready again: %d", status)
	}
	s.Health.Drain()
	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, "draining") {
		t.Errorf("draining: %d %s", status, body)
	}
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("alive while draining: %d", status)
	}
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func newRecorder() *recorder                          { return &recorder{header: http.Header{}, status: 200} }
func (r *recorder) Header() http.Header               { return r.header }
func (r *recorder) WriteHeader(status int)            { r.status = status }
func (r *recorder) Write(content []byte) (int, error) { return r.body.Write(content) }

func TestTheDebugAddressIsNotThePublicOne(t *testing.T) {
	s := New("test", config.Log{}, io.Discard)
	public, debug := http.NewServeMux(), DebugHandler(s.Metrics)
	s.Health.Register(public)
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap"} {
		r, _ := http.NewRequest(http.MethodGet, path, nil)
		w := newRecorder()
		if public.ServeHTTP(w, r); w.status != 404 {
			t.Errorf("public %s: %d", path, w.status)
		}
		w = newRecorder()
		if debug.ServeHTTP(w, r); w.status != 200 {
			t.Errorf("debug %s: %d", path, w.status)
		}
	}
}

func redisConfig(url string) config.Redis {
	c := config.Default().Redis
	c.URL = config.SecretURL(url)
	return c
}

func ping(t *testing.T, c config.Redis) error {
	t.Helper()
	client, err := NewRedis(c)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return PingRedis(context.Background(), client, c)
}

func TestRedisThatCannotBeUsedSaysWhatToDoAndNoPassword(t *testing.T) {
	server := redistest.Start(t, "--requirepass", "right")
	withPassword := redisConfig("redis://:wrong@" + server.Addr)
	if err := ping(t, withPassword); err == nil || errors.Is(err, ErrRedisUnreachable) || !strings.Contains(err.Error(), "redis.password_file") || strings.Contains(err.Error(), "wrong@") {
		t.Errorf("a wrong password: %v", err)
	}
	if err := ping(t, redisConfig(server.URL())); err == nil || !strings.Contains(err.Error(), "refuses the credentials") {
		t.Errorf("no password: %v", err)
	}
	right := redisConfig(server.URL())
	right.Password = "right"
	if err := ping(t, right); err != nil {
		t.Error(err)
	}
	server.Kill()
	if err := ping(t, right); !errors.Is(err, ErrRedisUnreachable) || !strings.Contains(err.Error(), "TALLYGATE_REDIS_URL") {
		t.Errorf("killed: %v", err)
	}
}

func TestSomethingElseThanRedisIsRecognised(t *testing.T) {
	l := listen(t)
	go func() {
		_ = http.Serve(l, http.NotFoundHandler())
	}()
	if err := ping(t, redisConfig("redis://"+l.Addr().String())); err == nil {
		t.Error("a web server passed for Redis")
	}
}

func TestRedisSettingsThatMakeNoSenseNameTheirKey(t *testing.T) {
	for want, change := range map[string]func(*config.Redis){
		"redis.url":           func(c *config.Redis) { c.URL = "redis://h:port/x" },
		"write rediss://":     func(c *config.Redis) { c.TLS.CAFile = "x" },
		"redis.tls.ca_file":   func(c *config.Redis) { c.URL = "rediss://h"; c.TLS.CAFile = "/does/not/exist" },
		"only database 0":     func(c *config.Redis) { c.URL = "redis://h/3"; c.Cluster = true },
		"redis.tls.cert_file": func(c *config.Redis) { c.URL = "rediss://h"; c.TLS.CertFile = "/no"; c.TLS.KeyFile = "/no" },
	} {
		c := redisConfig("redis://h:1")
		change(&c)
		if _, err := NewRedis(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
