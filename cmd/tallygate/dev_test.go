package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// output is a buffer that the program writes and the test reads.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func noEnv(string) string { return "" }

// devArgs are those of a dev that gets in nobody's way.
func devArgs(t *testing.T, more ...string) (args []string, listen, query string) {
	t.Helper()
	listen, query = proctest.FreeAddr(t), proctest.FreeAddr(t)
	return append([]string{"dev", "--listen", listen, "--query-listen", query, "--debug-listen", "127.0.0.1:0", "--data", t.TempDir()}, more...), listen, query
}

// runDev runs dev until stop is called, which returns what it printed and its error.
func runDev(t *testing.T, args []string, listen string) (out *output, stop func() (string, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out = &output{}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, args, noEnv, out, io.Discard) }()
	t.Cleanup(cancel)
	eventually(t, func() bool {
		select {
		case err := <-ended:
			t.Fatalf("dev ended: %v", err)
		default:
		}
		r, err := http.Get("http://" + listen + "/readyz")
		return err == nil && r.Body.Close() == nil && r.StatusCode == 200
	})
	return out, func() (string, error) {
		cancel()
		err := <-ended
		return out.String(), err
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to be")
		}
	}
}

func TestDevUnderLoadEndsWithAnEqualAccount(t *testing.T) {
	for name, more := range map[string]func(t *testing.T) []string{
		"embedded": func(*testing.T) []string { return nil },
		"Redis and Postgres": func(t *testing.T) []string {
			return []string{"--redis", redistest.Start(t).URL(), "--postgres", pgtest.Database(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := filepath.Join(t.TempDir(), "tallygate.yaml")
			limits := "log: {level: warn}\npolicies: {default: {limits: [{name: minute, quota: 5, window: 1m}]}}\n"
			if err := os.WriteFile(policy, []byte(limits), 0o600); err != nil {
				t.Fatal(err)
			}
			args, _, _ := devArgs(t, append(more(t), "--load", "--for", "2s", "--config", policy)...)
			var out output
			if err := run(context.Background(), args, noEnv, &out, io.Discard); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			text := out.String()
			if !regexp.MustCompile(`admitted [1-9]\d+ units, rejected [1-9]\d* units`).MatchString(text) || !strings.Contains(text, "the history grew by exactly what was counted") || !strings.Contains(text, "load-") {
				t.Errorf("got\n%s", text)
			}
		})
	}
}

func TestDevGoesOnWhereAnEarlierRunInTheSameMinuteStopped(t *testing.T) {
	args, listen, _ := devArgs(t)
	for i := range 3 {
		_, stop := runDev(t, args, listen)
		for range 5 {
			r, err := http.Post("http://"+listen+"/v1/decide", "", strings.NewReader(`{"token":"alice"}`))
			if err != nil || r.Body.Close() != nil || r.StatusCode != 200 {
				t.Fatalf("%v %v", r, err)
			}
		}
		text, err := stop()
		if err != nil {
			t.Fatalf("run %d: %v\n%s", i, err, text)
		}
		if want := "it holds " + []string{"5", "10", "15"}[i] + " admitted and 0 rejected in all"; !strings.Contains(text, want) {
			t.Errorf("run %d: no %q in\n%s", i, want, text)
		}
	}
}

func TestDevAccountsForAnotherApplicationOnTheSameRedis(t *testing.T) {
	server := redistest.Start(t)
	args, listen, query := devArgs(t, "--redis", server.URL())
	_, stop := runDev(t, args, listen)
	// The classic recipe, by an application that has never heard of Tallygate.
	ctx := context.Background()
	counter := "{api:bob}:" + time.Now().UTC().Format("4")
	client := server.Client()
	if err := client.IncrBy(ctx, counter, 7).Err(); err != nil {
		t.Fatal(err)
	}
	client.Expire(ctx, counter, 59*time.Second)
	eventually(t, func() bool {
		r, err := http.Get("http://" + query + "/v1/tokens/bob")
		return err == nil && r.Body.Close() == nil && r.StatusCode == 200
	})
	text, err := stop()
	if err != nil || !strings.Contains(text, "exactly what was counted: 7 admitted") || !strings.Contains(text, "7 of these units were counted by others") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestThePrintedCurlLinesWorkVerbatim(t *testing.T) {
	proctest.Require(t, "install it (Debian: apt-get install curl)", "curl")
	args, listen, query := devArgs(t)
	out, stop := runDev(t, args, listen)
	lines := regexp.MustCompile(`(?m)^  (curl .*)$`).FindAllStringSubmatch(out.String(), -1)
	if len(lines) != 3 {
		t.Fatalf("%d lines in\n%s", len(lines), out.String())
	}
	curl := func(line string) string {
		content, err := exec.Command("sh", "-c", strings.Replace(line, "curl", "curl -sS", 1)).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, content)
		}
		return string(content)
	}
	if got := curl(lines[0][1]); !strings.Contains(got, `"outcome":"admitted"`) || !strings.Contains(got, "200 OK") {
		t.Errorf("got %s", got)
	}
	eventually(t, func() bool {
		r, err := http.Get("http://" + query + "/v1/tokens/alice")
		return err == nil && r.Body.Close() == nil && r.StatusCode == 200
	})
	for _, line := range lines[1:] {
		if got := curl(line[1]); !strings.Contains(got, `"token":"alice"`) || !strings.Contains(got, `"ops":1`) {
			t.Errorf("%s: got %s", line[1], got)
		}
	}
	if text, err := stop(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestDevStartUpFailuresNameTheFlag(t *testing.T) {
	server := redistest.Start(t)
	taken := server.Addr
	server2 := redistest.Start(t)
	server2.Kill()
	for want, change := range map[string][]string{
		"--listen":                    {"--listen", taken},
		"--query-listen":              {"--query-listen", taken},
		"--debug-listen":              {"--debug-listen", taken},
		"--redis: cannot reach Redis": {"--redis", server2.URL()},
		"postgres":                    {"--postgres", "postgres://user:hunter2@" + server2.Addr + "/none?connect_timeout=1"},
		"--data":                      {"--data", "/dev/null/x"},
		"redis.url":                   {"--redis", "http://h"},
		"pass an existing":            {"--config", "/does/not/exist"},
		"unknown flag: --what":        {"--what"},
	} {
		args, _, _ := devArgs(t, change...)
		var out output
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // one that starts after all must not hang
		err := run(ctx, args, noEnv, &out, io.Discard)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: got %v, want %s", change, err, want)
		}
	}
}

func TestARedisWithoutConfigPermissionIsAClearError(t *testing.T) {
	server := redistest.Start(t)
	if err := server.Client().Do(context.Background(), "ACL", "SETUSER", "default", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	args, _, _ := devArgs(t, "--redis", server.URL())
	err := run(context.Background(), args, noEnv, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "notify-keyspace-events") {
		t.Errorf("got %v", err)
	}
}

func TestConfigChecksTheExample(t *testing.T) {
	var out output
	if err := run(context.Background(), []string{"config", "--config", "../../tallygate.example.yaml"}, noEnv, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "default_policy: free") {
		t.Errorf("got\n%s", out.String())
	}
}
