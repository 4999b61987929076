package main

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/usage"
	"github.com/tallygate/tallygate/internal/usage/streams"
)

func getenv(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func TestTheIndexerKeepsWhatTheStreamBringsAndItsCommandsShowIt(t *testing.T) {
	server := redistest.Start(t)
	address := proctest.FreeAddr(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, nil, getenv(map[string]string{
			"TALLYGATE_REDIS_URL": server.URL(), "TALLYGATE_INDEXER_LISTEN": address, "TALLYGATE_INDEXER_DEBUG_LISTEN": "127.0.0.1:0",
			"TALLYGATE_HISTORY_URL": "sqlite:" + filepath.Join(t.TempDir(), "history.db"),
		}), io.Discard, io.Discard)
	}()
	bus := streams.New(server.Client(), streams.Options{})
	record := usage.Record{Key: usage.Key{Token: "alice", Minute: time.Now().Unix() / 60}, Totals: usage.Totals{Admitted: 7, Last: time.Now().Unix()}}
	if err := bus.Publish(ctx, usage.Batch{Records: []usage.Record{record}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		r, err := http.Get("http://" + address + "/v1/tokens/alice")
		return err == nil && r.Body.Close() == nil && r.StatusCode == 200
	})
	var out strings.Builder
	if err := run(ctx, []string{"top", "--json", "--server", "http://" + address}, getenv(nil), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"alice"`) || !strings.Contains(out.String(), "7") {
		t.Errorf("top printed %s", out.String())
	}
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
	server := redistest.Start(t)
	away := redistest.Start(t)
	away.Kill()
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"Redis is away":    {map[string]string{"TALLYGATE_REDIS_URL": away.URL()}, "start it, or set redis.url"},
		"Postgres is away": {map[string]string{"TALLYGATE_REDIS_URL": server.URL(), "TALLYGATE_HISTORY_URL": "postgres://u:hunter2@" + away.Addr + "/x?connect_timeout=1"}, "history"},
		"no such folder":   {map[string]string{"TALLYGATE_REDIS_URL": server.URL(), "TALLYGATE_HISTORY_URL": "sqlite:/dev/null/h.db"}, "/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // one that starts after all must not hang
			defer cancel()
			err := run(ctx, nil, getenv(c.env), io.Discard, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
