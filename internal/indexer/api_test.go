package indexer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/indexer"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

const noon = 29_000_000 // 2025-02-19T21:20:00Z

func mustID(t testing.TB, text string) token.ID {
	t.Helper()
	id, err := token.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// nasty is a token that wants to be taken apart on every way.
const nasty = "a/b?c=d&{e}%20 \x1b[31mé"

// serve returns the URL of an API over a history with three tokens.
func serve(t *testing.T) string {
	t.Helper()
	store := openSQLite(t)
	cell := func(text, resource string, minute, admitted, rejected int64) usage.Record {
		return usage.Record{
			Key:    usage.Key{Token: mustID(t, text), Resource: resource, Minute: minute},
			Totals: usage.Totals{Admitted: admitted, Rejected: rejected, Last: min(admitted, 1) * (minute*60 + 7)},
		}
	}
	err := store.Ingest(context.Background(), usage.Batch{Records: []usage.Record{
		cell("alice", "", noon, 30, 2), cell("alice", "search", noon+61, 12, 0),
		cell(nasty, "", noon, 9, 0), cell("refused", "", noon, 0, 5),
	}})
	if err != nil {
		t.Fatal(err)
	}
	err = store.Ingest(context.Background(), usage.Batch{Events: []usage.Event{
		{ID: "1", Token: "alice", At: noon * 60_000, Kind: "owner.set", Actor: "ops", Reason: "sold", After: json.RawMessage(`{"owner":"acme","labels":["eu"]}`)},
		{ID: "2", At: noon*60_000 + 1, Kind: "config.reloaded"},
		{ID: "3", Token: "refused", At: noon*60_000 + 2, Kind: "token.blocked", Before: json.RawMessage(`{"status":"active"}`), After: json.RawMessage(`{"status":"blocked"}`)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return listen(t, store, indexer.APIOptions{})
}

func listen(t *testing.T, store *history.Store, opts indexer.APIOptions) string {
	t.Helper()
	handler, err := indexer.Handler(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func get(t *testing.T, address string) (status int, contentType, body string) {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), strings.TrimSpace(string(content))
}

func TestAPIAnswers(t *testing.T) {
	server := serve(t)
	alice := `{"token":"alice","ops":42,"rejected":2,"refunded":0,"first":"2025-02-19T21:20:00Z","last":"2025-02-19T22:21:07Z"}`
	for path, want := range map[string]string{
		"/v1/tokens/alice":   alice,
		"/v1/tokens/refused": `{"token":"refused","ops":0,"rejected":5,"refunded":0}`,
		"/v1/tokens?sort=last&limit=1000": `{"tokens":[{"token":"refused","ops":0,"rejected":5,"refunded":0,"status":"blocked"},` +
			`{"token":"a/b?c=d\u0026{e}%20 \u001b[31mé","ops":9,"rejected":0,"refunded":0,"first":"2025-02-19T21:20:00Z","last":"2025-02-19T21:20:07Z","status":"active"},` +
			strings.TrimSuffix(alice, "}") + `,"owner":"acme","status":"active","labels":["eu"]}]}`,
		"/v1/tokens?q=status:blocked":                                  `{"tokens":[{"token":"refused","ops":0,"rejected":5,"refunded":0,"status":"blocked"}]}`,
		"/v1/groups?by=owner":                                          `{"groups":[{"value":"acme","tokens":1,"ops":42,"rejected":2,"refunded":0},{"value":"","tokens":2,"ops":9,"rejected":5,"refunded":0}]}`,
		"/v1/groups?q=ops%3E9":                                         `{"groups":[{"value":"","tokens":1,"ops":42,"rejected":2,"refunded":0}]}`,
		"/v1/top?from=2025-02-19T22:00:00Z&to=2025-02-19T23:00:00Z":    `{"tokens":[{"token":"alice","ops":12,"rejected":0,"refunded":0,"first":"2025-02-19T22:21:00Z","last":"2025-02-19T22:21:07Z"}]}`,
		"/v1/top?by=rejected&to=2025-02-19T22:00:00Z&since=1d&limit=1": `{"tokens":[{"token":"refused","ops":0,"rejected":5,"refunded":0}]}`,
		"/v1/usage?since=1d&to=2025-02-20T00:00:00Z&step=1d":           `{"step_s":86400,"points":[{"start":"2025-02-19T00:00:00Z","admitted":51,"rejected":7,"refunded":0}]}`,
		"/v1/tokens/alice/events":                                      `{"events":[{"seq":1,"id":"1","token":"alice","at":"2025-02-19T21:20:00Z","kind":"owner.set","actor":"ops","reason":"sold","after":{"owner":"acme","labels":["eu"]}}]}`,
		"/v1/events?limit=1":                                           `{"events":[{"seq":3,"id":"3","token":"refused","at":"2025-02-19T21:20:00.002Z","kind":"token.blocked","before":{"status":"active"},"after":{"status":"blocked"}}],"next":"3"}`,
		"/v1/events?limit=1&cursor=3&kind=config.reloaded":             `{"events":[{"seq":2,"id":"2","at":"2025-02-19T21:20:00.001Z","kind":"config.reloaded"}]}`,
		"/v1/tokens/alice/usage?from=2025-02-19T21:00:00Z&to=1740006000&step=1h": `{"token":"alice","step_s":3600,"points":[` +
			`{"start":"2025-02-19T21:00:00Z","admitted":30,"rejected":2,"refunded":0},{"start":"2025-02-19T22:00:00Z","admitted":12,"rejected":0,"refunded":0}]}`,
		"/v1/tokens/alice/usage?from=2025-02-19T00:00:00Z&to=2025-02-20T00:00:00Z&step=1d&resource=search": `{"token":"alice","step_s":86400,"points":[` +
			`{"start":"2025-02-19T00:00:00Z","admitted":12,"rejected":0,"refunded":0}]}`,
		"/v1/tokens/alice/usage?from=2025-02-19T00:00:00Z&to=2025-02-20T00:00:00Z&step=24h&resource=": `{"token":"alice","step_s":86400,"points":[` +
			`{"start":"2025-02-19T00:00:00Z","admitted":30,"rejected":2,"refunded":0}]}`,
	} {
		status, contentType, body := get(t, server+path)
		if status != 200 || contentType != "application/json" || body != want {
			t.Errorf("%s: %d %s\n got %s\nwant %s", path, status, contentType, body, want)
		}
	}
	if _, _, body := get(t, server+"/v1/tokens/"+url.PathEscape(nasty)); !strings.Contains(body, `"ops":9`) {
		t.Errorf("the nasty token: %s", body)
	}
}

func TestAPIFollowsTheCursor(t *testing.T) {
	server := serve(t)
	var met []string
	for next := ""; len(met) < 10; {
		_, _, body := get(t, server+"/v1/tokens?limit=1&cursor="+next)
		var answer indexer.TokensAnswer
		if err := json.Unmarshal([]byte(body), &answer); err != nil || len(answer.Tokens) != 1 {
			t.Fatalf("%s: %v", body, err)
		}
		met = append(met, answer.Tokens[0].Token)
		if next = answer.Next; next == "" {
			break
		}
	}
	if got, want := strings.Join(met, " | "), "alice | "+nasty+" | refused"; got != want {
		t.Errorf("met %q, want %q", got, want)
	}
}

func TestAPIErrorsNameTheParameterAndTheRemedy(t *testing.T) {
	server := serve(t)
	for path, want := range map[string]struct {
		status       int
		field, words string
	}{
		"/v1/tokens?sort=usage":                                       {400, "sort", "is none of token, ops, rejected"},
		"/v1/tokens?limit=0":                                          {400, "limit", "from 1 to 1000"},
		"/v1/tokens?limit=x":                                          {400, "limit", "from 1 to 1000"},
		"/v1/tokens?limit=1&limit=2":                                  {400, "limit", "once"},
		"/v1/tokens?cursor=x":                                         {400, "cursor", "the page before"},
		"/v1/tokens?order=ops":                                        {400, "order", "there are q, sort, limit, cursor"},
		"/v1/tokens?q=owner:acme+ops>many":                            {400, "q", "\nowner:acme ops>many\n"},
		"/v1/tokens?sort=rate":                                        {400, "q", "the history does not keep the rate"},
		"/v1/groups?by=token":                                         {400, "by", "policy, owner, status"},
		"/v1/top?by=rate":                                             {400, "by", "sort by ops, rejected"},
		"/v1/top?since=1h&from=0":                                     {400, "since", "either from or since"},
		"/v1/top?since=0s":                                            {400, "since", "5m, 1h or 7d"},
		"/v1/events?cursor=x":                                         {400, "cursor", "the page before"},
		"/v1/tokens?%zz":                                              {400, "query", "percent-encoded"},
		"/v1/tokens/nobody":                                           {404, "token", "no usage of it"},
		"/v1/tokens/nobody?x=1":                                       {400, "x", "there are none here"},
		"/v1/tokens/" + strings.Repeat("x", 257):                      {400, "token", "at most 256"},
		"/v1/tokens/%00":                                              {400, "token", "NUL"},
		"/v1/tokens/alice/usage?from=yesterday":                       {400, "from", "2026-01-31T09:00:00Z"},
		"/v1/tokens/alice/usage?to=-1":                                {400, "to", "unix seconds"},
		"/v1/tokens/alice/usage?step=90s":                             {400, "step", "whole minutes"},
		"/v1/tokens/alice/usage?step=soon":                            {400, "step", "5m, 1h or 7d"},
		"/v1/tokens/alice/usage?from=0":                               {400, "step", "take a longer step"},
		"/v1/tokens/alice/usage?from=20&to=10":                        {400, "step", "from must be before to"},
		"/v1/tokens/alice/usage?resource=" + strings.Repeat("x", 129): {400, "resource", "at most 128"},
		"/v1/nothing":                                                 {404, "", "nothing at this path"},
	} {
		status, contentType, body := get(t, server+path)
		var p struct{ Field, Detail string }
		_ = json.Unmarshal([]byte(body), &p)
		if status != want.status || contentType != "application/problem+json" || p.Field != want.field || !strings.Contains(p.Detail, want.words) {
			t.Errorf("%.60s: %d %s %s", path, status, contentType, body)
		}
	}
	resp, err := http.Post(server+"/v1/tokens", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %s, Allow %q", resp.Status, resp.Header.Get("Allow"))
	}
}

// A client is told that the history is away, not what its driver said about it.
func TestAPIHidesTheDatabasesErrors(t *testing.T) {
	store, err := history.Open(context.Background(), "sqlite:"+t.TempDir()+"/history.db")
	if err != nil {
		t.Fatal(err)
	}
	server := listen(t, store, indexer.APIOptions{})
	_ = store.Close()
	status, _, body := get(t, server+"/v1/tokens")
	if status != 503 || strings.Contains(body, "sql") {
		t.Errorf("%d %s", status, body)
	}
}

func run(args ...string) (string, error) {
	root := &cobra.Command{Use: "indexer", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(indexer.Commands()...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	return out.String(), err
}

func TestCommandsPrintTablesAndJSON(t *testing.T) {
	server := serve(t)
	for _, c := range []struct {
		args string
		want []string // in this order
	}{
		{"top", []string{"token", "ops", "alice", "42", "9", "refused", "0", "–"}},
		{"top --by rejected -n 1", []string{"refused", "5"}},
		{"top --by first", []string{"refused", "a/b", "alice"}},
		{"token alice", []string{"alice", "42", "2025-02-19 22:21:07Z"}},
		{"token alice --json", []string{`"ops":42`}},
		{"token alice --csv", []string{"token,ops,rejected,refunded,first use,last use\nalice,42,2,0,2025-02-19T21:20:00Z,2025-02-19T22:21:07Z"}},
		{"find status:blocked", []string{"refused", "5"}},
		{"find ops>0 --group owner", []string{"acme", "1", "42", "(none)", "1", "9"}},
		{"history alice", []string{
			"day: 42 admitted, 2 rejected", "first use", `owner.set to "{\"owner\":\"acme\",\"labels\":[\"eu\"]}"`, "ops", "sold",
			"in all 42 admitted, 2 rejected, 0 refunded",
		}},
		{"history alice --json", []string{`"account":{"token":"alice"`, `"days":[{"start":"2025-02-19T00:00:00Z","admitted":42`, `"events":[{"seq":1`}},
		{"usage alice --from 2025-02-19T21:00:00Z --to 2025-02-19T23:00:00Z --step 1h", []string{
			"alice, 2 steps of 1h, 21.0 admitted in one on average", "admitted █▃ 42", "rejected █  2", "2025-02-19 21:00:00Z", "30",
		}},
		{"usage alice --to 2025-02-20T00:00:00Z --since 1d --step 1d --resource search --json", []string{`"step_s":86400`, `"admitted":12`}},
	} {
		out, err := run(append(strings.Fields(c.args), "--server", server+"/")...)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
		rest := out
		for _, want := range c.want {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: no %q (in this order) in\n%s", c.args, want, out)
				break
			}
			rest = after
		}
		if strings.Contains(out, "\x1b[31m") {
			t.Errorf("%s: a token's text steers the terminal", c.args)
		}
	}
}

func TestCommandsSayWhatIsWrong(t *testing.T) {
	server := serve(t)
	for args, want := range map[string]string{
		"top --by usage --server " + server:              "parameter sort",
		"token secret-token --server " + server:          "no usage of it",
		"usage alice --since soon --server " + server:    "--since",
		"usage alice --to soon --server " + server:       "--to",
		"top --server localhost:8090":                    "--server",
		"token secret-token --server http://127.0.0.1:1": "is it running",
		"token": "accepts 1 arg",
	} {
		_, err := run(strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestAnUnchangedAnswerIsNotSentAgain(t *testing.T) {
	server := serve(t)
	ask := func(path, etag string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, server+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("If-None-Match", etag)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("ETag")
	}
	status, etag := ask("/v1/tokens/alice", `"another"`)
	if status != 200 || etag == "" {
		t.Fatalf("%d, ETag %q", status, etag)
	}
	if status, again := ask("/v1/tokens/alice", etag); status != http.StatusNotModified || again != etag {
		t.Errorf("%d, ETag %q, was %q", status, again, etag)
	}
	if status, other := ask("/v1/tokens/refused", etag); status != 200 || other == etag {
		t.Errorf("another answer: %d, ETag %q", status, other)
	}
}

func TestReadTokensKeepOthersOut(t *testing.T) {
	store := openSQLite(t)
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte("good token")))
	other := fmt.Sprintf("%x", sha256.Sum256([]byte("other token")))
	server := listen(t, store, indexer.APIOptions{ReadTokens: []string{other, digest}})
	for header, want := range map[string]int{
		"": 401, "Bearer": 401, "Bearer wrong": 401, "Basic good token": 401, "good token": 401, "Bearer " + digest: 401,
		"Bearer good token": 200, "bearer good token": 200, "Bearer other token": 200,
	} {
		req, err := http.NewRequest(http.MethodGet, server+"/v1/tokens", nil)
		if err != nil {
			t.Fatal(err)
		}
		if header != "" {
			req.Header.Set("Authorization", header)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || want == 401 && !strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%q: %d, want %d", header, resp.StatusCode, want)
		}
	}
	if _, err := indexer.Handler(store, indexer.APIOptions{ReadTokens: []string{"good token"}}); err == nil || strings.Contains(err.Error(), "good") {
		t.Errorf("a token instead of its digest: %v", err)
	}
}
