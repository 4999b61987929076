package load

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/quota"
)

func TestParseAnswer(t *testing.T) {
	const certain, uncertain = "not counted", "unknown"
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   any // quota.Outcome, or what is known without one
	}{
		{"admitted", 200, `{"outcome":"admitted","at_ms":5}`, quota.Admitted},
		{"rejected", 429, `{"outcome":"rejected","at_ms":5}`, quota.Rejected},
		{"429 of a proxy on the way", 429, `slow down`, uncertain},
		{"200 of a captive portal", 200, `<html>`, uncertain},
		{"outcome and status disagree", 200, `{"outcome":"rejected"}`, uncertain},
		{"malformed request", 400, `{"title":"cost","detail":"is negative"}`, certain},
		{"no such path", 404, ``, certain},
		{"the store is away", 503, `{"title":"store"}`, uncertain},
		{"redirect", 302, ``, uncertain},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := parseAnswer(c.status, []byte(c.body))
			var got any = a.Outcome
			if err != nil {
				got = uncertain
				if errors.Is(err, ErrNotCounted) {
					got = certain
				}
			}
			if got != c.want {
				t.Errorf("got %v (%v), want %v", got, err, c.want)
			}
		})
	}
}

func TestEnforcerSendsTheRequestAsJSONToEachTargetInTurn(t *testing.T) {
	seen := make(chan map[string]any, 2)
	var urls []string
	for _, base := range []string{"", "/base/"} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body map[string]any
			b, _ := io.ReadAll(r.Body)
			if err := json.Unmarshal(b, &body); err != nil || r.Method != http.MethodPost || r.URL.Path != strings.TrimSuffix(base, "/")+"/v1/decide" {
				t.Errorf("%s %s %s: %v", r.Method, r.URL, b, err)
			}
			body["host"] = r.Host
			seen <- body
			_, _ = io.WriteString(w, `{"outcome":"admitted","at_ms":61000}`)
		}))
		defer s.Close()
		urls = append(urls, s.URL+base)
	}
	e, err := NewEnforcer(urls, 2, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	text := "Jane \"{admin}\"\n\u00e9"
	hosts := map[any]bool{}
	for range 2 {
		a, err := e.Decide(t.Context(), Request{Token: text, Resource: "search", Cost: 3, Policy: "free"})
		if err != nil || a.Outcome != quota.Admitted || a.At != 61000 {
			t.Fatalf("Decide = %+v, %v", a, err)
		}
		body := <-seen
		if body["token"] != text || body["resource"] != "search" || body["cost"] != 3.0 || body["policy"] != "free" {
			t.Errorf("sent %v", body)
		}
		hosts[body["host"]] = true
	}
	if len(hosts) != 2 {
		t.Errorf("asked %v, want both targets", hosts)
	}
}

// The mechanism behind "unknown": the enforcer got the request, may have counted
// it, and the answer never came.
func TestCutConnectionIsUnknownAndDeadAddressIsNot(t *testing.T) {
	cut := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}))
	defer cut.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct {
		name, url string
		certain   bool
	}{
		{"connection cut", cut.URL, false},
		{"no answer in time", "http://" + silent.Addr().String(), false},
		{"nobody listens", "http://" + proctest.FreeAddr(t), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := NewEnforcer([]string{c.url}, 1, 50*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			_, err = e.Decide(t.Context(), Request{Token: "T", Cost: 1})
			if err == nil || errors.Is(err, ErrNotCounted) != c.certain {
				t.Errorf("Decide = %v, want an error that is certain: %v", err, c.certain)
			}
		})
	}
}

func TestNewEnforcerRefusesWhatIsNoAddress(t *testing.T) {
	for _, targets := range [][]string{nil, {"127.0.0.1:8080"}, {"redis://127.0.0.1"}, {"http://"}} {
		if _, err := NewEnforcer(targets, 1, time.Second); err == nil {
			t.Errorf("NewEnforcer(%q) succeeded", targets)
		}
	}
}

func BenchmarkEnforcer(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"outcome":"admitted","at_ms":61000}`)
	}))
	defer s.Close()
	e, err := NewEnforcer([]string{s.URL}, 64, time.Second)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Decide(b.Context(), Request{Token: "load-1", Cost: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
