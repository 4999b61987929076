package enforcer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/quota"
)

func policies() *enforcer.Policies {
	c := config.Default()
	c.DefaultPolicy = "free"
	c.Policies = map[string]config.Policy{
		"free": {Limits: []config.Limit{
			{Name: "hour", Algorithm: "fixed_window", Quota: 3, Window: time.Hour},
			{Name: "day", Algorithm: "fixed_window", Quota: 1000, Window: 24 * time.Hour},
			{Name: "files", Algorithm: "fixed_window", Quota: 50, Window: 36 * time.Hour, Resources: []string{"files/*", "*.txt"}},
			{Name: "search", Algorithm: "fixed_window", Quota: 1, Window: 36 * time.Hour, Resources: []string{"search", "a b"}},
		}},
		"open": {Unlimited: true},
		"shut": {Blocked: true},
		"few":  {Limits: []config.Limit{{Name: "parallel", Algorithm: "concurrency", Quota: 2, Window: time.Minute}}},
	}
	return enforcer.Compile(c)
}

// serve returns a function that posts a body to an enforcer over store.
func serve(store enforcer.Store) func(body string) *http.Response {
	mux := http.NewServeMux()
	enforcer.New(store, policies(), enforcer.Options{}).Register(mux)
	return func(body string) *http.Response {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/decide", strings.NewReader(body)))
		return w.Result()
	}
}

func decode(t testing.TB, r *http.Response) map[string]any {
	t.Helper()
	content, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var body map[string]any
	if err := json.Unmarshal(content, &body); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
	return body
}

func TestADecisionSaysWhatRemainsAndARejectionSaysWhenToComeBack(t *testing.T) {
	post := serve(memory.New(memory.Options{}))
	first := post(`{"token":"T","cost":2}`)
	body := decode(t, first)
	if first.StatusCode != 200 || body["outcome"] != "admitted" || body["policy"] != "free" || body["cost"] != 2.0 || body["resource"] != "" {
		t.Fatalf("%d %v", first.StatusCode, body)
	}
	limits := body["limits"].([]any)
	if hour := limits[0].(map[string]any); len(limits) != 2 || hour["name"] != "hour" || hour["remaining"] != 1.0 || hour["window_ms"] != 3.6e6 {
		t.Errorf("limits are %v", limits)
	}
	if got := first.Header.Get("RateLimit-Policy"); got != `"hour";q=3;w=3600, "day";q=1000;w=86400` {
		t.Errorf("RateLimit-Policy: %s", got)
	}

	second := post(`{"token":"T","cost":2}`)
	body = decode(t, second)
	if second.StatusCode != 429 || second.Header.Get("Content-Type") != "application/problem+json" ||
		body["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" ||
		body["outcome"] != "rejected" || fmt.Sprint(body["violated-policies"]) != "[hour]" || body["retry_after_ms"].(float64) <= 0 {
		t.Fatalf("%d %v", second.StatusCode, body)
	}
	retryAfterIsNeverEarlierThanReset(t, second)
	if third := post(`{"token":"T"}`); third.StatusCode != 200 {
		t.Errorf("a rejection consumed something: %d", third.StatusCode)
	}
}

func retryAfterIsNeverEarlierThanReset(t testing.TB, r *http.Response) {
	t.Helper()
	after, err := strconv.ParseInt(r.Header.Get("Retry-After"), 10, 64)
	if err != nil {
		t.Fatalf("Retry-After: %v", err)
	}
	list, err := httpsfv.UnmarshalList(r.Header.Values("RateLimit"))
	if err != nil || len(list) == 0 {
		t.Fatalf("RateLimit %q: %v", r.Header.Values("RateLimit"), err)
	}
	for _, member := range list {
		item := member.(httpsfv.Item)
		if until, _ := item.Params.Get("t"); after < until.(int64) {
			t.Errorf("Retry-After %d is earlier than t of %v: %v", after, item.Value, until)
		}
	}
}

// store answers every request with what it is told.
type store func(quota.Request) quota.Result

func (s store) Decide(_ context.Context, r quota.Request) quota.Result { return s(r) }

func TestHeadersAreStructuredFieldsWhateverTheDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		status := rapid.Custom(func(t *rapid.T) quota.Status {
			return quota.Status{
				Remaining: rapid.Int64Range(0, quota.MaxCost).Draw(t, "remaining"),
				Reset:     time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "reset")) * time.Millisecond,
			}
		})
		d := quota.Decision{Allowed: rapid.Bool().Draw(t, "allowed"), Violated: -1, Limits: rapid.SliceOfN(status, 2, 2).Draw(t, "limits")}
		if !d.Allowed {
			d.Violated = 0
			d.Limits[0].RetryAfter = time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "retry")) * time.Millisecond
			d.RetryAfter = d.Limits[0].RetryAfter
		}
		r := serve(store(func(quota.Request) quota.Result { return quota.Result{Decision: d} }))(`{"token":"T"}`)
		if d.Allowed {
			list, err := httpsfv.UnmarshalList(r.Header.Values("RateLimit"))
			if err != nil || len(list) != 2 {
				t.Fatalf("%q: %v", r.Header.Values("RateLimit"), err)
			}
			again, err := httpsfv.Marshal(list)
			if err != nil || again != r.Header.Get("RateLimit") {
				t.Fatalf("%q is not canonical: %q, %v", r.Header.Get("RateLimit"), again, err)
			}
		} else {
			after, _ := strconv.ParseInt(r.Header.Get("Retry-After"), 10, 64)
			if want := int64(math.Ceil(d.RetryAfter.Seconds())); after != want {
				t.Fatalf("Retry-After %d, want %d", after, want)
			}
		}
	})
}

