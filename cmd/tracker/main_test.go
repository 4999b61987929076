package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

func getenv(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func TestTheTrackerAccountsForAForeignCounterAndStopsCleanly(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	address := proctest.FreeAddr(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, nil, getenv(map[string]string{
			"TALLYGATE_REDIS_URL": server.URL(), "TALLYGATE_TRACKER_LISTEN": address, "TALLYGATE_TRACKER_DEBUG_LISTEN": "127.0.0.1:0",
		}), io.Discard, io.Discard)
	}()
	eventually(t, func() bool {
		r, err := http.Get("http://" + address + "/readyz")
		return err == nil && r.Body.Close() == nil && r.StatusCode == 200
	})
	// The classic recipe, by an application that has never heard of Tallygate.
	counter := "{api:alice}:" + time.Now().UTC().Format("4")
	if _, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.IncrBy(ctx, counter, 7)
		p.Expire(ctx, counter, 59*time.Second)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return client.HGet(ctx, "{api:alice}:data", "ops").Val() == "7" })
	eventually(t, func() bool { return client.XLen(ctx, "tallygate:usage").Val() > 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to be")
		}
	}
}

func TestStartUpFailuresAreOneClearError(t *testing.T) {
	away := redistest.Start(t)
	away.Kill()
	locked := redistest.Start(t)
	if err := locked.Client().Do(context.Background(), "ACL", "SETUSER", "default", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"Redis is away":        {map[string]string{"TALLYGATE_REDIS_URL": away.URL()}, "start it, or set redis.url"},
		"no CONFIG permission": {map[string]string{"TALLYGATE_REDIS_URL": locked.URL()}, "notify-keyspace-events"},
		"no configuration":     {map[string]string{"TALLYGATE_CONFIG": "/does/not/exist"}, "--config"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // one that starts after all must not hang
			defer cancel()
			err := run(ctx, nil, getenv(c.env), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
