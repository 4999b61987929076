package endtoend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/pgtest"
	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
)

// Bad input gives one clear answer that names the field; odd but good input is
// served, and stays itself all the way to the history.
func TestInputOfTheRunningServices(t *testing.T) {
	p := startPipeline(t, setup{})
	post := func(t *testing.T, body string) (int, map[string]any) {
		t.Helper()
		resp, err := http.Post(p.enforcers[0].url("/v1/decide"), "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		content, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		var answer map[string]any
		if err := json.Unmarshal(content, &answer); err != nil {
			t.Fatalf("%s: the answer is no JSON: %v\n%s", resp.Status, err, content)
		}
		if resp.StatusCode != http.StatusOK && resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s is of type %q", resp.Status, resp.Header.Get("Content-Type"))
		}
		return resp.StatusCode, answer
	}

	for _, c := range []struct{ name, body, says string }{
		{"no token", `{}`, "token"},
		{"empty token", `{"token":""}`, "token"},
		{"over-long token", `{"token":"` + strings.Repeat("x", token.MaxText+1) + `"}`, "token"},
		{"NUL in the token", `{"token":"a\u0000b"}`, "token"},
		{"token that is no string", `{"token":7}`, "token"},
		{"invalid UTF-8", "{\"token\":\"a\xff\"}", "UTF-8"},
		{"over-long resource", `{"token":"T","resource":"` + strings.Repeat("x", token.MaxResource+1) + `"}`, "resource"},
		{"negative cost", `{"token":"T","cost":-1}`, "cost"},
		{"huge cost", `{"token":"T","cost":9223372036854775807}`, "cost"},
		{"cost beyond 64 bits", `{"token":"T","cost":1e30}`, "cost"},
		{"fractional cost", `{"token":"T","cost":1.5}`, "cost"},
		{"unknown policy", `{"token":"T","policy":"nope"}`, "policy"},
		{"unknown member", `{"token":"T","tokn":"x"}`, "tokn"},
		{"member twice", `{"token":"T","token":"U"}`, "token"},
		{"malformed JSON", `{"token":`, "JSON"},
		{"no JSON at all", `token=T`, "JSON"},
		{"something after it", `{"token":"T"}{"token":"U"}`, "one object"},
		{"huge body", `{"token":"` + strings.Repeat("x", 1<<20) + `"}`, "bytes"},
	} {
		t.Run("refused: "+c.name, func(t *testing.T) {
			status, answer := post(t, c.body)
			if text := fmt.Sprint(answer); status != http.StatusBadRequest || !strings.Contains(text, c.says) {
				t.Errorf("%d %s, want a 400 that mentions %q", status, text, c.says)
			}
		})
	}

	for _, text := range []string{
		"Jane {admin}", "}:data", "{api:other}", "a\nb", "a b", "100%", "%41", "\u00e9\u4e16\U0001F600", "a:1:search:rejected", "::1", strings.Repeat("x", token.MaxText),
	} {
		t.Run(fmt.Sprintf("served: %.20q", text), func(t *testing.T) {
			quoted, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if status, answer := post(t, `{"token":`+string(quoted)+`,"resource":"odd {one}:rejected\n"}`); status != http.StatusOK {
					t.Fatalf("%d %v", status, answer)
				}
			}
			eventually(t, 10*time.Second, func(ctx context.Context) error {
				all, err := answered(ctx, p.indexer.addr)
				if err != nil {
					return err
				}
				if all[text].admitted != 2 {
					return fmt.Errorf("the history has %v of it", all[text])
				}
				return nil
			})
		})
	}
}

// A service that cannot start says so in one error that names the remedy, and
// shows no password.
func TestServicesSayWhyTheyCannotStart(t *testing.T) {
	locked := redistest.Start(t, "--requirepass", "s3cret", "--user", "weak", "on", ">s3cret", "~*", "&*", "+@all", "-config")
	open := redistest.Start(t)
	database := pgtest.Database(t)
	away := "postgres://u:s3cret@" + proctest.FreeAddr(t) + "/db"
	for _, c := range []struct {
		name, service, yaml string
		says                []string
	}{
		{"unknown key", "enforcer", "redis: {ulr: x}\nnamespacee: y\n", []string{"ulr", "namespacee"}},
		{"several problems together", "enforcer", "default_policy: nope\npolicies:\n  free: {limits: [{name: a, quota: 0, window: 1m}, {name: a, quota: 1, window: 0s}]}\n", []string{"nope", "quota", "window"}},
		{"wrong password", "enforcer", "redis: {url: redis://:wr0ng@" + locked.Addr + "}\n", []string{"credentials", "redis.password"}},
		{"wrong password", "tracker", "redis: {url: redis://:wr0ng@" + locked.Addr + "}\n", []string{"credentials", "redis.password"}},
		{"no permission for CONFIG", "tracker", "redis: {url: redis://weak:s3cret@" + locked.Addr + "}\n", []string{"notify-keyspace-events", "+config|set"}},
		{"notifications are off and not ours to turn on", "tracker", "redis: {url: " + open.URL() + "}\ntracker: {manage_notifications: false}\n", []string{"notify-keyspace-events"}},
		{"Postgres is away", "indexer", "redis: {url: " + open.URL() + "}\nhistory: {url: " + away + "}\n", []string{"Postgres", "is it running"}},
		{"address in use", "indexer", "redis: {url: " + open.URL() + "}\nhistory: {url: \"" + database + "\"}\nindexer: {listen: " + open.Addr + "}\n", []string{"indexer.listen"}},
		{"no such file", "indexer", "", []string{"no such file"}},
	} {
		t.Run(c.service+": "+c.name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "tallygate.yaml")
			if c.yaml != "" {
				if err := os.WriteFile(config, []byte(c.yaml), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			prefix := "TALLYGATE_" + strings.ToUpper(c.service)
			cmd := exec.Command(binary(t, c.service), "--config", config)
			cmd.Env = append(os.Environ(), prefix+"_DEBUG_LISTEN=")
			if !strings.Contains(c.yaml, "listen") {
				cmd.Env = append(cmd.Env, prefix+"_LISTEN=127.0.0.1:0")
			}
			proc := proctest.Start(t, cmd)
			err := proc.Wait(30 * time.Second)
			if err == nil {
				t.Fatalf("it ended well:\n%s", proc.Output())
			}
			for _, word := range c.says {
				if !strings.Contains(proc.Output(), word) {
					t.Errorf("%v without mentioning %q:\n%s", err, word, proc.Output())
				}
			}
			if strings.Contains(proc.Output(), "s3cret") || strings.Contains(proc.Output(), "wr0ng") {
				t.Errorf("a password is shown:\n%s", proc.Output())
			}
		})
	}
}