func TestResourcesChooseTheLimits(t *testing.T) {
	post := serve(memory.New(memory.Options{}))
	for _, resource := range []string{"search", "a b"} {
		r := post(`{"token":"T","resource":"` + resource + `"}`)
		body := decode(t, r)
		if body["resource"] != resource || len(body["limits"].([]any)) != 3 {
			t.Errorf("%s: %v", resource, body)
		}
	}
	for resource, want := range map[string]int{"files/": 3, "files/a.txt": 3, "a.txt": 3, "files": 2, "a.txt2": 2} {
		r := post(`{"token":"U` + resource + `","resource":"` + resource + `"}`)
		if got := len(decode(t, r)["limits"].([]any)); got != want {
			t.Errorf("%s is covered by %d limits, want %d", resource, got, want)
		}
	}
	if r := post(`{"token":"T","resource":"other"}`); r.StatusCode != 200 || len(decode(t, r)["limits"].([]any)) != 2 {
		t.Errorf("other: %d", r.StatusCode)
	}
}

func TestAPeekConsumesNothing(t *testing.T) {
	post := serve(memory.New(memory.Options{}))
	for range 5 {
		if body := decode(t, post(`{"token":"T","cost":0}`)); body["limits"].([]any)[0].(map[string]any)["remaining"] != 3.0 {
			t.Fatalf("got %v", body)
		}
	}
}

func TestACostThatCanNeverFitIsRefusedWithoutATimeToComeBack(t *testing.T) {
	r := serve(memory.New(memory.Options{}))(`{"token":"T","cost":4}`)
	body := decode(t, r)
	if r.StatusCode != 429 || r.Header.Get("Retry-After") != "" || body["retry_after_ms"] != nil || !strings.Contains(body["detail"].(string), "can never fit limit hour of 3 units") {
		t.Errorf("%d %v", r.StatusCode, body)
	}
}

func TestUnlimitedAdmitsAndBlockedRefuses(t *testing.T) {
	post := serve(memory.New(memory.Options{}))
	if r := post(`{"token":"T","policy":"open","cost":1000000}`); r.StatusCode != 200 || r.Header.Get("RateLimit") != "" {
		t.Errorf("open: %d %v", r.StatusCode, r.Header)
	}
	r := post(`{"token":"T","policy":"shut"}`)
	if body := decode(t, r); r.StatusCode != 403 || body["outcome"] != "rejected" || r.Header.Get("Retry-After") != "" {
		t.Errorf("shut: %d %v", r.StatusCode, body)
	}
}

