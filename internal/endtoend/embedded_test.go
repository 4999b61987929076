package endtoend

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/load"
	"github.com/tallygate/tallygate/internal/proctest"
)

// The embedded default: one process without any server, through a stop and a start.
func TestEmbeddedPipelineAccountsExactlyAndKeepsItsHistory(t *testing.T) {
	data, listen, query := t.TempDir(), proctest.FreeAddr(t), proctest.FreeAddr(t)
	start := func(args ...string) *proctest.Process {
		args = append([]string{"dev", "--data", data, "--listen", listen, "--query-listen", query, "--debug-listen", ""}, args...)
		return proctest.Start(t, exec.Command(binary(t, "tallygate"), args...))
	}
	ready := func(p *proctest.Process) {
		t.Helper()
		for _, addr := range []string{listen, query} {
			s := &service{t: t, name: "dev", addr: addr, proc: p}
			s.waitReady()
		}
	}

	dev := start()
	ready(dev)
	e, err := load.NewEnforcer([]string{"http://" + listen}, 8, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	seen := &witness{decider: e}
	g, err := load.New(seen, load.Options{
		Concurrency: 8, Iterations: 500, Seed: 3, Tokens: 60, Zipf: 1.3,
		Resources: []load.Choice{{Resource: "", Weight: 1}, {Resource: "search", Weight: 1}},
		Costs:     []load.Cost{{Units: 1, Weight: 4}, {Units: 5, Weight: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	report := g.Run(t.Context())
	checkCertain(t, report)
	want := reported(report).tokens
	same := func(ctx context.Context) error {
		got, err := answered(ctx, query)
		if err != nil {
			return err
		}
		return diff(want, got, cmp.Compare[string])
	}
	eventually(t, 20*time.Second, same)

	dev.Signal(syscall.SIGINT)
	if err := dev.Wait(20 * time.Second); err != nil {
		t.Fatalf("after SIGINT: %v\n%s", err, dev.Output())
	}
	dev = start("--load", "--for", "3s")
	if err := dev.Wait(30 * time.Second); err != nil {
		t.Fatalf("dev --load --for 3s: %v\n%s", err, dev.Output())
	}
	for _, word := range []string{"admitted", "rejected"} {
		if !strings.Contains(dev.Output(), word) {
			t.Errorf("the summary does not mention %q:\n%s", word, dev.Output())
		}
	}
	dev = start()
	ready(dev)
	got, err := answered(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	for id, u := range want {
		if got[id].admitted < u.admitted || got[id].rejected < u.rejected {
			t.Errorf("after a restart %s has %v, it had %v", id, got[id], u)
		}
	}
}

// answered is the account of the query API, all pages of it.
func answered(ctx context.Context, addr string) (map[string]units, error) {
	tokens, cursor := map[string]units{}, ""
	for {
		var page struct {
			Tokens []struct {
				Token         string
				Ops, Rejected int64
			}
			Next string
		}
		if err := getJSON(ctx, "http://"+addr+"/v1/tokens?sort=-ops&limit=25&cursor="+cursor, &page); err != nil {
			return nil, err
		}
		for _, t := range page.Tokens {
			tokens[t.Token] = units{t.Ops, t.Rejected}
		}
		if cursor = page.Next; cursor == "" {
			return tokens, nil
		}
	}
}

func getJSON(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
