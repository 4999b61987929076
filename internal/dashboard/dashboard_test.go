package dashboard_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tallygate/tallygate/internal/config"
	"github.com/tallygate/tallygate/internal/dashboard"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// now is the clock of all tests: a Thursday afternoon, in the middle of a minute.
var now = time.Date(2026, 3, 12, 14, 7, 30, 0, time.UTC)

// callers have a usage that looks like life: some work by day, some all night,
// one runs into its limit, one has a name that breaks careless pages.
var callers = []struct {
	text      string
	perMinute float64 // units, on average at the busiest hour
	night     float64 // share of it at night
	quota     int64   // units a minute; what is more is rejected
	resources []string
}{
	{"acme-production", 420, .35, 480, []string{"search", "orders", ""}},
	{"acme-staging", 38, .05, 100, []string{"search", ""}},
	{"billing-export", 160, 1.4, 170, []string{"export"}},
	{"mobile:ios", 210, .5, 240, []string{"", "search"}},
	{"mobile:android", 240, .5, 240, []string{"", "search"}},
	{"partner~northwind", 90, .2, 90, []string{"orders"}},
	{"203.0.113.24", 12, 1, 6, []string{""}},
	{"ops@example.com", 4, .1, 60, []string{"search"}},
	{"=SUM(A1:A9)", 2, 1, 60, []string{""}},
	{`<b>"bold" & {braced}</b>`, 3, 1, 60, []string{"a/b c"}},
}

// filled returns a history with thirty days of usage and some audit events: a
// copy of one that is made once.
func filled(t testing.TB) *history.Store {
	t.Helper()
	template.once.Do(func() {
		path := filepath.Join(template.dir, "history.db")
		store := open(t, path)
		fill(t, store)
		if err := store.Close(); err != nil { // and with it the log is merged into the file
			t.Fatal(err)
		}
		var err error
		if template.file, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	})
	path := filepath.Join(t.TempDir(), "history.db")
	if err := os.WriteFile(path, template.file, 0o600); err != nil {
		t.Fatal(err)
	}
	store := open(t, path)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

var template struct {
	once sync.Once
	dir  string
	file []byte
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "dashboard")
	if err != nil {
		panic(err)
	}
	template.dir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func open(t testing.TB, path string) *history.Store {
	t.Helper()
	store, err := history.Open(context.Background(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func fill(t testing.TB, store *history.Store) {
	t.Helper()
	ctx := context.Background()
	random := rand.New(rand.NewPCG(7, 7))
	end := now.Unix() / 60
	var records []usage.Record
	for _, c := range callers {
		id := parse(t, c.text)
		for m := end - 30*1440; m <= end; m++ {
			// The last half hour is dense; before it a few rows stand for many, so
			// that filling takes no time.
			every := int64(1)
			switch {
			case m < end-1440:
				every = 720
			case m < end-30:
				every = 20
			}
			if m%every != 0 {
				continue
			}
			hour := math.Mod(float64(m)/60, 24)
			day := c.night + (1-c.night)*math.Pow(math.Sin(math.Pi*math.Mod(hour+18, 24)/24), 2)
			if weekday := time.Unix(m*60, 0).UTC().Weekday(); weekday == time.Saturday || weekday == time.Sunday {
				day *= .4
			}
			want := int64(c.perMinute * day * (.75 + .5*random.Float64()))
			if want *= every; m == end {
				want /= 2
			}
			quota := c.quota * every
			for i, resource := range c.resources {
				share := want / int64(len(c.resources))
				if i == 0 {
					share = want - share*int64(len(c.resources)-1)
				}
				admitted := min(share, quota/int64(len(c.resources)))
				if admitted == 0 {
					continue
				}
				canonical, err := token.ParseResource(resource)
				if err != nil {
					t.Fatal(err)
				}
				records = append(records, usage.Record{
					Key: usage.Key{Token: id, Resource: canonical, Minute: m},
					Totals: usage.Totals{
						Admitted: admitted, Rejected: share - admitted, Refunded: admitted / 400, Last: min(m*60+int64(random.IntN(60)), now.Unix()-2),
					},
				})
			}
		}
	}
	at := func(ago time.Duration) int64 { return now.Add(-ago).UnixMilli() }
	acme := parse(t, "acme-production")
	events := []usage.Event{
		{ID: "e1", Token: acme, At: at(20 * 24 * time.Hour), Kind: "policy.assigned", Actor: "ops", Reason: "contract signed", Before: json.RawMessage(`{"policy":"free"}`), After: json.RawMessage(`{"policy":"pro"}`)},
		{ID: "e2", Token: parse(t, "203.0.113.24"), At: at(50 * time.Hour), Kind: "token.blocked", Actor: "security", Reason: "credential stuffing"},
		{ID: "e3", Token: acme, At: at(3 * time.Hour), Kind: "limit.overridden", Actor: "ops", Reason: "launch week", Before: json.RawMessage(`{"minute":240}`), After: json.RawMessage(`{"minute":480}`)},
		{ID: "e4", Token: acme, At: at(9 * time.Minute), Kind: "threshold.crossed", Reason: "80 % of minute", After: json.RawMessage(`{"limit":"minute","used":384,"quota":480}`)},
	}
	for len(records) > 0 {
		n := min(len(records), 5000)
		if err := store.Ingest(ctx, usage.Batch{Records: records[:n], Events: events}); err != nil {
			t.Fatal(err)
		}
		records, events = records[n:], nil
	}
}

func parse(t testing.TB, text string) token.ID {
	t.Helper()
	id, err := token.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func policies() dashboard.Policies {
	return dashboard.Policies{Default: "free", ByName: map[string]config.Policy{
		"free": {Limits: []config.Limit{
			{Name: "minute", Algorithm: "fixed_window", Quota: 60, Window: time.Minute},
			{Name: "day", Algorithm: "fixed_window", Quota: 10_000, Window: 24 * time.Hour},
			{Name: "search", Algorithm: "fixed_window", Quota: 20, Window: time.Minute, Resources: []string{"search"}},
		}},
		"pro":       {Limits: []config.Limit{{Name: "minute", Algorithm: "fixed_window", Quota: 6_000, Window: time.Minute}}},
		"internal":  {Unlimited: true},
		"suspended": {Blocked: true},
	}}
}

// options are those of all tests, with some changed.
func options(h *history.Store, change ...func(*dashboard.Options)) dashboard.Options {
	o := dashboard.Options{
		History: h, Policies: policies, Version: "v1.2.3-test", Now: func() time.Time { return now },
		Log: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

// serve runs a dashboard over a history until the test ends.
func serve(t testing.TB, h *history.Store, change ...func(*dashboard.Options)) *httptest.Server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d, err := dashboard.New(options(h, append(change, func(o *dashboard.Options) { o.Stopping = ctx.Done() })...))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	server := httptest.NewServer(d)
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.Close() // returns only once all streams have ended
	})
	return server
}

// get returns the answer to a GET and its body, without following redirects.
func get(t testing.TB, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	return do(t, req)
}

func do(t testing.TB, req *http.Request) (*http.Response, string) {
	t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(body)
}