func TestBadInputIsRefusedWithFieldAndRemedy(t *testing.T) {
	post := serve(store(func(q quota.Request) quota.Result {
		t.Errorf("asked the store for %+v", q)
		return quota.Result{}
	}))
	long := strings.Repeat("x", 300)
	for _, c := range []struct{ body, field, detail string }{
		{``, "body", "ends before"},
		{`{`, "body", "ends before"},
		{`nonsense`, "body", "not valid JSON"},
		{`[]`, "body", "not a JSON object"},
		{`"x"`, "body", "not a JSON object"},
		{`{"token":"T"} {}`, "body", "goes on"},
		{`{"token":"T",}`, "body", "not valid JSON"},
		{`{"token":"T","colour":1}`, "colour", "not known"},
		{`{"Token":"T"}`, "Token", "not known"},
		{`{"token":"T","token":"U"}`, "token", "twice"},
		{"{\"token\":\"a\xff\"}", "body", "UTF-8"},
		{`{}`, "token", "it is empty"},
		{`{"token":""}`, "token", "it is empty"},
		{`{"token":5}`, "token", "send a string"},
		{`{"token":"` + long + `"}`, "token", "at most 256"},
		{`{"token":"a\u0000b"}`, "token", "NUL"},
		{`{"token":"T","resource":"` + long + `"}`, "resource", "at most 128"},
		{`{"token":"T","resource":["a"]}`, "resource", "send a string"},
		{`{"token":"T","cost":-1}`, "cost", "send 0 (a peek)"},
		{`{"token":"T","cost":1099511627777}`, "cost", "send 0 (a peek)"},
		{`{"token":"T","cost":99999999999999999999}`, "cost", "whole number"},
		{`{"token":"T","cost":1.5}`, "cost", "whole number"},
		{`{"token":"T","cost":"5"}`, "cost", "whole number"},
		{`{"token":"T","policy":"gold"}`, "policy", "the policies are: few, free, open, shut"},
		{`{"token":"T","policy":{}}`, "policy", "send a string"},
		{`{"token":"` + strings.Repeat("x", 9000) + `"}`, "body", "more than 8192 bytes"},
	} {
		r := post(c.body)
		body := decode(t, r)
		if r.StatusCode != 400 || r.Header.Get("Content-Type") != "application/problem+json" || body["field"] != c.field || !strings.Contains(fmt.Sprint(body["detail"]), c.detail) {
			t.Errorf("%.60s: %d %v, want field %s: %s", c.body, r.StatusCode, body, c.field, c.detail)
		}
	}
}

func TestALimitOfConcurrencyIsNoFailureOfTheStore(t *testing.T) {
	answer := serve(memory.New(memory.Options{}))(`{"token":"T","policy":"few"}`)
	if body := decode(t, answer); answer.StatusCode != http.StatusBadRequest || !strings.Contains(fmt.Sprint(body["detail"]), "concurrency") {
		t.Errorf("%d %v", answer.StatusCode, body)
	}
}

func TestStrangeTokensAreTokens(t *testing.T) {
	post := serve(memory.New(memory.Options{}))
	for _, text := range []string{`Jane {admin}`, `a b`, "line\nbreak", "日本語", `%7B`, `quo"te`} {
		quoted, _ := json.Marshal(map[string]string{"token": text})
		if r := post(string(quoted)); r.StatusCode != 200 {
			t.Errorf("%q: %d %v", text, r.StatusCode, decode(t, r))
		}
	}
}

func TestAStoreThatIsAwayIsAProblemOfOurs(t *testing.T) {
	r := serve(store(func(quota.Request) quota.Result {
		return quota.Result{Err: errors.New("dial secret.internal: refused")}
	}))(`{"token":"T"}`)
	content, _ := io.ReadAll(r.Body)
	if r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || strings.Contains(string(content), "secret") || !strings.Contains(string(content), "reduced-capacity") {
		t.Errorf("%d %s", r.StatusCode, content)
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(`{"token":"T","resource":"search","cost":1,"policy":"free"}`)
	f.Add(`{"token":null,"cost":1e3}`)
	post := serve(memory.New(memory.Options{}))
	f.Fuzz(func(t *testing.T, body string) {
		r := post(body)
		switch r.StatusCode {
		case 200, 400, 403, 429:
			decode(t, r)
		default:
			t.Errorf("%q: %d", body, r.StatusCode)
		}
	})
}

func BenchmarkDecideHTTP(b *testing.B) {
	mux := http.NewServeMux()
	enforcer.New(memory.New(memory.Options{}), policies(), enforcer.Options{}).Register(mux)
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/v1/decide", strings.NewReader(`{"token":"T","policy":"free"}`))
		mux.ServeHTTP(httptest.NewRecorder(), r)
	}
}
